"""The XML document of one grid job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from adapters import Value
from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.database.documents import (
    FRACTION,
    NUMBER,
    TEXT,
    TIME,
    Document,
    put_value,
    read_ranges,
    read_value,
    render_ranges,
    render_text,
)
from jobmanager.database.times import read_time, render_time


@dataclass(frozen=True)
class StepEntry:
    """A step of a structured grid job, and the grid job that it has become; None: it has not begun."""

    name: str
    grid_job: str | None


@dataclass(frozen=True)
class GramOrigin:
    """A request that came through GRAM."""

    uniqid: str
    """GRAM's own name of the job, the same however often it is submitted."""
    contact: str
    """The job contact by which its clients know it."""
    stdout: str
    """Absolute path of the file that GRAM takes as the job's standard output."""
    stderr: str
    is_plain: bool
    """The request does not know of us: it is to end as under GRAM's own job managers."""
    subject: str = ""
    """Whose certificate the request came with, where audit records are written."""
    unused: tuple[str, ...] = ()
    """Attributes that GRAM's clients always write, which the job type does not take."""
    is_staged_out: bool = False
    """GRAM brings files back when it hears that the job is done: it asks us then."""


class GridJob(Document):
    """One request and what became of it."""

    tag = "grid-job"

    job_id = TEXT.required("id")
    job_type = TEXT.required("type")
    owner = TEXT.required("owner")
    batch = TEXT.required("batch")
    submitted = TEXT.required("submitted")
    name = TEXT.optional("name")
    """What people call it."""
    ended = TEXT.optional("ended")
    ended_time = TIME.optional("ended")
    outcome = TEXT.optional("outcome")
    """done, failed or cancelled; None until it has ended."""
    no_summary = TEXT.optional("no-summary")
    """Why its handler made no summary of the outputs."""
    cancelled_time = TIME.optional("cancelled")
    cancelled_by = TEXT.optional("cancelled-by")
    """``us`` where nobody wanted it ended, but it cannot be run."""
    min_success = FRACTION.otherwise("min-success", 1.0)
    """The fraction of the local jobs that must succeed."""
    retries = NUMBER.otherwise("retries", 0)
    """How often a local job that failed is submitted again."""
    last_token = TEXT.optional("last-token")
    """The last token of the attempts that are over: local jobs that are tried again have lost theirs."""
    repeats = TEXT.optional("repeats")
    """The grid job that this one repeats, or of which it repeats what failed."""
    parent = TEXT.optional("parent")
    """The structured grid job that this one is a step of."""
    step = TEXT.optional("step")
    """The name of that step."""

    @classmethod
    def new(cls, job_id: str, job_type: str, owner: str, batch: str, submitted: float) -> "GridJob":
        """A grid job of which nothing has been submitted."""
        element = etree.Element(
            cls.tag,
            {"id": job_id, "type": job_type, "state": State.UNSUBMITTED.word, "owner": render_text(owner)},
            submitted=render_time(submitted),
            batch=batch,
        )
        return cls(element)

    @property
    def cancelled(self) -> bool:
        """True from the moment that someone, or a failure, wants the grid job ended."""
        return self.cancelled_time is not None

    def cancel(self, now: float, reason: str, by: str | None = None) -> None:
        """Want the grid job ended; the first reason stays."""
        if not self.cancelled:
            self.cancelled_time, self.cancelled_by, self.reason = int(now), by, reason

    def end(self, state: State, now: float) -> None:
        """Put the final state; no problem keeps the grid job from going on any more."""
        self.put_final_state(state)
        self.ended_time = int(now)

    def put_final_state(self, state: State) -> None:
        """Put the final state without its time, and the outcome that goes with it."""
        self.clear_problem()
        self.state, self.outcome = state, "cancelled" if state is State.FAILED and self.was_cancelled else state.word

    @property
    def was_cancelled(self) -> bool:
        """True where someone wanted the grid job ended; False where it could not be run."""
        return self.cancelled and self.cancelled_by != "us"

    # the request

    def put_request(self, attributes: Iterable[tuple[str, Sequence[Value]]], folder: Path) -> None:
        """Keep the request as it was accepted: names and values, and the folder its file names start from."""
        request = self._replace("request")
        request.set("folder", render_text(str(folder)))
        for name, values in attributes:
            element = etree.SubElement(request, "attribute", name=name)
            for value in values:
                put_value(element, value)

    def request(self) -> list[tuple[str, tuple[Value, ...]]]:
        """The request's attributes as they were accepted."""
        return [
            (str(element.attrib["name"]), tuple(map(read_value, element)))
            for element in self.element.iterfind("request/attribute")
        ]

    @property
    def request_folder(self) -> Path:
        return Path(str(self.element.find("request").attrib["folder"]))  # type: ignore[union-attr]

    # GRAM

    def put_origin(self, origin: GramOrigin) -> None:
        """Keep what GRAM wants to be told, and where it wants it."""
        gram = self._replace("gram")
        gram.attrib.update({"uniqid": render_text(origin.uniqid), "contact": render_text(origin.contact)})
        gram.set("plain", "true" if origin.is_plain else "false")
        if origin.subject:
            gram.set("subject", render_text(origin.subject))
        if origin.unused:
            gram.set("unused", " ".join(origin.unused))
        if origin.is_staged_out:
            gram.set("staged-out", "true")
        for name in ("stdout", "stderr"):
            put_value(etree.SubElement(gram, name), getattr(origin, name))

    @property
    def origin(self) -> GramOrigin | None:
        """What GRAM wants to be told; None where the request did not come through GRAM."""
        gram = self.element.find("gram")
        if gram is None:
            return None
        stdout, stderr = (str(read_value(gram.find(name)[0])) for name in ("stdout", "stderr"))  # type: ignore[index]
        values = gram.attrib
        return GramOrigin(
            *(str(values["uniqid"]), str(values["contact"]), stdout, stderr, values["plain"] == "true"),
            subject=str(values.get("subject", "")),
            unused=tuple(str(values.get("unused", "")).split()),
            is_staged_out="staged-out" in values,
        )

    @property
    def uniqid(self) -> str | None:
        """GRAM's own name of the job, the same however often it is submitted."""
        gram = self.element.find("gram")
        return None if gram is None else str(gram.attrib["uniqid"])

    @property
    def sizes_before(self) -> tuple[int, int] | None:
        """Bytes in the files of standard output and error before anything was delivered; None: nothing has been."""
        gram = self.element.find("gram")
        if gram is None or "stdout-size" not in gram.attrib:
            return None
        return int(gram.attrib["stdout-size"]), int(gram.attrib["stderr-size"])

    def put_sizes_before(self, stdout: int, stderr: int) -> None:
        """Keep how much is in the files of standard output and error, in bytes, before something is delivered."""
        self._gram().attrib.update({"stdout-size": str(stdout), "stderr-size": str(stderr)})

    def clear_sizes_before(self) -> None:
        """Forget that something may have been delivered."""
        gram = self.element.find("gram")
        if gram is not None:
            gram.attrib.pop("stdout-size", "")
            gram.attrib.pop("stderr-size", "")

    @property
    def reported(self) -> State | None:
        """The state that was last reported to GRAM; None where nothing was."""
        gram = self.element.find("gram")
        return None if gram is None else STATE_OF_WORD.get(str(gram.get("reported")))

    @property
    def reported_time(self) -> int:
        """When it was reported; 0: never."""
        gram = self.element.find("gram")
        return read_time(str(gram.get("reported-time"))) if gram is not None and "reported-time" in gram.attrib else 0

    def put_reported(self, state: State, now: float) -> None:
        """Keep what was reported to GRAM."""
        self._gram().attrib.update({"reported": state.word, "reported-time": render_time(now)})

    def _gram(self) -> etree._Element:
        gram = self.element.find("gram")
        if gram is None:
            raise ValueError(f"{self.job_id} did not come through GRAM")
        return gram

    # what people are told

    def put_summary(self, items: Mapping[str, str]) -> None:
        """Keep what the outputs amount to."""
        summary = self._replace("summary")
        for name, text in items.items():
            etree.SubElement(summary, "item", name=render_text(name)).text = render_text(text)

    def summary(self) -> dict[str, str]:
        """What the outputs amount to, as the handler told it."""
        return {str(item.get("name")): item.text or "" for item in self.element.iterfind("summary/item")}

    def put_problem(self, text: str, now: float) -> None:
        """Say what keeps the grid job from going on; the time of the first problem in a row stays."""
        before = self.element.find("problem")
        since = before.get("since") if before is not None else None
        problem = self._replace("problem")
        problem.set("since", since or render_time(now))
        problem.text = render_text(text)

    def clear_problem(self) -> bool:
        """Forget the problem; True if there was one."""
        before = self.element.find("problem")
        self._remove("problem")
        return before is not None

    @property
    def problem(self) -> str | None:
        element = self.element.find("problem")
        return None if element is None else f"{element.text} (since {element.get('since')})"

    # the slices

    def put_slices(self, count: int, size: int | None, seed: int, sweep_digest: str | None = None) -> None:
        """Fix how the grid job is cut; ``size`` is in events, None for a type without a size.

        :param sweep_digest: tells the rows, or files, of its local jobs from others; None where it has none.
        """
        slices = self._replace("slices")
        slices.set("count", str(count))
        if size is not None:
            slices.attrib.update({"unit": "event", "size": str(size), "seed": str(seed)})
        if sweep_digest is not None:
            slices.set("sweep-digest", sweep_digest)

    def repeat_slices(self, first: "GridJob", indexes: Iterable[int]) -> None:
        """Become a repetition of some slices of a grid job: it is cut as that one is."""
        slices = self._replace("slices")
        slices.attrib.update({str(name): str(value) for name, value in first.slices.items()})
        self.put_only(indexes)

    def put_only(self, indexes: Iterable[int]) -> None:
        """Have local jobs for some of the slices only."""
        self.element.find("slices").set("only", render_ranges(indexes))  # type: ignore[union-attr]

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
    def sweep_digest(self) -> str | None:
        """What tells the rows, or files, of its local jobs from others; None where it has none."""
        return self.slices.get("sweep-digest")

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
        self.parent, self.step = grid_job, step
