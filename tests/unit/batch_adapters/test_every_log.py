"""What no module of the generator does, whatever is done to its scheduler's log: raise, forge, lose, mix up jobs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_adapters.condor import events as condor
from batch_adapters.generator.emit import LineFilter
from batch_adapters.generator.module import Parser
from batch_adapters.lsf.events import LsbEvents
from batch_adapters.pbs.events import ServerLog
from batch_adapters.sge.events import GridEngineLog
from batch_adapters.slurm.events import SLURM
from tests.unit.batch_adapters.log_reading import collect_changes, read_lines
from tests.unit.batch_adapters.recordings import RECORDED
from tests.unit.batch_adapters.test_lsf_events import new, start, status

pytestmark = pytest.mark.usefixtures("utc")

NOW = 1795262400.0
_CONDOR_END = re.compile(rb"(?<=\n\.\.\.\n)|(?<=\n\}\n)|(?<=\n</c>\n)")
_CONDOR_LOGS = ("default", "JSON", "ISO_DATE+UTC+SUB_SECOND", "XML", "JSON-all", "UTC-subsec-all")


@dataclass(frozen=True)
class Log:
    """A log of whole records, and what may be mistaken for a part of it."""

    new_parser: Callable[[], Parser]
    records: list[bytes]
    job: bytes
    """Pattern of the number of a record's job; of several, the last counts."""
    lookalikes: tuple[bytes, ...] = ()
    alphabet: str = "0123456789"
    is_joined: bool = False
    """What follows the beginning of a record may be the rest of it: a user's text with line breaks."""

    @property
    def garbage(self) -> st.SearchStrategy[bytes]:
        """What may stand on a line of its own, or in one: the beginnings of records, too."""
        beginnings = st.tuples(st.sampled_from(self.records), st.integers(0, 22)).map(lambda cut: cut[0][: cut[1]])
        words = st.text(alphabet=self.alphabet, max_size=40).map(str.encode)
        others = st.sampled_from([b"", *self.lookalikes])
        return st.binary(max_size=40) | words | others | (st.nothing() if self.is_joined else beginnings)

    def job_of(self, record: bytes) -> str:
        """The number of the job that a record is of."""
        found = re.findall(self.job, record)
        return found[-1].decode() if found else ""

    @cached_property
    def whole(self) -> dict[str, str]:
        """What is read from it as it is."""
        return self.changes(b"".join(self.records))

    def changes(self, *blocks: bytes) -> dict[str, str]:
        """By job, what one parser reads from blocks, and the core lets out."""
        found = b"".join(map(self.new_parser().read_events, blocks))
        return collect_changes(LineFilter(None).read_good(found).decode("ascii").splitlines())


def lines_of(name: str) -> list[bytes]:
    return (RECORDED / name).read_bytes().splitlines(keepends=True)


CONDOR_RECORDS = [
    record
    for name in _CONDOR_LOGS
    for record in _CONDOR_END.split((RECORDED / "condor" / f"condor-EventLog-{name}.log").read_bytes())
    if record
]
LSF_RECORDS = [
    record
    for job in range(1, 8)
    for record in (new(job), start(job), status(16, job=job), status((64, 32)[job % 2], job * 256, job=job))
]
LOGS = {
    "pbs": Log(
        *(ServerLog, lines_of("pbs/pbs-server_log.events10"), rb";Job;(\d+)"),
        alphabet="0123456789/:;. JobRunExit_status=-[]@\n",
    ),
    "sge reporting": Log(
        *(GridEngineLog, lines_of("sge/sge-reporting.log"), rb"^\d+:(?:acct:(?:[^:]*:){5}|\w+:\d+:(?:[a-z]+:)?)(\d+):"),
        lookalikes=(b"1795220300:job_log:1795220300:finished:", lines_of("sge/sge-accounting.log")[-1]),
        alphabet="0123456789:joblgactNE\n",
    ),
    "sge accounting": Log(GridEngineLog, lines_of("sge/sge-accounting.log"), rb"^(?:[^:]*:){5}(\d+):", (b":" * 45,)),
    "lsf": Log(*(LsbEvents, LSF_RECORDS, rb'^"JOB_\w+" "[\d.]+" \d+ (\d+)'), alphabet='0123456789 "JOB_STATUSNEW\n#.'),
    "condor": Log(
        *(lambda: condor.EventLog(UTC, lambda: NOW), CONDOR_RECORDS),
        rb'(?:^\d{3} \(|\n  "Cluster": |\n    <a n="Cluster"><i>)0*(\d+)',
        alphabet='0123456789 .()\n{}<c>/"',
    ),
    "slurm controller": Log(
        *(SLURM.new_parser, lines_of("slurm/slurm-slurmctld-info.log"), rb"(?:JobId=|\) for )(\d+)"),
        lookalikes=(
            b"[2026-11-20T23:27:04.528] _job_comp",
            b"[2026-99-99T99:99:99.999] Requeuing JobId=7",
            b"[] Requeuing JobId=7",
            b"[Foo 41 00:00:00] Requeuing JobId=7",
            b"[2026-11-20T23:27:04.528] _job_complete: JobId=",
        ),
    ),
    "slurm completions": Log(
        *(SLURM.new_parser, lines_of("slurm/slurm-jobcomp-filetxt.log"), rb"JobId=(\d+)"),
        is_joined=True,
        lookalikes=(b"[2026-11-20T23:27:04.528] _job_complete: JobId=",),
    ),
}
every_log = pytest.mark.parametrize("name", LOGS)


@every_log
@given(data=st.data())
def test_garbage_between_records_changes_no_event(name: str, data: st.DataObject) -> None:
    log = LOGS[name]
    records = list(log.records)
    # The first line tells which kind of log it is.
    pieces = data.draw(st.lists(st.tuples(st.integers(1, len(records)), log.garbage), min_size=1, max_size=4))
    for place, text in sorted(pieces, reverse=True):
        records.insert(place, text + b"\n")
    assert log.changes(b"".join(records)) == log.whole


@every_log
@given(data=st.data())
def test_a_spoilt_record_changes_the_events_of_its_own_job_only(name: str, data: st.DataObject) -> None:
    log = LOGS[name]
    place = data.draw(st.integers(1, len(log.records) - 1))
    record = log.records[place]
    length = data.draw(st.integers(0, len(record) - 1))
    rest = data.draw(st.sampled_from([b"\n", record[length:]]))
    # No digits, which would make it another job's; nothing that another record could begin with.
    garbage = b"\x01" + data.draw(log.garbage).translate(None, b"0123456789\n") if rest != b"\n" else b""
    spoilt = [*log.records[:place], record[:length] + garbage + rest, *log.records[place + 1 :]]
    next_job = log.job_of(log.records[place + 1]) if log.is_joined and place + 1 < len(log.records) else ""
    found, expected = log.changes(b"".join(spoilt)), log.whole
    changed = {job for job in expected if found.get(job) != expected[job]}
    assert {re.split(r"\D", job)[0] for job in changed} <= {log.job_of(record), next_job}


@every_log
@given(data=st.data())
@example(data=None)
def test_a_log_gives_the_same_events_in_any_blocks(name: str, data: st.DataObject | None) -> None:
    log = LOGS[name]
    last = len(log.records)
    cuts = data.draw(st.sets(st.integers(1, last - 1), max_size=8)) if data else set(range(last))
    blocks = [b"".join(log.records[begin:end]) for begin, end in pairwise(sorted({0, last, *cuts}))]
    assert read_lines(log.new_parser(), *blocks) == read_lines(log.new_parser(), b"".join(log.records))


@every_log
@given(data=st.data())
def test_whatever_a_log_holds_each_event_is_well_formed(name: str, data: st.DataObject) -> None:
    log = LOGS[name]
    pieces = data.draw(st.lists(log.garbage | st.sampled_from(log.records), max_size=6))
    parser = log.new_parser()
    parser.read_time(b"".join(pieces))
    *lines, rest = parser.read_events(b"".join(pieces) + b"\n").split(b"\n")
    # What is no time or no id the core drops.
    assert all(re.fullmatch(rb"001;\d*;[^;]+;(?:1|2|4|8|16);-?\d{1,9}", line) for line in lines)
    assert rest == b""
