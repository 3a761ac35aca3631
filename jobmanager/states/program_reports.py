"""Reads what programs report in files while they run: lines in which their handler finds phases, and their own XML.

The driver and ``samgrid-report`` put complete files into the folder of reports. The reader first renames a file, so
that a newer one can come, and removes it when its content is in the documents.
"""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from lxml import etree

from adapters import JobAdapter
from adapters import Phase as HandlerPhase
from jobmanager.database.local_job import LocalJob
from jobmanager.requests.job_types import HANDLER_FAILURES, HandlerError, render_failure
from jobmanager.requests.time_limit import MOST_DEATHS, MOST_HANGS, HandlerHung, asking
from jobmanager.site.account import Account
from jobmanager.states.changes import put_local_jobs
from sandbox.files import kept_open, locked, open_folder, open_regular
from sandbox.status import PhaseStatus, read_phase, render_stem

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<stem>.+)\.(?:(?P<turn>[0-9]{1,15})\.xml|lines)(?P<taken>\.taken)?", re.DOTALL)
_MOST_LINES = 2 * 1024 * 1024
"""Bytes; twice as many as the driver copies."""
_MOST_REPORTS = 1000
"""Of one local job at a time: a program may write more than anybody can read."""
_AT_ONCE = 100
"""Reports that are applied in one transaction."""
LINES_TIME_LIMIT = 20.0
"""Seconds that the handler may take for the lines of one local job, even if other calls may take longer."""


def has_reports(folder: Path) -> bool:
    """True if there is something to read."""
    try:
        with os.scandir(folder) as entries:
            return any(_NAME.fullmatch(entry.name) for entry in entries)
    except OSError:  # a program may have closed or replaced the folder
        return False


def read_reports(account: Account, job_id: str) -> None:
    """Put what a grid job's programs have reported into their local jobs' documents; each report is read once.

    A report that is refused is logged, and otherwise ignored. After a kill at any instruction this can be repeated.

    :raises OSError, DatabaseError: not now.
    """
    try:
        folder = open_folder(account.places.reports(job_id))
    except FileNotFoundError:
        return
    # No other reader may remove what this one has renamed.
    with kept_open(folder), locked(account.places.reports_lock(job_id), wait=True):
        _Reader(account, job_id, folder).read_all()


@dataclass(frozen=True)
class _Report:
    """One file of the folder."""

    name: str
    """Without the suffix ``.taken``."""
    stem: str
    turn: int
    """Higher for later XML reports of a local job; 0 for lines."""
    number: int
    is_taken: bool


class _Reader:
    """Reads one grid job's reports."""

    def __init__(self, account: Account, job_id: str, folder: int) -> None:
        self._account = account
        self._job_id = job_id
        self._folder = folder
        self._adapter: JobAdapter | None = None
        self._has_hung = False

    def read_all(self) -> None:
        """Read everything, in parts; first what a reader that was killed had renamed."""
        reports = self._drop_surplus(self._find())
        for is_taken in (True, False):
            chosen = sorted((r for r in reports if r.is_taken is is_taken), key=lambda report: report.turn)
            for start in range(0, len(chosen), _AT_ONCE):
                self._read(chosen[start : start + _AT_ONCE])

    def _drop_surplus(self, reports: Iterable[_Report]) -> list[_Report]:
        """The newest reports of each local job; the rest, which would keep everybody waiting, is removed unread."""
        counts: Counter[str] = Counter()
        kept = []
        for report in sorted(reports, key=lambda report: report.turn, reverse=True):
            counts[report.stem] += report.turn > 0
            if not report.turn or counts[report.stem] <= _MOST_REPORTS:
                kept.append(report)
            else:
                self._remove(f"{report.name}.taken" if report.is_taken else report.name)
        for stem, count in counts.items():
            if count > _MOST_REPORTS:
                logger.warning(
                    "%s %s has %d reports: only the last %d are read", self._job_id, stem, count, _MOST_REPORTS
                )
        return kept

    def _find(self) -> list[_Report]:
        with os.scandir(self._folder) as entries:
            matches = [match for entry in entries if (match := _NAME.fullmatch(entry.name))]
        numbers = dict.fromkeys((match["stem"] for match in matches), 0)
        are_all_known = True
        for line in self._account.database.local_jobs.lines(self._job_id) if matches else ():
            are_all_known &= line.local_id is not None or line.state.is_final
            if line.local_id and (stem := render_stem(self._job_id, line.local_id)) in numbers:
                numbers[stem] = line.index
        found = []
        for match in matches:
            stem = match["stem"]
            if numbers[stem]:
                name, turn = match.string.removesuffix(match["taken"] or ""), int(match["turn"] or 0)
                found.append(_Report(name, stem, turn, numbers[stem], bool(match["taken"])))
            elif are_all_known:
                logger.warning("%s %r is no local job's report", self._job_id, match.string)
                self._remove(match.string)
        return found

    def _read(self, reports: Iterable[_Report]) -> None:
        taken = [report for report in reports if report.is_taken or self._take(report)]
        changes = [(report, self._read_change(report)) for report in taken]
        database = self._account.database
        with database.transaction():
            jobs = {report.number: database.local_jobs.get(self._job_id, report.number) for report in taken}
            for report, change in changes:
                # It may belong to an earlier attempt by now.
                if report.stem == render_stem(self._job_id, jobs[report.number].local_id or ""):
                    change(jobs[report.number])
            put_local_jobs(database, self._job_id, jobs.values())
        for report in taken:
            self._remove(f"{report.name}.taken")

    def _take(self, report: _Report) -> bool:
        """Rename a report; False if another reader was faster."""
        try:
            os.rename(report.name, f"{report.name}.taken", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileNotFoundError:
            return False
        return True

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            return
        except OSError as error:  # a folder: renamed, so that it is not found again
            logger.warning("%s %r: %s", self._job_id, name, error.strerror)
            os.rename(name, f"{name}.{time.time_ns()}.refused", src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def _read_change(self, report: _Report) -> Callable[[LocalJob], object]:
        """What a report changes in its local job's document."""
        try:
            if report.turn:
                root = read_foreign_xml(self._fetch(report, MOST_BYTES + 1))
                return lambda job: job.put_foreign(root)
            phases = self._ask_handler(self._fetch(report, _MOST_LINES).decode(errors="replace").split("\n"))
            now = time.time()
            return lambda job: job.put_phases(phases, now)
        except (RefusedXml, HandlerError) as error:
            words = " ".join(str(error).split())
            kind = "xml" if report.turn else "lines"
            logger.warning("%s number %d: %s report refused: %s", self._job_id, report.number, kind, words)
            return lambda job: None

    def _fetch(self, report: _Report, most: int) -> bytes:
        try:
            stream = open_regular(Path(f"{report.name}.taken"), self._folder)
        except OSError as error:
            raise RefusedXml(f"{error.strerror}") from error
        with stream:
            return stream.read(most)

    def _ask_handler(self, lines: Iterable[str]) -> list[PhaseStatus]:
        """The handler's last value for each phase in the lines."""
        # Imported here because the monitor, which only looks for reports, does not need it.
        from jobmanager.requests.request_handler import make_adapter

        asked = asking(self._account, self._job_id, "lines")
        asked = replace(asked, seconds=min(asked.seconds, LINES_TIME_LIMIT))
        if self._has_hung:
            raise HandlerError("getPhaseOfLine has hung and is not asked again now")
        if len(hangs := asked.find_hangs()) >= MOST_HANGS:
            raise HandlerError(f"getPhaseOfLine is not asked any more: {hangs[-1]}")
        if (deaths := asked.count_deaths()) >= MOST_DEATHS:
            raise HandlerError(f"getPhaseOfLine is not asked any more: its process has ended {deaths} times")
        job = self._account.database.grid_jobs.get(self._job_id)
        phases: dict[str, PhaseStatus] = {}
        try:
            with asked.limited():
                self._adapter = self._adapter or make_adapter(
                    self._account, job.request(), job.request_folder, job.job_id
                )
                for phase in filter(None, map(self._adapter.getPhaseOfLine, lines)):
                    phases[phase.name] = check_phase(phase)
        except HandlerHung as error:
            self._has_hung = True
            raise HandlerError(f"getPhaseOfLine: {error}") from error
        except HANDLER_FAILURES as error:  # an experiment's code
            raise HandlerError(f"getPhaseOfLine: {render_failure(error)}") from error
        return list(phases.values())


def check_phase(given: object) -> PhaseStatus:
    """The phase that a handler gives, if ``samgrid-report`` would accept it.

    :raises TypeError, ValueError: it is no valid phase.
    """
    if not isinstance(given, HandlerPhase):
        raise TypeError(f"{given!r} is no adapters.Phase")
    phase = read_phase(f"{given.name} {given.done} {given.total} {given.unit}".strip().encode())
    if phase is None:
        raise ValueError(f"{given} is no phase: done and total are whole numbers, and the name has no blanks")
    return phase


MOST_BYTES = 65536
"""Of one report of XML."""
_MOST_DEPTH = 64
_ID = "{http://www.w3.org/XML/1998/namespace}id"
_OF_THE_W3C = "http://www.w3.org/"


class RefusedXml(ValueError):
    """A report cannot be put into a document; the message says why."""


def read_foreign_xml(data: bytes) -> etree._Element:
    """The root element of a report.

    :raises RefusedXml: it is not well-formed, too large or too deep, has a document type, or an element that could be
        mistaken for one of ours, or by a browser for a part of a page.
    """
    if len(data) > MOST_BYTES:
        raise RefusedXml(f"longer than {MOST_BYTES} bytes")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_pis=True)
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise RefusedXml(f"not well-formed: {error}") from error
    # lxml raises only for the last fault, so a harmless one (a relative namespace) may hide a serious one before it.
    for fault in parser.error_log:
        if fault.type != etree.ErrorTypes.WAR_NS_URI_RELATIVE:
            raise RefusedXml(f"not well-formed: {fault.message}, line {fault.line}")
    if root.getroottree().docinfo.internalDTD is not None:
        raise RefusedXml("a document type is not taken")
    for element in root.iter(etree.Element):
        _check(element)
    root.tail = None
    try:
        etree.fromstring(etree.tostring(root, encoding="UTF-8"), parser)
    except etree.XMLSyntaxError as error:
        raise RefusedXml(f"cannot be read back: {error}") from error
    return root


def _check(element: etree._Element) -> None:
    namespace = etree.QName(element).namespace
    if not namespace:
        raise RefusedXml(
            f"the element {etree.QName(element).localname} is in no namespace: say xmlns=… on the first one"
        )
    if namespace.startswith(_OF_THE_W3C):
        raise RefusedXml(f"the namespace {namespace} is not the experiment's own")
    if _ID in element.attrib:
        # Another document may have the same id, and no parser would accept both together.
        raise RefusedXml("xml:id is not taken: use an attribute of another name")
    if sum(1 for _ in element.iterancestors()) >= _MOST_DEPTH:
        raise RefusedXml(f"more than {_MOST_DEPTH} elements inside each other")
