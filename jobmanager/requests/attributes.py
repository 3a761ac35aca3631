"""Reads a request's attributes, and checks them against the declarations of the job type and the framework."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adapters import Attribute, JobAdapter, Kind, Step, Value, canonical_name
from adapters.attributes import read_table
from batch_adapters.states import Cause
from jobmanager import UserError

TYPE_ATTRIBUTE = Attribute("samgrid_type", "The job type: which handler runs the grid job.", required=True)
NOTIFY = "notify"
OLD_NAMES = {"job_type": TYPE_ATTRIBUTE.name, "notify_user": NOTIFY}
"""Names of common attributes in old requests of SAMGrid."""

COMMON_ATTRIBUTES = (
    TYPE_ATTRIBUTE,
    Attribute("name", "Name of the grid job, at most 200 characters."),
    Attribute(NOTIFY, "Whom to tell when the grid job has ended or stalled: mail addresses, or other words for the "
              "site's notification command.", Kind.WORDS, default=()),
    Attribute("environment", "Variables of every local job.", Kind.PAIRS, default=()),
    Attribute("directory", "Folder in which the program runs; default: a new scratch folder.", default=""),
    Attribute("stdin", "File that the program reads as its standard input.", Kind.FILE),
    Attribute("x509_user_proxy", "Proxy (X.509) for the programs, kept up to date while they run.", Kind.PATH),
    Attribute("bearer_token_file", "File with a bearer token for the programs, kept up to date while they run.",
              Kind.PATH),
    Attribute("max_cpu_time", "CPU time that one local job may use.", Kind.INTEGER, "minutes", minimum=1,
              maximum=10_000_000),
    Attribute("max_wall_time", "Time that one local job may take.", Kind.INTEGER, "minutes", minimum=1,
              maximum=10_000_000),
    Attribute("max_memory", "Memory that one local job may use.", Kind.INTEGER, "MB", minimum=1),
    Attribute("cores", "Processor cores of one local job, on one host.", Kind.INTEGER, "cores", minimum=1,
              maximum=100_000),
    Attribute("gpus", "GPUs of one local job.", Kind.INTEGER, "GPUs", minimum=1),
    Attribute("max_disk", "Disk space that one local job may use.", Kind.INTEGER, "MB", minimum=1),
    Attribute("queue", "Queue (partition) of the batch system.", default=""),
    Attribute("project", "Account that the batch system charges.", default=""),
    Attribute("samgrid_output", "Where to put a copy of the output tar: a path in an existing folder, relative to "
              "directory, or stdout (through GRAM: the job's standard output).", default=""),
    Attribute("failed_as", "What GRAM's clients are finally told of a failed grid job where GRAM reads events: failed "
              "or done with exit code 1; the site sets the default.", default="",
              choices=("failed", "done")),
    Attribute("batch_options", "Further options of the batch system's submit command, of those that the site permits.",
              Kind.WORDS, default=()),
    Attribute("retries", "How often a local job that failed is submitted again, with the same index, seed and slice.",
              Kind.INTEGER, "times", default=0, minimum=0, maximum=100),
    Attribute("retry_on", "Causes of failure after which a local job is tried again; default: all but "
              "cancelled-outside.", Kind.WORDS, default=(),
              choices=tuple(cause.value for cause in Cause if cause.is_retriable)),
    Attribute("retry_memory_factor", "Factor for max_memory after an attempt that may have had too little.",
              Kind.NUMBER, default=1.0, minimum=1, maximum=10),
    Attribute("retry_time_factor", "Factor for max_cpu_time and max_wall_time after an attempt that may have had too "
              "little.", Kind.NUMBER, default=1.0, minimum=1, maximum=10),
    Attribute("retry_elsewhere", "Whether the next attempt avoids the host of the last one, if the batch system can "
              "do that.", Kind.FLAG, default=False),
    Attribute("max_pending_time", "How long a local job may wait or be held; after that it is cancelled and has "
              "failed.", Kind.INTEGER, "minutes", minimum=1, maximum=10_000_000),
    Attribute("min_success", "Fraction of the local jobs that must succeed for the grid job to be done.", Kind.NUMBER,
              default=1.0, minimum=0, maximum=1),
    Attribute("fail_fast", "Whether all other local jobs are cancelled as soon as min_success can no longer be "
              "reached.", Kind.FLAG, default=False),
)  # fmt: skip
"""Attributes of every job type."""

Given = Sequence[tuple[str, Sequence[Value]]]
"""A request's attributes as they were given: names and values."""


class BadRequest(UserError):
    """A request cannot be run; ``faults`` has a sentence for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


def read_type(given: Given) -> str:
    """The job type that a request names.

    :raises BadRequest: if it names none.
    """
    return find_type(given)[1]


def find_type(given: Given) -> tuple[str, str]:
    """The attribute that names the job type, as it was written, and the job type; raises BadRequest: there is none."""
    for name, values in reversed(given):
        if find_name(name) == find_name(TYPE_ATTRIBUTE.name):
            try:
                return name, str(TYPE_ATTRIBUTE.read(values))
            except ValueError as error:
                raise BadRequest([f"{TYPE_ATTRIBUTE.name} {error}"]) from error
    raise BadRequest(
        ['samgrid_type is missing: it names the job type, as in (samgrid_type = command); see "samgrid types"']
    )


_CANONICAL = {canonical_name(old): canonical_name(name) for old, name in OLD_NAMES.items()}


def find_name(name: str) -> str:
    """The canonical name of an attribute, also of one with an old name."""
    found = canonical_name(name)
    return _CANONICAL.get(found, found)


def read_request(given: Given, handler: type[JobAdapter], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The request's typed values by declared name, with defaults; and a sentence for each fault.

    If an attribute is given twice (not possible in files), the last value counts, as in GRAM; a faulty one gets its
    default.

    :param folder: where relative file names start.
    """
    declared = {canonical_name(a.name): a for a in (*COMMON_ATTRIBUTES, *handler.attributes)}
    values: dict[str, Any] = {attribute.name: attribute.default for attribute in declared.values()}
    faults = []
    unknown = []
    seen = set()
    for name, words in given:
        attribute = declared.get(find_name(name))
        seen.add(find_name(name))
        if attribute is None:
            unknown.append(name)
            continue
        try:
            values[attribute.name] = attribute.read(words, folder)
        except ValueError as error:
            faults.append(f"{attribute.name} {error}")
    missing = [attribute for name, attribute in declared.items() if attribute.required and name not in seen]
    faults += [f"{attribute.name} is missing: {attribute.doc} ({attribute.describe()})" for attribute in missing]
    return values, faults + _describe_unknown(unknown, handler)


def read_site_values(handler: type[JobAdapter], table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The typed values of a job type's site attributes from the configuration's table ``[type.NAME]``.

    :raises BadRequest: with all faults.
    """
    values, faults = read_table(table, {key.name: partial(_read_loosely, key) for key in handler.siteAttributes})
    if faults:
        raise BadRequest([f"configuration [type.{handler.jobType}] {fault}" for fault in faults])
    return {key.name: values.get(key.name, key.default) for key in handler.siteAttributes}


def _read_loosely(attribute: Attribute, value: object) -> Any:
    """Read a value from the configuration, which may also be written as in a request."""
    return attribute.read([str(word) for word in value] if isinstance(value, list) else [str(value)])


def _describe_unknown(names: Iterable[str], handler: type[JobAdapter]) -> list[str]:
    """A sentence for each name; the known ones are listed once, at the end, because GRAM cuts long messages."""
    known = [attribute.name for attribute in (*handler.attributes, *COMMON_ATTRIBUTES)]
    faults = [f'unknown attribute "{name}" for job type {handler.jobType}{suggest(name, known)}' for name in names]
    return [*faults[:-1], f"{faults[-1]}; known are {', '.join(known)}"] if faults else []


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the known word that may be meant; empty if there is none."""
    from difflib import get_close_matches  # slow to load, and rarely needed

    found = get_close_matches(word.lower(), list(known), 1)
    return f" (did you mean {found[0]}?)" if found else ""


INPUT_FOLDER = "input_folder"
"""The attribute with the outputs of an earlier step, for job types that declare it."""
INPUT_VARIABLE = "SAMGRID_INPUT_FOLDER"
"""The variable with the same folder, for all programs."""

DRIVER_VARIABLES = {
    f"SAMGRID_{name}"
    for name in ("GRID_JOB", "LOCAL_ID", "LOCAL_JOBS", "CORES", "INDEX", "SCRATCH", "OUTPUT", "STATUS", "SITE_FILES",
                 "FIRST_EVENT", "EVENTS", "SEED")
}  # fmt: skip
"""The variables that the driver sets for each local job, over those of the request."""

_LIMITS = ("max_cpu_time", "max_wall_time", "max_memory", "cores", "gpus", "max_disk", "max_pending_time")
_RETRIES = ("retries", "retry_on", "retry_memory_factor", "retry_time_factor", "retry_elsewhere", "fail_fast")
_CREDENTIALS = ("x509_user_proxy", "bearer_token_file")
_OTHERS = ("queue", "project", "batch_options", NOTIFY)
_INHERITED = tuple(map(canonical_name, (*_LIMITS, *_RETRIES, *_CREDENTIALS, *_OTHERS)))
"""Attributes of the parent that steps inherit; steps also inherit its environment, and add to it."""
_OF_STEPS = ("stdin", "min_success")


def find_parent_faults(given: Given) -> list[str]:
    """Faults of a structured grid job: attributes that only its steps can have."""
    names = {canonical_name(name) for name, _ in given}
    return [
        f"{name} does not go with a grid job that has steps: give it to a step"
        for name in _OF_STEPS
        if canonical_name(name) in names
    ]


def render_step_request(given: Given, step: Step, input_folder: Path | None, handler: type[JobAdapter]) -> Given:
    """The complete request of a step, with what it inherits from its parent.

    :param input_folder: the folder with the outputs of its `input_step`; None if it has none.
    """
    own = find_values(step.request, "environment")
    named = {variable[:1] for variable in own}
    environment = (*(one for one in find_values(given, "environment") if one[:1] not in named), *own)
    request = [(name, values) for name, values in given if find_name(name) in _INHERITED]
    request += step.request
    if input_folder is not None:
        environment += ((INPUT_VARIABLE, str(input_folder)),)
        declared = {canonical_name(attribute.name) for attribute in handler.attributes}
        request += [(INPUT_FOLDER, (str(input_folder),))] if canonical_name(INPUT_FOLDER) in declared else []
    return [*request, ("environment", environment)] if environment else request


STDOUT = "stdout"
"""The value of ``samgrid_output`` for the job's standard output under GRAM."""


def find_output_file(given: Given, folder: Path, *, through_gram: bool) -> Path | None:
    """Where a request wants a copy of the output tar; None if nowhere, or on standard output.

    :param folder: where the request's relative file names start.
    """
    wanted = find_word(given, "samgrid_output")
    if not wanted or wanted == STDOUT:
        return None
    # Through GRAM, names are relative to the directory, even if no program runs in it.
    return (folder if through_gram else Path.home() / find_word(given, "directory")) / wanted


def find_word(given: Given, name: str) -> str:
    """The request's value for an attribute, if it is a single one; otherwise empty."""
    values = find_values(given, name)
    return str(values[0]) if len(values) == 1 else ""


def find_values(given: Given, name: str) -> Sequence[Value]:
    """The last given values of an attribute, under any of its names; empty if it is not given."""
    wanted = canonical_name(name)
    return next((values for known, values in reversed(given) if find_name(known) == wanted), ())
