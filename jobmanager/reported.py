"""What the program of a local job has told while it ran, in the local job's document: phases, and XML of its own."""

from collections.abc import Iterable
from dataclasses import dataclass

from lxml import etree

from jobmanager.documents import Document, read_time
from sandbox.status import MAX_PHASES, Phase

MOST_FOREIGN = 10
"""Elements of experiments that a document keeps; the oldest go first."""


@dataclass(frozen=True)
class ToldPhase(Phase):
    """A phase as the document keeps it; times in seconds since the epoch."""

    begun: int = 0
    changed: int = 0
    """When done or total last changed."""


class ReportedDocument(Document):
    """A document in which a program has a say."""

    @property
    def started_time(self) -> int | None:
        """When this run of it started, seconds since the epoch."""
        return self._get_time("started")

    def _get_time(self, name: str) -> int | None:
        text = self._get(name)
        return None if text is None else int(read_time(text))

    def put_phases(self, phases: Iterable[Phase], now: float) -> None:
        """Merge what was told now into what is known, by name."""
        known = {phase.name: phase for phase in self.told_phases()}
        # A phase begins when the local job last had anything else to tell.
        begun = max(self.started_time or 0, 0, *(phase.changed for phase in known.values())) or int(now)
        for phase in phases:
            before = known.get(phase.name)
            if before is None and len(known) < MAX_PHASES:
                known[phase.name] = ToldPhase(*_values(phase), min(begun, int(now)), int(now))
            elif before is not None and _values(before) != _values(phase):
                known[phase.name] = ToldPhase(*_values(phase), before.begun, int(now))
        self._remove("phase")
        for told in known.values():
            values = {"name": told.name, "done": told.done, "total": told.total, "unit": told.unit}
            times = {"begun": told.begun, "changed": told.changed}
            etree.SubElement(self.element, "phase", {name: str(value) for name, value in (values | times).items()})

    def told_phases(self) -> list[ToldPhase]:
        """The phases that were told, in the order in which they were told first."""
        return [
            ToldPhase(
                *(str(e.get("name")), int(e.get("done") or 0), int(e.get("total") or 0), str(e.get("unit") or "")),
                *(int(e.get("begun") or 0), int(e.get("changed") or 0)),
            )
            for e in self.element.iterfind("phase")
        ]

    def phases(self) -> list[Phase]:
        """The phases that were told, without their times."""
        return [Phase(*_values(phase)) for phase in self.told_phases()]

    def enter_run(self, start: int) -> None:
        """Note in which second the driver of the present run started; a new run has told no phases yet."""
        if self._get("run") not in (None, str(start)):
            self._remove("phase")
        self._set("run", start)

    def put_foreign(self, root: etree._Element) -> None:
        """Keep an element of an experiment's own namespace, in place of the one of the same name that was there."""
        foreign = [child for child in self.element.iterchildren(etree.Element) if etree.QName(child).namespace]
        for child in foreign:
            if child.tag == root.tag:
                self.element.remove(child)
                foreign.remove(child)
                break
        for child in foreign[: max(0, len(foreign) + 1 - MOST_FOREIGN)]:
            self.element.remove(child)
        self.element.append(root)


def _values(phase: Phase) -> tuple[str, int, int, str]:
    return phase.name, phase.done, phase.total, phase.unit
