"""What a grid job is made of, in its document: slices, each of which is a local job, or steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lxml import etree

from jobmanager.documents import Document, read_ranges, render_ranges


@dataclass(frozen=True)
class StepEntry:
    """A step of a structured grid job, and the grid job that it has become; None: it has not begun."""

    name: str
    grid_job: str | None


class GridJobParts(Document):
    """The part of a grid job's document that says what it is made of."""

    # the slices

    def put_slices(self, count: int, size: int | None, seed: int) -> None:
        """Fix how the grid job is cut; ``size`` is in events, None for a type without a size."""
        slices = self._replace("slices")
        slices.set("count", str(count))
        if size is not None:
            slices.attrib.update({"unit": "event", "size": str(size), "seed": str(seed)})

    def repeat_slices(self, first: "GridJobParts", indexes: Iterable[int]) -> None:
        """Become a repetition of some slices of a grid job: it is cut as that one is."""
        slices = self._replace("slices")
        slices.attrib.update({str(name): str(value) for name, value in first.slices.items()})
        slices.set("only", render_ranges(indexes))

    @property
    def slices(self) -> Mapping[str, str]:
        """How the grid job is cut: count, and what its slices are made from; empty for a structured grid job."""
        element = self.element.find("slices")
        known = {} if element is None else {str(name): str(value) for name, value in element.attrib.items()}
        return {name: value for name, value in known.items() if name != "only"}

    @property
    def slice_count(self) -> int:
        """Into how many slices it is cut; a repetition may have local jobs for some of them only."""
        return int(self.slices.get("count", 0))

    @property
    def is_partial(self) -> bool:
        """True for a repetition of some slices."""
        slices = self.element.find("slices")
        return slices is not None and "only" in slices.attrib

    @property
    def indexes(self) -> Sequence[int]:
        """The indexes of its local jobs; none for a structured grid job, which has none of its own."""
        if self.is_partial:
            return read_ranges(str(self.element.find("slices").attrib["only"]))  # type: ignore[union-attr]
        return range(1, self.slice_count + 1)

    @property
    def count(self) -> int:
        """The number of local jobs."""
        return len(self.indexes)

    @property
    def size_and_seed(self) -> tuple[int, int] | None:
        """Events of the whole grid job and its first seed; None for a type without a size."""
        slices = self.element.find("slices")
        if slices is None or "size" not in slices.attrib:
            return None
        return int(slices.attrib["size"]), int(slices.attrib["seed"])

    # the steps of a structured grid job

    def put_steps(self, names: Iterable[str]) -> None:
        """Fix the steps, none of which has begun."""
        steps = self._replace("steps")
        for name in names:
            etree.SubElement(steps, "step", name=name)

    def begin_step(self, name: str, grid_job: str) -> None:
        """Note the grid job that a step has become."""
        for element in self.element.iterfind("steps/step"):
            if element.get("name") == name:
                element.set("grid-job", grid_job)

    @property
    def steps(self) -> list[StepEntry]:
        """The steps in their order; none where the grid job has local jobs of its own."""
        return [
            StepEntry(str(element.get("name")), element.get("grid-job"))
            for element in self.element.iterfind("steps/step")
        ]

    def put_parent(self, grid_job: str, step: str) -> None:
        """Note the structured grid job that this one is a step of."""
        self._set("parent", grid_job)
        self._set("step", step)

    @property
    def parent(self) -> str | None:
        """The structured grid job that this one is a step of."""
        return self._get("parent")
