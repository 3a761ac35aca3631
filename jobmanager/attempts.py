"""The attempts at a local job's slice, in its document."""

from dataclasses import dataclass
from typing import Self

from lxml import etree

from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.documents import Document


@dataclass(frozen=True)
class Attempt:
    """An earlier attempt at a local job's slice, which failed."""

    number: int
    local_id: str
    token: str
    state: State
    exit_code: int | None
    reason: str
    host: str


class AttemptedDocument(Document):
    """A document whose attributes are of the present attempt; earlier ones are kept beside them."""

    def begin_again(self) -> None:
        """Become a new attempt at the same slice, not submitted; of the old one the attributes are kept."""
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
        """Which attempt this is, from 1."""
        return len(self.element.findall("attempt")) + 1

    def past(self) -> list[Self]:
        """The attempts before this one as they ended, in their order; of each its attributes only."""
        return [type(self)(element) for element in self.element.iterfind("attempt")]

    def earlier_attempts(self) -> list[Attempt]:
        """The attempts before this one, in their order."""
        return [
            Attempt(
                int(e.get("number") or 0),
                str(e.get("id") or ""),
                str(e.get("token") or ""),
                STATE_OF_WORD[str(e.get("state"))],
                None if e.get("exit-code") is None else int(str(e.get("exit-code"))),
                str(e.get("reason") or ""),
                str(e.get("host") or ""),
            )
            for e in self.element.iterfind("attempt")
        ]
