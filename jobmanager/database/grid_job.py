"""The XML document of one grid job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lxml import etree

from adapters import Value, canonical_name
from batch_adapters.states import State
from jobmanager.database.documents import (
    FRACTION,
    NUMBER,
    STATE,
    TEXT,
    TIME,
    AttributeType,
    Document,
    put_value,
    read_ranges,
    read_value,
    render_ranges,
    render_text,
)
from jobmanager.database.times import read_time, render_time

CAUSES = AttributeType[tuple[str, ...]](lambda text: tuple(text.split()), " ".join)
"""Causes of failure, by their words."""
FLAG = AttributeType[bool](lambda text: text == "true", lambda value: "true" if value else "false")


@dataclass(frozen=True)
class StepEntry:
    """A step of a structured grid job, and the grid job that it has become (None until it begins)."""

    name: str
    grid_job: str | None
    after: tuple[str, ...] = ()
    """The steps that it needs."""


@dataclass(frozen=True)
class Lapse:
    """The time from the expiry of a credential until its renewal; seconds since 1970."""

    begin: float
    end: float


@dataclass(frozen=True)
class CredentialEntry:
    """A credential that the local jobs get, without its content."""

    name: str
    """The attribute of a request that names such a file."""
    source: str
    """The file of which local jobs get a copy, which is kept up to date."""
    is_gram_default: bool = False
    """True for the proxy that GRAM gave the job, without a word in the request."""
    expires: float | None = None
    """Seconds since 1970; None if not known."""
    problem: str | None = None
    """Why the copy is not kept up to date."""
    lapses: tuple[Lapse, ...] = ()

    def renew(self, expires: float | None, now: float) -> "CredentialEntry":
        """The entry after a new copy was made."""
        had_lapsed = self.expires is not None and self.expires < now
        lapses = (*self.lapses, Lapse(self.expires or 0, now)) if had_lapsed else self.lapses
        return replace(self, expires=expires, problem=None, lapses=lapses)

    def find_lapse(self, when: float) -> float | None:
        """If it had expired at that time: since when; None if not, as far as is known."""
        begins = [lapse.begin for lapse in self.lapses if lapse.begin <= when < lapse.end]
        if self.expires is not None and self.expires <= when:
            begins.append(self.expires)
        return begins[0] if begins else None


@dataclass(frozen=True)
class GramOrigin:
    """A request that came through GRAM."""

    uniqid: str
    """GRAM's own name of the job, the same however often it is submitted."""
    contact: str
    """The job contact by which its clients know it."""
    stdout: str
    """Absolute path of the file that GRAM treats as the job's standard output."""
    stderr: str
    is_plain: bool
    """The request is not written for us: it must end as under GRAM's own job managers."""
    subject: str = ""
    """The subject of the certificate that the request came with, if audit or usage records need it."""
    unused: tuple[str, ...] = ()
    """Attributes that GRAM's clients always write, but the job type does not know."""
    is_staged_out: bool = False
    """GRAM will stage files out when the job is done, and then ask us again."""


class GridJob(Document):
    """A request and its execution."""

    tag = "grid-job"
    listed_datasets: Mapping[str, Sequence[str]] = {}
    """Only for a new grid job: the datasets that the site's command has listed, which are stored in a file."""

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
    """Why there is no summary of the outputs."""
    cancelled_time = TIME.optional("cancelled")
    cancelled_by = TEXT.optional("cancelled-by")
    """``us`` if it cannot be run, ``fail-fast`` if it can no longer succeed; None if a person cancelled it."""
    min_success = FRACTION.otherwise("min-success", 1.0)
    """The fraction of the local jobs that must succeed."""
    retries = NUMBER.otherwise("retries", 0)
    """How often a failed local job is submitted again."""
    retry_on = CAUSES.optional("retry-on")
    """The causes of failure after which it is retried; None: the usual ones."""
    fail_fast = FLAG.optional("fail-fast")
    """Whether it is ended as soon as it can no longer succeed; None: it is not."""
    max_pending_minutes = NUMBER.optional("max-pending-minutes")
    """Minutes that a local job may wait or be held; None: no limit."""
    last_token = TEXT.optional("last-token")
    """The last token of earlier attempts: local jobs that are retried have lost theirs."""
    repeats = TEXT.optional("repeats")
    """The grid job that this one repeats, as a whole or in part."""
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
        """True from the moment that somebody, or a failure, has requested the grid job's end."""
        return self.cancelled_time is not None

    def cancel(self, now: float, reason: str, by: str | None = None) -> None:
        """Request the grid job's end; the first reason stays."""
        if not self.cancelled:
            self.cancelled_time, self.cancelled_by, self.reason = int(now), by, reason

    def end(self, state: State, now: float) -> None:
        """Set the final state and the time of the end."""
        self.put_final_state(state)
        self.ended_time = int(now)

    def put_final_state(self, state: State) -> None:
        """Set the final state and the outcome, without the time."""
        self.clear_problem()
        self.state, self.outcome = state, "cancelled" if state is State.FAILED and self.was_cancelled else state.word

    @property
    def was_cancelled(self) -> bool:
        """True if somebody cancelled the grid job; False if it could not be run, or not succeed."""
        return self.cancelled and self.cancelled_by is None

    # the request

    def put_request(self, attributes: Iterable[tuple[str, Sequence[Value]]], folder: Path) -> None:
        """Store the request as it was accepted: names and values, and the folder for relative file names."""
        request = self._replace("request")
        self.request_folder = folder
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
    def cores(self) -> int:
        """The processor cores that the request wants for each local job."""
        given = [values for name, values in self.request() if canonical_name(name) == "cores"]
        return int(str(given[-1][0])) if given else 1

    request_folder = AttributeType(Path, lambda path: render_text(str(path))).required("folder", "request")

    # GRAM

    def put_origin(self, origin: GramOrigin) -> None:
        """Store what came with the request from GRAM."""
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
        """What came with the request from GRAM; None if it did not come through GRAM."""
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

    uniqid = TEXT.optional("uniqid", "gram")
    """GRAM's own name of the job, the same however often it is submitted."""
    subject = TEXT.optional("subject", "gram")
    """The subject of the certificate that the request came with; None if no record needs it."""
    reported = STATE.optional("reported", "gram")
    """The state that was last reported to GRAM; None if none was."""
    reported_time = TIME.otherwise("reported-time", 0, "gram")
    """When it was reported; 0: never."""
    _stdout_size = NUMBER.optional("stdout-size", "gram")
    _stderr_size = NUMBER.optional("stderr-size", "gram")

    @property
    def sizes_before(self) -> tuple[int, int] | None:
        """Sizes of the files of standard output and error before the delivery, in bytes; None before it."""
        stdout, stderr = self._stdout_size, self._stderr_size
        return None if stdout is None or stderr is None else (stdout, stderr)

    @sizes_before.setter
    def sizes_before(self, sizes: tuple[int, int] | None) -> None:
        self._stdout_size, self._stderr_size = sizes or (None, None)

    # summary and problem

    def put_summary(self, items: Mapping[str, str]) -> None:
        summary = self._replace("summary")
        for name, text in items.items():
            etree.SubElement(summary, "item", name=render_text(name)).text = render_text(text)

    def summary(self) -> dict[str, str]:
        """The handler's summary of the outputs."""
        return {str(item.get("name")): item.text or "" for item in self.element.iterfind("summary/item")}

    def put_problem(self, text: str, now: float) -> None:
        """Store what prevents progress now; the time of the first of several consecutive problems stays."""
        problem = self.element.find("problem")
        if problem is None:
            problem = etree.SubElement(self.element, "problem", since=render_time(now))
        problem.text = render_text(text)

    def clear_problem(self) -> bool:
        """Remove the problem; True if there was one."""
        return self._remove("problem")

    @property
    def problem(self) -> str | None:
        element = self.element.find("problem")
        return None if element is None else f"{element.text} (since {element.get('since')})"

    # the credentials

    def put_credentials(self, entries: Iterable[CredentialEntry]) -> None:
        """Store which credentials the local jobs get, replacing earlier ones."""
        self._remove("credential")
        for entry in entries:
            element = etree.SubElement(self.element, "credential", name=entry.name, source=entry.source)
            if entry.is_gram_default:
                element.set("named-by", "gram")
            if entry.expires is not None:
                element.set("expires", render_time(entry.expires))
            if entry.problem is not None:
                element.set("problem", render_text(entry.problem))
            for lapse in entry.lapses:
                etree.SubElement(element, "lapse", begin=render_time(lapse.begin), end=render_time(lapse.end))

    @property
    def credentials(self) -> list[CredentialEntry]:
        """The credentials that the local jobs get."""
        return [_read_credential(element) for element in self.element.iterfind("credential")]

    # the slices

    def put_slices(self, count: int, size: int | None, seed: int, sweep_digest: str | None = None) -> None:
        """Fix how the grid job is cut; ``size`` is in events, None for a type without a size.

        :param sweep_digest: a checksum of the rows, or files, of its local jobs; None if it has none.
        """
        self._replace("slices")
        self.slice_count, self.sweep_digest = count, sweep_digest
        if size is not None:
            self._unit, self._size, self._seed = "event", size, seed

    def repeat_slices(self, first: "GridJob", indexes: Iterable[int]) -> None:
        """Become a repetition of some slices of a grid job, cut in the same way."""
        self._replace("slices").attrib.update(list(first.slices.items()))
        self.only = list(indexes)

    slice_count = NUMBER.otherwise("count", 0, "slices")
    """The number of slices; a repetition may have local jobs for only some of them."""
    sweep_digest = TEXT.optional("sweep-digest", "slices")
    """A checksum of the rows, or files, of its local jobs; None if it has none."""
    _unit = TEXT.optional("unit", "slices")
    _size = NUMBER.optional("size", "slices")
    _seed = NUMBER.optional("seed", "slices")
    only = AttributeType[list[int]](read_ranges, render_ranges).optional("only", "slices")
    """The indexes of a repetition's local jobs, if it has only some of the slices."""

    @property
    def slices(self) -> Mapping[str, str]:
        """How the grid job is cut: the number of slices, size and seed; empty for a structured grid job."""
        element = self.element.find("slices")
        known = {} if element is None else {str(name): str(value) for name, value in element.attrib.items()}
        return {name: value for name, value in known.items() if name != "only"}

    @property
    def is_partial(self) -> bool:
        return self.only is not None

    @property
    def indexes(self) -> Sequence[int]:
        """The indexes of its local jobs; empty for a structured grid job."""
        only = self.only
        return range(1, self.slice_count + 1) if only is None else only

    @property
    def count(self) -> int:
        return len(self.indexes)

    @property
    def size_and_seed(self) -> tuple[int, int] | None:
        """Number of events and first seed of the grid job; None for a type without a size."""
        return None if self._size is None or self._seed is None else (self._size, self._seed)

    # the steps of a structured grid job

    def put_steps(self, names: Iterable[str]) -> None:
        steps = self._replace("steps")
        for name in names:
            etree.SubElement(steps, "step", name=name)

    def put_needs(self, needs: Mapping[str, Sequence[str]]) -> None:
        """Store the steps that each step needs, unless that is just the previous one."""
        for entry, element in zip(self.steps, self.element.iterfind("steps/step"), strict=True):
            if tuple(needs[entry.name]) != entry.after:
                element.set("after", " ".join(needs[entry.name]))

    def begin_step(self, name: str, grid_job: str) -> None:
        for element in self.element.iterfind("steps/step"):
            if element.get("name") == name:
                element.set("grid-job", grid_job)

    @property
    def steps(self) -> list[StepEntry]:
        """The steps in order; empty if the grid job has its own local jobs."""
        found: list[StepEntry] = []
        for element in self.element.iterfind("steps/step"):
            named = element.get("after")
            after = [step.name for step in found[-1:]] if named is None else named.split()
            found.append(StepEntry(str(element.get("name")), element.get("grid-job"), tuple(after)))
        return found

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        return {step.name: step.after for step in self.steps}

    def put_parent(self, grid_job: str, step: str) -> None:
        self.parent, self.step = grid_job, step


def _read_credential(element: etree._Element) -> CredentialEntry:
    expires = element.get("expires")
    return CredentialEntry(
        name=str(element.get("name")),
        source=str(element.get("source")),
        is_gram_default=element.get("named-by") is not None,
        expires=None if expires is None else read_time(expires),
        problem=element.get("problem"),
        lapses=tuple(
            Lapse(read_time(str(lapse.get("begin"))), read_time(str(lapse.get("end"))))
            for lapse in element.iterfind("lapse")
        ),
    )
