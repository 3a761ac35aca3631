"""The XML document of one local job."""

from dataclasses import dataclass

from lxml import etree

from adapters import Slice
from batch_adapters.states import State
from jobmanager.attempts import AttemptedDocument
from jobmanager.documents import render_text, render_time
from jobmanager.reported import ReportedDocument

MOST_EVIDENCE = 40
"""Pieces of evidence that a document keeps; the oldest go first."""


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen of a local job, and what was made of it."""

    source: str
    """Who said it: ``log``, ``queue``, ``history``, ``driver`` or ``us``."""
    said: str
    """What it said: a state and what else there was to it."""
    when: int
    """The second, since 1970, for which it said so."""
    verdict: str = ""
    """What it changed, or why it changed nothing."""


class LocalJob(AttemptedDocument, ReportedDocument):
    """One local job of a grid job."""

    tag = "local-job"

    @classmethod
    def new(cls, index: int, batch: str, part: Slice | None) -> "LocalJob":
        """A local job that has not been submitted."""
        element = etree.Element(cls.tag, index=str(index), batch=batch, state=State.UNSUBMITTED.word)
        if part is not None:
            etree.SubElement(
                element,
                "slice",
                {"first-event": str(part.first_event), "events": str(part.events), "seed": str(part.seed)},
            )
        return cls(element)

    @property
    def index(self) -> int:
        return int(self.element.attrib["index"])

    @property
    def batch(self) -> str:
        return str(self.element.attrib["batch"])

    @property
    def local_id(self) -> str | None:
        """The batch system's id, None until it is known."""
        return self._get("id")

    @property
    def token(self) -> str | None:
        """The name of the submission that carries this local job: its presence is the intent to submit."""
        return self._get("token")

    def intend(self, token: str, now: float) -> None:
        """Note that a submission of that name is about to be made."""
        self._set("token", token)
        self._set("intended", int(now))

    def forget_intent(self) -> None:
        """Note that there is no such submission, for certain."""
        self._set("token", None)
        self._set("intended", None)

    @property
    def intended(self) -> int:
        """When its submission was last tried, seconds since the epoch."""
        return int(self._get("intended") or 0)

    def register(self, local_id: str, array: str, now: float) -> None:
        """Note the batch system's id of the local job, and of the array that it is in: it is submitted."""
        self._set("id", local_id)
        self._set("array", array or None)
        self._set("submitted", render_time(now))
        self.state = State.PENDING

    @property
    def array(self) -> str | None:
        """The batch system's id of the array as a whole, where it has one."""
        return self._get("array")

    @property
    def submitted(self) -> str | None:
        return self._get("submitted")

    @property
    def submitted_time(self) -> int | None:
        """When it was submitted, seconds since the epoch."""
        return self._get_time("submitted")

    @property
    def ended_time(self) -> int | None:
        """When this run of it ended, seconds since the epoch."""
        return self._get_time("ended")

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time of the program, from the driver's record."""
        text = self._get("cpu-time")
        return None if text is None else float(text)

    @property
    def part(self) -> Slice | None:
        element = self.element.find("slice")
        if element is None:
            return None
        values = element.attrib
        return Slice(int(values["first-event"]), int(values["events"]), int(values["seed"]))

    @property
    def exit_code(self) -> int | None:
        text = self._get("exit-code")
        return None if text is None else int(text)

    @exit_code.setter
    def exit_code(self, code: int | None) -> None:
        self._set("exit-code", code)

    @property
    def event_time(self) -> int:
        """The stamp of the last event applied, seconds since the epoch; 0 before the first."""
        return int(self._get("event-time") or 0)

    @event_time.setter
    def event_time(self, timestamp: int) -> None:
        self._set("event-time", timestamp)

    @property
    def signalled(self) -> int | None:
        """When it was last suspended or resumed by us, seconds since the epoch."""
        text = self._get("signalled")
        return None if text is None else int(text)

    @signalled.setter
    def signalled(self, now: int | None) -> None:
        self._set("signalled", now)

    @property
    def queue_time(self) -> int:
        """When the batch system was asked for what its queue said last, seconds since the epoch; 0: never."""
        return int(self._get("queue-time") or 0)

    @queue_time.setter
    def queue_time(self, asked: int) -> None:
        self._set("queue-time", asked)

    @property
    def remark(self) -> str | None:
        """What the batch system says of why it waits or is held."""
        return self._get("remark")

    @remark.setter
    def remark(self, text: str | None) -> None:
        self._set("remark", text or None)

    def put_evidence(self, evidence: Evidence) -> None:
        """Keep what was seen; the same again is kept once."""
        if self.has_evidence(evidence):
            return
        parent = self.element.find("evidence")
        if parent is None:
            parent = etree.SubElement(self.element, "evidence")
        values = {"source": evidence.source, "said": evidence.said, "time": str(evidence.when)}
        seen = etree.SubElement(parent, "seen", {name: render_text(value) for name, value in values.items()})
        seen.text = render_text(evidence.verdict)
        while len(parent) > MOST_EVIDENCE:
            parent.remove(parent[0])

    def has_evidence(self, evidence: Evidence) -> bool:
        """True where the same source has said the same of the same time before."""
        wanted = (evidence.source, evidence.said, evidence.when)
        return any((known.source, known.said, known.when) == wanted for known in self.evidence())

    def evidence(self) -> list[Evidence]:
        """What was seen, in the order in which it was."""
        return [
            Evidence(str(e.get("source")), str(e.get("said")), int(e.get("time") or 0), e.text or "")
            for e in self.element.iterfind("evidence/seen")
        ]

    def put_times(self, *, started: float | None = None, ended: float | None = None) -> None:
        """Keep the times that are given, in seconds since the epoch."""
        if started is not None:
            self._set("started", render_time(started))
        if ended is not None:
            self._set("ended", render_time(ended))

    @property
    def ended(self) -> str | None:
        return self._get("ended")

    def restart(self) -> None:
        """Forget one run of the job: the batch system queued it again."""
        for name in ("started", "ended", "exit-code", "signal", "host", "cpu-time", "driver", "reason", "remark"):
            self._set(name, None)
        self._remove("phase")

    @property
    def driver(self) -> str | None:
        """How far the driver's own record goes: None, ``started`` or ``ended``."""
        return self._get("driver")

    def put_driver(self, driver: str, host: str | None, cpu_time: float | None, signal: str | None) -> None:
        """Keep what the driver says of this run; CPU time in seconds."""
        self._set("driver", driver)
        self._set("host", host)
        self._set("cpu-time", None if cpu_time is None else f"{cpu_time:.2f}")
        self._set("signal", signal)

    @property
    def unsuccessful(self) -> bool:
        """True where "done" does not mean success, as far as is known by now."""
        return self.state is State.DONE and self.reason is not None

    @property
    def succeeded(self) -> bool:
        """True where the program ended with exit code 0 and the driver's record proves that its outputs came back."""
        return self.state is State.DONE and self.exit_code == 0 and self.driver == "ended"
