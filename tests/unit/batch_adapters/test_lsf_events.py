"""The LSF module. No log was recorded: the lines are written by hand as lsb.events(5) of LSF 9 and 10 describes them.

Where OpenLava's differ (fewer fields behind those that matter), both are tried.
"""

from pathlib import Path

import pytest

from batch_adapters.generator.module import FeedSettings, LogNotKnown
from batch_adapters.lsf import events
from batch_adapters.lsf.events import LSF, LsbEvents, find_log
from tests.unit.batch_adapters.log_reading import collect_changes, read_lines

NOW = 1795217181
USAGE = " 0.123456 0.004567 5236 0 0 0 0 12 3456 0 0 8 16 0 0 120 12 1 -1"


def new(job: int = 101, name: str = "k3f9zq2m-1", when: int = NOW) -> bytes:
    limits = " -1" * 12
    return (
        f'"JOB_NEW" "9.13" {when} {job} 1001 33816578 1 {when} 0 0 -65535 0 0 "griduser"{limits} "" 0.00 18 "normal" ""'
        f' "node1" "/home/griduser" "" "/dev/null" "out" "" "/home/griduser" "{when}.{job}" 0 "" "" "{name}"'
        ' "#!/bin/sh;exit 3" 0 "" "default" 1 "LINUX86" "/bin/sh" 131072 0 "" "" "" -1 "" "" "" "" -1 "" "" "" "" 0\n'
    ).encode()


def start(job: int = 101, index: int = 0, hosts: str = '1 "node1"', when: int = NOW) -> bytes:
    return f'"JOB_START" "9.13" {when} {job} 4 0 0 60.0 {hosts} "" "" 0 "" {index} "" 0\n'.encode()


def status(
    native: int, exit_status: int = 0, reason: int = 0, job: int = 101, index: int = 0, when: int = NOW
) -> bytes:
    usage = f"1{USAGE}" if native & 0x60 else "0"
    return (
        f'"JOB_STATUS" "9.13" {when} {job} {native} 0 0 0.1280 {when} {usage} {exit_status} {index} {reason}'
        ' 0 "" 0 0 0 0 0 0 0\n'
    ).encode()


def requeue(index: int = 0) -> bytes:
    return f'"JOB_REQUEUE" "9.13" {NOW} 101 {index}\n'.encode()


def signal(symbol: str, index: int = 0) -> bytes:
    return f'"JOB_SIGNAL" "9.13" {NOW} 101 1001 1 "{symbol}" {index} "griduser"\n'.encode()


def exception(exceptions: int, actions: int) -> bytes:
    return f'"JOB_EXCEPTION" "9.13" {NOW} 101 {exceptions} {actions} 0 0 0\n'.encode()


def read_events(*blocks: bytes) -> list[str]:
    return read_lines(LSF.new_parser(), *blocks)


def read_changes(*blocks: bytes) -> dict[str, str]:
    lines = read_events(*blocks)
    assert all(line.startswith(f"001;{NOW};") for line in lines)
    return collect_changes(lines)


DONE, EXIT, RUN, PEND = 64, 32, 4, 1


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        pytest.param(status(DONE), "1 2 8/0", id="exit 0"),
        pytest.param(status(EXIT, 3 << 8), "1 2 8/3", id="exit 3"),
        pytest.param(status(EXIT, 255 << 8), "1 2 8/255", id="exit 255"),
        pytest.param(status(EXIT, 9), "1 2 8/137", id="kill -9 in the script"),
        pytest.param(status(EXIT, 11 | 0x80), "1 2 8/139", id="segmentation fault with a core"),
        pytest.param(status(EXIT, 15, 17), "1 2 8/143", id="TERM_EXTERNAL_SIGNAL"),
        pytest.param(status(EXIT, 130 << 8, 14), "1 2 4/130", id="TERM_OWNER"),
        pytest.param(status(EXIT, 140 << 8, 5), "1 2 4/140", id="TERM_RUNLIMIT"),
        pytest.param(status(EXIT, 0, 19), "1 2 4/0", id="TERM_ZOMBIE: the host is lost"),
        pytest.param(status(EXIT, 0), "1 2 4/0", id="EXIT without an exit code is no success"),
        pytest.param(status(EXIT, -1, 14), "1 2 4/255", id="no exit status"),
        pytest.param(status(DONE) + status(DONE | 0x80), "1 2 8/0 8/0", id="post-processing done"),
        pytest.param(status(DONE) + status(DONE | 0x100), "1 2 8/0 8/0", id="post-processing failed"),
        pytest.param(status(16) + status(RUN), "1 2 16 2", id="bstop, bresume"),
        pytest.param(status(8) + status(RUN), "1 2 16 2", id="suspended by LSF"),
        pytest.param(status(0x10000) + status(RUN), "1 2 2", id="host does not answer for a while"),
        pytest.param(status(0x10000 | RUN) + status(DONE), "1 2 8/0", id="host does not answer, job ends"),
        pytest.param(status(0x200), "1 2 1", id="chunk job waits"),
        pytest.param(status(0), "1 2", id="no state"),
        pytest.param(status(0x80), "1 2", id="post-processing bit alone"),
        pytest.param(status(PEND) + start(), "1 2 1 2", id="requeued by the queue's REQUEUE_EXIT_VALUES"),
        pytest.param(status(EXIT, 768) + requeue() + start(), "1 2 8/3 1 2", id="brequeue after the end"),
        pytest.param(signal("KILL") + status(EXIT, 2), "1 2 4/130", id="bkill, no exitInfo"),
        pytest.param(signal("DELETEJOB") + status(EXIT, 9), "1 2 4/137", id="bdel, no exitInfo"),
        pytest.param(signal("TERM") + status(EXIT, 15), "1 2 8/143", id="bkill -s TERM is no cancellation"),
        pytest.param(signal("KILL") + requeue() + start() + status(EXIT, 768), "1 2 1 2 8/3", id="kill, then requeue"),
        pytest.param(signal("KILL") + new() + status(EXIT, 768), "1 2 1 8/3", id="an id used again"),
        pytest.param(signal("KILL") + status(DONE), "1 2 8/0", id="bkill came too late"),
        pytest.param(exception(0x20, 2) + status(EXIT, 768), "1 2 4/3", id="exception hostfail"),
        pytest.param(exception(0x02, 1) + status(EXIT, 2), "1 2 4/130", id="exception overrun, action kill"),
        pytest.param(exception(0x08, 2) + status(EXIT, 768), "1 2 8/3", id="exception abend is the job's doing"),
        pytest.param(
            exception(0x40, 2).replace(b"EXCEPTION", b"EXCEPT") + status(EXIT, 768), "1 2 4/3", id="JOB_EXCEPT"
        ),
        pytest.param(
            f'"JOB_START_ACCEPT" "9.13" {NOW} 101 4711 4711 0\n'
            f'"JOB_EXECUTE" "9.13" {NOW} 101 1001 4711 "/" "/" "u" 4711 0 "" -1 "" 0\n'
            f'"JOB_FORCE" "9.13" {NOW} 101 1001 0 1 1 "node1" "root"\n'
            f'"JOB_MOVE" "9.13" {NOW} 1001 101 1 1 0 "root"\n'
            f'"JOB_SWITCH" "9.13" {NOW} 1001 101 "short" 0 "root"\n'
            f'"JOB_MODIFY2" "9.13" {NOW} "101" 0 0 0 1001 "u"\n'
            f'"JOB_CLEAN" "9.13" {NOW} 101 0\n'
            f'"LOAD_INDEX" "9.13" {NOW} 2 "r15s" "r1m"\n'.encode(),
            "1 2",
            id="records that change no state",
        ),
    ],
)
def test_what_follows_a_start_gives_the_events_of_its_case(block: bytes, changes: str) -> None:
    assert read_changes(new() + start() + block) == {"101": changes}


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        pytest.param(new() + signal("KILL") + status(EXIT, 0, 14), {"101": "1 4/0"}, id="bkill pending"),
        pytest.param(new() + exception(0x10, 2), {"101": "1 4/0"}, id="it can never run, and nothing else will tell"),
        pytest.param(
            new() + exception(0x10, 0) + start() + status(EXIT, 768), {"101": "1 4/0 1 2 8/3"}, id="it runs after all"
        ),
        pytest.param(new() + exception(0x10, 1) + status(EXIT), {"101": "1 4/0"}, id="it can never run and is killed"),
        pytest.param(new() + exception(0x10, 4) + requeue(), {"101": "1 1"}, id="it cannot run and is queued again"),
        pytest.param(new() + status(2) + status(PEND), {"101": "1 16 1"}, id="bstop pending, bresume"),
        pytest.param(new() + start(hosts='3 "n1" "n""2" "8*n3"'), {"101": "1 2"}, id="several hosts"),
        pytest.param(new(name='a""b\n""JOB_STATUS"" ""9"" 1 5 64') + start(), {"101": "1 2"}, id="quotes, line breaks"),
        pytest.param(
            new(name="arr[1-3]") + start(index=1) + status(EXIT, 768, index=1) + start(index=3) + requeue(3),
            {"101": "1", "101[1]": "2 8/3", "101[3]": "2 1"},
            id="array",
        ),
        pytest.param(
            start(index=1) + start(index=2) + signal("KILL", 2) + status(EXIT, 2, index=2) + status(EXIT, 2, index=1),
            {"101[1]": "2 8/130", "101[2]": "2 4/130"},
            id="bkill of one element",
        ),
        pytest.param(
            start(index=1) + signal("KILL") + status(EXIT, 2, index=1), {"101[1]": "2 4/130"}, id="bkill of an array"
        ),
    ],
)
def test_other_cases(block: bytes, changes: dict[str, str]) -> None:
    assert read_changes(block) == changes


def test_openlava_has_neither_user_group_nor_exit_info() -> None:
    block = (
        f'"JOB_START" "30" {NOW} 7 4 0 0 100.0 1 "zos" "" "" 0 3\n'
        f'"JOB_STATUS" "30" {NOW} 7 32 0 0 0.0000 {NOW} 1{USAGE} 768 3\n'
        f'"JOB_STATUS" "30" {NOW} 8 16 0 0 0.0000 0 0 0 0\n'
    )
    assert read_changes(block.encode()) == {"7[3]": "2 8/3", "8": "16"}


def test_an_event_is_a_line_with_the_records_time_and_the_id_of_bsub() -> None:
    block = b"#80\n" + new(when=5) + start(when=6, index=2) + status(EXIT, 768, index=2, when=7)
    assert read_events(block) == ["001;5;101;1;0", "001;6;101[2];2;0", "001;7;101[2];8;3"]


@pytest.mark.parametrize(
    "block",
    [
        new(name="x").replace(b'"x"', f'"x\n{status(DONE).decode()}"'.replace('"', '""').encode())[
            len(new(name="x")) :
        ],
        b" " + status(DONE),
        b'""JOB_STATUS"" ' + status(DONE)[13:],
        status(DONE).replace(b" 64 ", b" -64 "),
        status(DONE).replace(USAGE.encode(), b" 1 2"),
        status(DONE)[:60] + b"\n",
        start().replace(b'"node1"', b'"node1'),
        b'"JOB_NEWS" "9" 1 5 6\n',
        b'"JOB_NEW" "9" 12345678901 5 6\n',
        b'"JOB_NEW" "9" 1 5x 6\n',
        b'"JOB_REQUEUE" "9" 1 5 x\n',
    ],
)
def test_text_that_is_no_record_gives_no_event(block: bytes) -> None:
    assert read_events(b'"\n' + block) == []


def test_a_torn_record_takes_no_field_from_the_lines_behind_it() -> None:
    torn = status(DONE, job=7)
    assert read_changes(torn[: torn.index(b" 0.004567")] + b"\n" + requeue() * 6) == {"101": "1 1 1 1 1 1"}


@pytest.mark.parametrize("rest", [b"", b"\n", b'"\n'])
def test_a_job_name_with_line_breaks_forges_no_event(rest: bytes) -> None:
    forged = (b"\n" + status(DONE, job=5) + start(5) + rest).replace(b'"', b'""')
    assert read_events(new(name="NAME").replace(b"NAME", forged)) == [f"001;{NOW};101;1;0"]


# A switch of the log: mbatchd's new file begins with copies of jobs that it still knows, in their old order.
BEFORE = [new(1, when=100), start(1, when=110), new(2, when=120), status(DONE, job=1, when=130), new(3, when=130)]
COPIES = [BEFORE[0], BEFORE[1], BEFORE[2], BEFORE[3], BEFORE[4]]
AFTER = [
    b'"QUEUE_CTRL" "9.13" 50 1 "normal" 0 "root" ""\n',
    b'"LOG_SWITCH" "9.13" 131 4\n',
    start(2, when=131),
    status(DONE, job=2, when=140),
]


def switched(copies: list[bytes], after: list[bytes]) -> bytes:
    """The new lsb.events; the first line has a fixed length and ends in blanks."""
    return b"#%-37d\n" % (39 + sum(map(len, copies))) + b"".join(copies + after)


OLD_EVENTS = read_events(b"".join(BEFORE))
NEW_EVENTS = ["001;131;2;2;0", "001;140;2;8;0"]


@pytest.mark.parametrize(
    "files",
    [
        pytest.param([switched(COPIES, AFTER)], id="all is copied"),
        pytest.param([switched([BEFORE[2]], AFTER)], id="the last record is not copied"),
        pytest.param([switched([], AFTER)], id="nothing is copied"),
        pytest.param([switched(COPIES, []), b"".join(AFTER)], id="in two blocks"),
        pytest.param([b"#1795217181   \n" + b"".join(BEFORE), switched(COPIES, AFTER)], id="lsb.events.1 appears too"),
        pytest.param(
            [b"#1795217181    \n" + b"".join(BEFORE + AFTER), switched([BEFORE[4], *AFTER], [])],
            id="two switches: the rest is in lsb.events.1",
        ),
        pytest.param(
            [b"# 1795217181\n" + b"".join(BEFORE[:3]), b"".join(BEFORE[3:] + AFTER[2:])],
            id="the last record read is in the second block",
        ),
    ],
)
def test_a_switched_log_tells_nothing_twice(files: list[bytes]) -> None:
    assert read_events(b"#80\n" + b"".join(BEFORE), *files) == OLD_EVENTS + NEW_EVENTS


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(record[:length] + b"\n", id=f"{name} to byte {length}")
        for name, record in {
            "the next second": AFTER[2],
            "the same second": start(3, when=130),
            "an id that is no more": new(4, when=130),
        }.items()
        for length in (1, 6, 11, 12, 20, 22, 25, 40, len(record) - 9)
    ],
)
@pytest.mark.parametrize("copies", [COPIES, COPIES[2:], COPIES[2:3], []], ids=["all", "three", "one", "none"])
def test_a_torn_record_before_a_switch_neither_hides_nor_doubles_others(torn: bytes, copies: list[bytes]) -> None:
    before = b"#80\n" + b"".join(BEFORE) + torn
    assert read_events(before, switched(copies, AFTER)) == read_events(before) + NEW_EVENTS


@pytest.mark.parametrize("edge", range(1, 6))
def test_copies_in_two_blocks_are_passed_over_after_a_torn_record(edge: int) -> None:
    header, *records = switched(COPIES, AFTER).splitlines(keepends=True)
    before = b"#80\n" + b"".join(BEFORE) + start(3, when=130)[:30] + b"\n"
    found = read_events(before, header + b"".join(records[:edge]), b"".join(records[edge:]))
    assert found == OLD_EVENTS + NEW_EVENTS


def test_switched_files_read_from_the_oldest_on_lose_nothing() -> None:
    oldest = [b"#1795217180\n" + b"".join(BEFORE[:4]), b"#1795217181\n" + b"".join(BEFORE[4:])]
    assert read_events(*oldest, switched([], AFTER)) == OLD_EVENTS + NEW_EVENTS
    assert read_events(*oldest, switched(COPIES[2:], AFTER)) == OLD_EVENTS + NEW_EVENTS


@pytest.mark.parametrize("edge", [0, 1, 3])
def test_a_clock_that_was_ahead_silences_only_copies(edge: int) -> None:
    late = new(9, when=999_999)
    header, *records = switched(COPIES[:3], AFTER).splitlines(keepends=True)
    files = [header + b"".join(records[:edge]), b"".join(records[edge:])]
    found = read_events(b"#80\n" + b"".join(BEFORE) + late, *files)
    assert found == [*OLD_EVENTS, "001;999999;9;1;0", *NEW_EVENTS]


def test_a_job_name_like_a_first_line_silences_nothing() -> None:
    forger = new(9, name="x\n#999999999\n", when=7)
    assert read_events(new(8, when=999_999), forger + start(9, when=7))[1:] == ["001;7;9;1;0", "001;7;9;2;0"]


def test_a_log_that_mbatchd_switches_while_it_is_followed_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "lsb.events"
    log.write_bytes(b"#80\n")
    feed = LSF.open_feed(FeedSettings(log=tmp_path, since=1, environment={}))
    found = [b"".join(feed.read_events(True))]
    with log.open("ab") as writer:
        writer.writelines(BEFORE)
    found.append(b"".join(feed.read_events(False)))
    (tmp_path / "lsb.events.0").write_bytes(b"#1795217181        \n" + b"".join(BEFORE))
    (tmp_path / "lsb.events.tmp").write_bytes(switched(COPIES, []))
    (tmp_path / "lsb.events.tmp").rename(log)
    found.append(b"".join(feed.read_events(True)))
    (tmp_path / "lsb.events.0").rename(tmp_path / "lsb.events.1")
    with log.open("ab") as writer:
        writer.writelines(AFTER)
    found.append(b"".join(feed.read_events(True)))
    assert [block.decode().splitlines() for block in found] == [[], OLD_EVENTS, [], NEW_EVENTS]


@pytest.mark.parametrize(
    ("block", "time"),
    [
        (b"", None),
        (b"#80\n", None),
        (b"rest of a record\n" + start(when=7) + start(when=9), 7),
        (b'"HOST_CTRL" "9.13" 5 1 "node1" 0 "root"\n' + start(when=7), 7),
        (b"#1795217181      \n" + b"".join(BEFORE), 100),
        (switched(COPIES, AFTER), 131),
        (switched(COPIES, []), None),
        (switched(COPIES, AFTER)[:150], None),
    ],
)
def test_a_block_begins_at_the_time_of_its_first_record_that_is_no_copy(block: bytes, time: int | None) -> None:
    assert LSF.new_parser().read_time(block) == time


def test_what_is_remembered_is_bounded_and_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_KILLED", 10)
    parser = LsbEvents()
    for number in range(100):
        parser.read_events(signal("KILL", number))
        assert len(parser._killed) <= 10
        assert parser.read_events(status(EXIT, 2, index=number)).endswith(b";4;130\n")


def test_the_log_is_that_of_the_only_cluster_below_lsb_sharedir(tmp_path: Path) -> None:
    (tmp_path / "one" / "logdir").mkdir(parents=True)
    (tmp_path / "lsf.conf").write_text(f'# LSB_SHAREDIR=/no\nLSF_TOP=/x\nLSB_SHAREDIR="{tmp_path}"\n')
    log = tmp_path / "one" / "logdir" / "lsb.events"
    assert find_log({"LSF_ENVDIR": str(tmp_path)}) == log
    assert find_log({"LSB_SHAREDIR": str(tmp_path), "LSF_ENVDIR": "/no"}) == log
    (tmp_path / "openlava" / "work" / "logdir").mkdir(parents=True)
    openlava = {"LSB_SHAREDIR": str(tmp_path / "openlava" / "work")}
    assert find_log(openlava) == tmp_path / "openlava" / "work" / "logdir" / "lsb.events"
    (tmp_path / "two" / "logdir").mkdir(parents=True)
    with pytest.raises(LogNotKnown, match="2 clusters"):
        find_log({"LSB_SHAREDIR": str(tmp_path)})
    with pytest.raises(LogNotKnown, match="LSB_SHAREDIR"):
        find_log({"LSF_ENVDIR": "/no"})
