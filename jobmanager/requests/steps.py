"""What the request of a structured grid job says for its steps."""

import re
from collections.abc import Sequence
from pathlib import Path

from adapters import Step, Value, canonical_name
from jobmanager.requests.attributes import Given

STEP_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}", re.ASCII)
"""A step's name is a folder's, too."""
INPUT_FOLDER = "input_folder"
"""The attribute in which a job type that declares it gets the outputs of an earlier step."""
INPUT_VARIABLE = "SAMGRID_INPUT_FOLDER"
"""The variable in which every program does."""

_INHERITED = tuple(
    map(canonical_name, ("max_cpu_time", "max_wall_time", "max_memory", "queue", "project", "batch_options", "retries"))
)
"""What counts for every step that says nothing else; beside them the environment, to which a step adds."""
_OF_STEPS = ("stdin", "min_success")


def find_faults_of_whole(given: Given) -> list[str]:
    """Attributes that only a step can have."""
    names = {canonical_name(name) for name, _ in given}
    return [
        f"{name} does not go with a grid job that has steps: give it to a step"
        for name in _OF_STEPS
        if canonical_name(name) in names
    ]


def render_step_request(given: Given, step: Step, input_folder: Path | None, takes_folder: bool) -> Given:
    """The request of a step, for which the whole's limits, queue, environment and retries count, too.

    :param input_folder: where the outputs of its `input_step` are; None where it has none.
    :param takes_folder: whether its job type declares `INPUT_FOLDER`.
    """
    environment = (*_find_last(given, "environment"), *_find_last(step.request, "environment"))
    request = [(name, values) for name, values in given if canonical_name(name) in _INHERITED]
    request += step.request
    if input_folder is not None:
        environment += ((INPUT_VARIABLE, str(input_folder)),)
        request += [(INPUT_FOLDER, (str(input_folder),))] if takes_folder else []
    return [*request, ("environment", environment)] if environment else request


def _find_last(given: Given, name: str) -> Sequence[Value]:
    """The values of an attribute, as given last."""
    wanted = canonical_name(name)
    return next((values for known, values in reversed(given) if canonical_name(known) == wanted), ())
