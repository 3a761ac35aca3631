"""The XML document of one grid job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from adapters import Value
from batch_adapters.states import STATE_OF_WORD, State
from jobmanager.documents import put_value, read_value, render_text, render_time
from jobmanager.grid_job_parts import GridJobParts


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


class GridJob(GridJobParts):
    """One request and what became of it."""

    tag = "grid-job"

    @classmethod
    def new(cls, identity: str, job_type: str, owner: str, batch: str, submitted: float) -> "GridJob":
        """A grid job of which nothing has been submitted."""
        element = etree.Element(
            cls.tag,
            {"id": identity, "type": job_type, "state": State.UNSUBMITTED.word, "owner": render_text(owner)},
            submitted=render_time(submitted),
            batch=batch,
        )
        return cls(element)

    @property
    def identity(self) -> str:
        return str(self.element.attrib["id"])

    @property
    def job_type(self) -> str:
        return str(self.element.attrib["type"])

    @property
    def owner(self) -> str:
        return str(self.element.attrib["owner"])

    @property
    def submitted(self) -> str:
        return str(self.element.attrib["submitted"])

    @property
    def batch(self) -> str:
        return str(self.element.attrib["batch"])

    @property
    def cancelled(self) -> bool:
        """True from the moment that someone, or a failure, wants the grid job ended (its tombstone)."""
        return self._get("cancelled") is not None

    def cancel(self, now: float, reason: str) -> None:
        """Put the tombstone; the first reason stays."""
        if not self.cancelled:
            self._set("cancelled", render_time(now))
            self.reason = reason

    def end(self, state: State, now: float) -> None:
        """Put the final state; no trouble keeps the grid job from going on any more."""
        self.clear_trouble()
        self.state = state
        self._set("ended", render_time(now))

    @property
    def ended(self) -> str | None:
        return self._get("ended")

    @property
    def min_success(self) -> float:
        """The fraction of the local jobs that must succeed."""
        return float(self._get("min-success") or 1)

    @min_success.setter
    def min_success(self, fraction: float) -> None:
        self._set("min-success", fraction)

    @property
    def retries(self) -> int:
        """How often a local job that failed is submitted again."""
        return int(self._get("retries") or 0)

    @retries.setter
    def retries(self, number: int) -> None:
        self._set("retries", number or None)

    @property
    def last_token(self) -> str | None:
        """The last token of the attempts that are over: local jobs that are tried again have lost theirs."""
        return self._get("last-token")

    @last_token.setter
    def last_token(self, token: str | None) -> None:
        self._set("last-token", token)

    @property
    def repeats(self) -> str | None:
        """The grid job that this one repeats, or of which it repeats what failed."""
        return self._get("repeats")

    @repeats.setter
    def repeats(self, grid_job: str) -> None:
        self._set("repeats", grid_job)

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
    def told(self) -> State | None:
        """The state that GRAM has been told last; None where it has been told nothing."""
        gram = self.element.find("gram")
        return None if gram is None else STATE_OF_WORD.get(str(gram.get("told")))

    @property
    def told_time(self) -> int:
        """When GRAM was told, seconds since the epoch; 0: never."""
        gram = self.element.find("gram")
        return 0 if gram is None else int(gram.get("told-time") or 0)

    def put_told(self, state: State, now: float) -> None:
        """Keep what GRAM has been told."""
        self._gram().attrib.update({"told": state.word, "told-time": str(int(now))})

    def _gram(self) -> etree._Element:
        gram = self.element.find("gram")
        if gram is None:
            raise ValueError(f"{self.identity} did not come through GRAM")
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

    def put_trouble(self, text: str, now: float) -> None:
        """Say what keeps the grid job from going on; the time of the first trouble in a row stays."""
        before = self.element.find("trouble")
        since = before.get("since") if before is not None else None
        trouble = self._replace("trouble")
        trouble.set("since", since or render_time(now))
        trouble.text = render_text(text)

    def clear_trouble(self) -> bool:
        """Forget the trouble; True if there was one."""
        before = self.element.find("trouble")
        self._remove("trouble")
        return before is not None

    @property
    def trouble(self) -> str | None:
        element = self.element.find("trouble")
        return None if element is None else f"{element.text} (since {element.get('since')})"
