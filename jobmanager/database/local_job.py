"""The XML document of one local job."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lxml import etree

from adapters import Slice
from batch_adapters.states import STATE_OF_WORD, Cause, State
from jobmanager.database.documents import NUMBER, STATE, TEXT, TIME, AttributeType, Document, render_text
from jobmanager.database.times import read_time, render_time
from sandbox.status import MAX_PHASES, PhaseStatus

SECONDS = AttributeType(float, "{:.2f}".format)
"""A duration."""
CAUSE = AttributeType(Cause, lambda cause: cause.value)
"""Why a local job ended."""


class Outcome(enum.Enum):
    """How a local job ended; the value stands in documents and columns."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OUTCOME = AttributeType(Outcome, lambda outcome: outcome.value)
MOST_EVIDENCE = 40
"""Pieces of evidence that a document keeps; the oldest go first."""


@dataclass(frozen=True)
class Evidence:
    """One observation of a local job, and what it changed."""

    source: str
    """Who said it: ``log``, ``queue``, ``history``, ``driver`` or ``us``."""
    said: str
    """What it said: a state, and more."""
    when: int
    """The second since 1970 for which it is valid."""
    verdict: str = ""
    """What it changed, or why it changed nothing, for people."""
    state: State | None = None
    """The state that it put the local job into, if any."""
    helps: str = ""
    """The command that lets a blocked local job go on; empty if this does not say that it is blocked."""

    @property
    def is_failure_in_log(self) -> bool:
        """True if the log told of a failure, whether or not that changed the state."""
        return self.source == "log" and self.said.partition(" ")[0] == State.FAILED.word


MOST_FOREIGN = 10
"""Elements of experiments that a document keeps; the oldest go first."""
_OF_A_RUN = (
    *("started", "ended", "exit-code", "signal", "host", "cpu-time", "driver", "reason", "wait-reason", "helps"),
    *("caught", "warned", "problem"),
    *("batch-words", "batch-state", "batch-cause", "ended-by"),
)


class LocalJob(Document):
    """One local job of a grid job; the attributes are those of the present attempt, earlier ones are children."""

    tag = "local-job"

    index = NUMBER.required("index")
    batch = TEXT.required("batch")
    local_id = TEXT.optional("id")
    """The batch system's id; None until it is known."""
    token = TEXT.optional("token")
    """The name of the submission with this local job; it is stored before the submit command runs (the intent)."""
    intended = TIME.otherwise("intended", 0)
    """When its submission was last attempted."""
    array = TEXT.optional("array")
    """The batch system's id of the whole array, if it is in one."""
    submitted_time = TIME.optional("submitted")
    started_time = TIME.optional("started")
    """When the present run started."""
    ended_time = TIME.optional("ended")
    exit_code = NUMBER.optional("exit-code")
    outcome = OUTCOME.optional("outcome")
    """None until it has ended."""
    cause = CAUSE.optional("cause")
    """Why it did not succeed; None if it did, or has not ended."""
    signal = TEXT.optional("signal")
    """The signal that ended its program, from the driver's record."""
    caught = TEXT.optional("caught")
    """The signal that the driver received while the program ran."""
    warned = TEXT.optional("warned")
    """The warning, USR1 or USR2, that the program was sent."""
    problem = TEXT.optional("problem")
    """Why the driver could not run the program, or bring the outputs back."""
    batch_words = TEXT.optional("batch-words")
    """What the batch system's queue or history says about its end; None if it was not asked, or does not know."""
    batch_state = STATE.optional("batch-state")
    """The final state that those words mean."""
    batch_cause = CAUSE.optional("batch-cause")
    """The cause that those words mean."""
    ended_by = TEXT.optional("ended-by")
    """Who ended it, according to the batch system."""
    cancel_asked = TIME.optional("cancel-asked")
    """When we first asked the batch system to end it."""
    cancel_cause = CAUSE.optional("cancel-cause")
    """Why we asked; None: its grid job was cancelled."""
    host = TEXT.optional("host")
    cpu_seconds = SECONDS.optional("cpu-time")
    """CPU time of the program, from the driver's record."""
    driver = TEXT.optional("driver")
    """How far the driver's record goes: None, ``started`` or ``ended``; ``missing``: it is no longer expected."""
    event_time = TIME.otherwise("event-time", 0)
    """The time of the last event applied; 0 before the first."""
    queue_time = TIME.otherwise("queue-time", 0)
    """The time of the query with the queue's last news; 0: none."""
    signalled = TIME.optional("signalled")
    """When we last suspended or resumed it."""
    wait_reason = TEXT.optional("wait-reason")
    """Why it waits or is held, as the batch system says."""
    helps = TEXT.optional("helps")
    """The command that lets it go on; None if it is not blocked."""
    run = TIME.optional("run")
    """When the driver of the present run started."""
    pid = NUMBER.optional("pid")
    """The process id of that driver."""
    earlier_run = TEXT.optional("earlier-run")
    """Start and process id of the driver whose run had ended when the batch system queued the local job again."""

    @classmethod
    def new(cls, index: int, batch: str, part: Slice | None) -> "LocalJob":
        """A local job that has not been submitted."""
        element = etree.Element(cls.tag, index=str(index), batch=batch, state=State.UNSUBMITTED.word)
        if part is not None:
            numbers = {"first-event": part.first_event, "events": part.events, "seed": part.seed}
            etree.SubElement(element, "slice", {name: str(number) for name, number in numbers.items()})
        return cls(element)

    @property
    def succeeded(self) -> bool:
        return self.outcome is Outcome.SUCCEEDED

    # submission

    def intend(self, token: str, now: float) -> None:
        """Record that a submission with this token is about to be made."""
        self.token, self.intended = token, int(now)

    def forget_intent(self) -> None:
        """Record that there is certainly no such submission."""
        self.token = None
        self.element.attrib.pop("intended", "")

    def register(self, local_id: str, array: str, now: float) -> None:
        """Record the batch system's ids of the local job and its array: it is submitted."""
        self.local_id, self.array, self.submitted_time = local_id, array or None, int(now)
        self.state = State.PENDING

    # evidence

    def put_evidence(self, evidence: Evidence) -> bool:
        """Add a piece of evidence; False if the same one, from the same source and time, is known."""
        parent = next(self.element.iterchildren("evidence"), None)
        if parent is None:
            parent = etree.SubElement(self.element, "evidence")
        said, when, helps = render_text(evidence.said), render_time(evidence.when), render_text(evidence.helps)
        for seen in parent:
            # The word that says what a local job is may also say what blocks it.
            known = (seen.get("source"), seen.get("time"), seen.get("said"), seen.get("helps", ""))
            if known == (evidence.source, when, said, helps):
                return False
        seen = etree.SubElement(parent, "seen", source=evidence.source, said=said, time=when)
        seen.text = render_text(evidence.verdict)
        if evidence.state is not None:
            seen.set("state", evidence.state.word)
        if helps:
            seen.set("helps", helps)
        if len(parent) > MOST_EVIDENCE:
            parent.remove(parent[0])
        return True

    def evidence(self) -> list[Evidence]:
        """The evidence, in the order in which it came."""
        return [
            Evidence(
                *(str(e.get("source")), str(e.get("said")), read_time(str(e.get("time"))), e.text or ""),
                state=STATE_OF_WORD.get(str(e.get("state"))),
                helps=str(e.get("helps", "")),
            )
            for e in self.element.iterfind("evidence/seen")
        ]

    @property
    def last_event(self) -> str:
        """The last event of the log: a state, and the exit code of an end; empty if there was none."""
        return next((seen.said for seen in reversed(self.evidence()) if seen.source == "log"), "")

    @property
    def failure_code(self) -> int | None:
        """The exit code in the last event of the log, if that is a failure."""
        word, _, code = self.last_event.partition(" ")
        return int(code) if word == State.FAILED.word and code else None

    # runs and attempts

    def put_batch_end(self, words: str, state: State, cause: Cause | None, by: str = "") -> None:
        self.batch_words, self.batch_state, self.batch_cause, self.ended_by = words, state, cause, by or None

    def reset_run(self) -> None:
        """Clear everything about one run: the batch system queued the job again."""
        if self.driver == "ended":
            self.earlier_run = f"{self.run} {self.pid}"
        for name in _OF_A_RUN:
            self.element.attrib.pop(name, "")
        self._remove("phase")
        self._remove("lost")

    def enter_run(self, start: int, pid: int | None) -> None:
        """Store start and process id of the present run's driver; a new run has no phases yet."""
        if self.run not in (None, start):
            self._remove("phase")
        self.run, self.pid = start, pid

    def put_lost(self, lost: Iterable[str]) -> None:
        """Store which outputs the driver could not bring back."""
        self._remove("lost")
        for line in lost:
            etree.SubElement(self.element, "lost").text = render_text(line)

    def lost(self) -> tuple[str, ...]:
        """The outputs that did not come back, and why, a line each."""
        return tuple(element.text or "" for element in self.element.iterfind("lost"))

    def begin_attempt(self) -> None:
        """Begin a new attempt at the same slice, not submitted; the old one's attributes are kept."""
        number = self.attempt
        own = {str(name): str(value) for name, value in self.element.attrib.items()}
        known = {name: value for name, value in own.items() if name not in ("index", "batch")}
        for name in known:
            del self.element.attrib[name]
        for child in list(self.element):
            if child.tag not in ("slice", "attempt"):
                self.element.remove(child)
        etree.SubElement(self.element, "attempt", {"number": str(number), **known})
        self.state = State.UNSUBMITTED

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return len(self.element.findall("attempt")) + 1

    def earlier_attempts(self) -> "list[LocalJob]":
        """The earlier attempts as they ended, in order, with their attributes only."""
        return [LocalJob(element) for element in self.element.iterchildren("attempt")]

    # what its program reported

    def put_phases(self, phases: Iterable[PhaseStatus], now: float) -> None:
        """Merge reported phases into the known ones, by name."""
        known = {phase.name: phase for phase in self.phases()}
        # A phase begins when the local job last reported something about another one.
        begun = max(self.started_time or 0, 0, *(phase.changed for phase in known.values())) or int(now)
        for phase in phases:
            before = known.get(phase.name)
            if before is None and len(known) < MAX_PHASES:
                known[phase.name] = replace(phase, begun=min(begun, int(now)), changed=int(now))
            elif before is not None:
                # Numbers may come from lines on stdout, which name no files.
                merged = replace(phase, outputs=phase.outputs or before.outputs, begun=before.begun, changed=int(now))
                known[phase.name] = before if merged == before else merged
        self._remove("phase")
        for phase in known.values():
            values = {"name": phase.name, "done": phase.done, "total": phase.total, "unit": phase.unit}
            times = {"begun": render_time(phase.begun), "changed": render_time(phase.changed)}
            attributes = {name: str(value) for name, value in (values | times).items()}
            element = etree.SubElement(self.element, "phase", attributes)
            for output in phase.outputs:
                etree.SubElement(element, "output", name=output)

    def phases(self) -> list[PhaseStatus]:
        """The phases that the program has reported, in the order of their first reports."""
        return [
            PhaseStatus(
                *(str(e.get("name")), int(e.get("done") or 0), int(e.get("total") or 0), str(e.get("unit") or "")),
                tuple(str(output.get("name")) for output in e.iterfind("output")),
                *(read_time(str(e.get("begun"))), read_time(str(e.get("changed")))),
            )
            for e in self.element.iterchildren("phase")
        ]

    def put_foreign(self, root: etree._Element) -> None:
        """Store an element of an experiment's namespace, replacing one with the same name."""
        self._remove(str(root.tag))
        foreign = [child for child in self.element.iterchildren(etree.Element) if etree.QName(child).namespace]
        for child in foreign[: max(0, len(foreign) + 1 - MOST_FOREIGN)]:
            self.element.remove(child)
        self.element.append(root)
