"""Job type ``structured``: a workflow whose named steps are grid jobs, such as production, then merge."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from adapters import Attribute, JobAdapter, Kind, PlannedJob, Step, Value, canonical_name, check_order

_FORM = "a step is (NAME (ATTRIBUTE VALUE ...) ...)"
_INPUT_STEP = canonical_name("input_step")
_AFTER = canonical_name("after")


class StructuredAdapter(JobAdapter):
    """A workflow: each step starts when those that it needs are done, and can read the outputs of one of them."""

    jobType = "structured"
    attributes = (
        Attribute("steps", "The grid jobs, each as (NAME (ATTRIBUTE VALUE ...) ...) with its samgrid_type; "
                  "(input_step NAME) gives it the outputs of an earlier one, (after NAME ...) names the earlier ones "
                  "that it waits for in place of the one before.", Kind.SEQUENCES, required=True),
    )  # fmt: skip

    def checkErrors(self) -> Iterable[str]:
        values: Sequence[Sequence[Value]] | None = self.request["steps"]
        if values is None:
            return []  # the attribute itself is faulty, which has been reported
        if not values:
            return [f"steps names none: {_FORM}"]
        faults = [fault for value in values for fault in _check_step(value)]
        return faults or check_order([_read_step(value) for value in values])

    def getSteps(self) -> Sequence[Step]:
        if faults := list(self.checkErrors()):
            raise ValueError(faults[0])
        return [_read_step(value) for value in self.request["steps"] or ()]

    def prepareWorkArea(self, workArea: Path) -> None:
        """Nothing to do: it has no local jobs of its own."""

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        """Nothing to do: it has no local jobs of its own."""
        return ()


def _check_step(step: Sequence[Value]) -> list[str]:
    """Faults in the form of one step."""
    name = step[0] if step else None
    if not isinstance(name, str):
        return [f"steps: {_FORM}"]
    faults = []
    for attribute in step[1:]:
        if isinstance(attribute, str) or not attribute or not isinstance(attribute[0], str):
            faults.append(f"step {name}: {attribute!r} is no (ATTRIBUTE VALUE ...)")
        elif canonical_name(attribute[0]) == _INPUT_STEP and not _is_word(attribute[1:]):
            faults.append(f"step {name}: input_step takes the name of one earlier step")
        elif canonical_name(attribute[0]) == _AFTER and not all(isinstance(value, str) for value in attribute[1:]):
            faults.append(f"step {name}: after takes names of earlier steps")
    return faults


def _is_word(values: Sequence[Value]) -> bool:
    return len(values) == 1 and isinstance(values[0], str)


def _read_step(value: Sequence[Value]) -> Step:
    own: dict[str, tuple[Value, ...]] = {}
    request = []
    for attribute in value[1:]:
        name, values = str(attribute[0]), tuple(attribute[1:])
        if canonical_name(name) in (_INPUT_STEP, _AFTER):
            own[canonical_name(name)] = values
        else:
            request.append((name, values))
    (input_step,) = own.get(_INPUT_STEP, ("",))
    after = tuple(map(str, own[_AFTER])) if _AFTER in own else None
    return Step(str(value[0]), tuple(request), str(input_step), after)
