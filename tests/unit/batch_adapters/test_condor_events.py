"""HTCondor's event log: what every record means, in every format, and what users' text and damage cannot do."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from batch_adapters.condor.answers import REMOVED_ITSELF
from batch_adapters.condor.events import CONDOR, EventLog, find_log, read_deletions
from batch_adapters.generator.module import FeedSettings, LogNotKnown
from batch_adapters.states import Cause
from tests.unit.batch_adapters.log_reading import collect_changes

RECORDED = Path(__file__).parents[2] / "recorded" / "condor"
CLASSIC = (RECORDED / "condor-EventLog-classic.log").read_bytes()
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
_END = re.compile(rb"(?<=\n\.\.\.\n)|(?<=\n\}\n)|(?<=\n</c>\n)")


def read(log: bytes, zone: tzinfo = UTC) -> str:
    return EventLog(zone, lambda: NOW).read_events(log).decode()


def read_histories(log: bytes) -> dict[str, str]:
    return collect_changes(read(log).splitlines())


def split_records(log: bytes) -> list[bytes]:
    return [record for record in _END.split(log) if record]


RECORDS = {
    # how a record of the log begins → second, job, state and exit code of its event
    "000 (002.": "1795218756;2.0;1;0",
    "001 (011.001": "1795218778;11.1;2;0",
    "005 (002.": "1795218758;2.0;8;0",
    "005 (011.002": "1795218778;11.2;8;7",
    "005 (005.": "1795218761;5.0;8;137",
    "009 (006.": "1795218762;6.0;4;0",
    "004 (008.": "1795218764;8.0;1;0",
    "012 (009.": "1795218767;9.0;16;0",
    "013 (009.": "1795218767;9.0;1;0",
    "010 (010.": "1795218773;10.0;16;0",
    "011 (010.": "1795218775;10.0;2;0",
    # disconnected, reconnected, reconnection failed
    "022 (024.": "",
    "023 (024.": "1795218877;24.0;2;0",
    "024 (027.": "1795219066;27.0;1;0",
    # image size; an error of the starter's, which a hold follows; of a cluster; the file's own header
    **dict.fromkeys(["006 (003.", "021 (015.", "035 (012.-01", "036 (012.-01", "008 (-01."], ""),
}


@pytest.mark.parametrize("begin", RECORDS)
def test_each_kind_of_record_gives_its_event(begin: str) -> None:
    record = next(record for record in split_records(CLASSIC) if record.startswith(begin.encode()))
    assert read(record) == (f"001;{RECORDS[begin]}\n" if RECORDS[begin] else "")


@pytest.mark.parametrize(
    ("record", "event"),
    [
        pytest.param(
            b"007 (027.000.000) 11/20 23:57:46 Shadow exception!\n\tError from starter\n...\n",
            "001;1795219066;27.0;1;0\n",
            id="shadow exception",
        ),
        pytest.param(
            b"004 (3236.000.000) 2026-03-28 19:28:07 Job was evicted.\n\t(0) Job terminated and was requeued\n"
            b"\t(1) Normal termination (return value 3)\n...\n",
            "001;1774726087;3236.0;1;0\n",
            id="terminated and requeued is no end",
        ),
        pytest.param(
            b"000 (012.-01.000) 2026-11-20 23:52:59 Job submitted from host: <>\n...\n", "", id="no job has process -1"
        ),
        pytest.param(
            b"001 (5.0.0) 2026-11-20 23:52:59 Job executing\n...\n", "001;1795218779;5.0;2;0\n", id="unpadded"
        ),
        pytest.param(
            b"001 (12345678.1000.000) 2026-11-20 23:52:59 Job executing\n...\n",
            "001;1795218779;12345678.1000;2;0\n",
            id="long ids",
        ),
        pytest.param(b"005 (002.000.000) 2026-11-20 23:52:38 Job terminated.\n...\n", "", id="torn before the outcome"),
        pytest.param(b"0000 (002.000.000) 2026-11-20 23:52:38 Job submitted\n...\n", "", id="number too long"),
    ],
)
def test_records_that_the_recordings_lack(record: bytes, event: str) -> None:
    assert read(record) == event


def record(number: int, text: str) -> bytes:
    return f"{number:03} (009.000.000) 2026-11-20 23:52:59 {text}\n...\n".encode()


NOT_EXECUTABLE = record(2, "(0) Job file not executable.")
ADS = {
    "classic": NOT_EXECUTABLE,
    "JSON": b'{\n  "EventTypeNumber": 2,\n  "EventTime": "2026-11-20T23:52:59",\n  "Cluster": 9,\n  "Proc": 0\n}\n',
}


@pytest.mark.parametrize("form", ADS)
@pytest.mark.parametrize(
    ("later", "changes"),
    [
        pytest.param(b"", "4/0", id="nothing else tells of its end"),
        pytest.param(record(12, "Job was held."), "4/0 1 16", id="held"),
        pytest.param(record(7, "Shadow exception!") + record(1, "Job executing"), "4/0 1 1 2", id="queued again"),
        pytest.param(record(9, "Job was aborted."), "4/0 4/0", id="removed"),
    ],
)
def test_a_job_that_is_not_executable_has_failed_unless_more_comes_of_it(form: str, later: bytes, changes: str) -> None:
    assert read_histories(ADS[form] + later) == {"9.0": changes}


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("11/20 23:58:22", 1795215502),
        ("11/20 23:58:22.172", 1795215502),
        ("11/20 23:58:22Z", 1795219102),
        ("11/20 23:58:22.172Z", 1795219102),
        ("12/20 23:58:22", 1766271502),
        ("2026-11-20 23:58:22", 1795215502),
        ("2026-11-20 23:58:22.172", 1795215502),
        ("2026-11-20 23:58:22Z", 1795219102),
        ("2026-11-20 23:58:22.172Z", 1795219102),
        ("2026-11-20T23:58:22.172Z", 1795219102),
        ("2026-07-20 23:58:22", 1784584702),
    ],
)
def test_every_form_of_the_time_is_the_right_second(stamp: str, seconds: int) -> None:
    record = f"001 (028.000.000) {stamp} Job executing on host: <>\n...\n".encode()
    assert read(record, ZoneInfo("Europe/Berlin")) == f"001;{seconds};28.0;2;0\n"
    assert EventLog(ZoneInfo("Europe/Berlin"), lambda: NOW).read_time(record) == seconds


@pytest.mark.parametrize("stamp", ["2026-11-31 00:00:00", "13/01 00:00:00", "2026-11-20 ::::::::"])
def test_an_impossible_time_is_left_for_the_core_to_drop(stamp: str) -> None:
    record = f"001 (028.000.000) {stamp} Job executing on host: <>\n...\n".encode()
    assert read(record) == "001;;28.0;2;0\n"
    assert EventLog(UTC).read_time(record) is None


@pytest.mark.parametrize(
    ("recording", "first", "seconds"),
    [
        ("default", 28, (1795219102, 1795219102, 1795219102, 1795219103)),
        ("ISO_DATE+UTC+SUB_SECOND", 31, (1795219107, 1795219107, 1795219107, 1795219107)),
        ("JSON", 34, (1795219112, 1795219112, 1795219112, 1795219113)),
        ("JSON+SUB_SECOND+UTC", 37, (1795219117, 1795219117, 1795219117, 1795219118)),
        ("XML", 40, (1795219122, 1795219122, 1795219122, 1795219123)),
        ("XML+SUB_SECOND", 43, (1795219127, 1795219127, 1795219127, 1795219128)),
    ],
)
def test_every_format_tells_of_the_same_jobs(recording: str, first: int, seconds: tuple[int, ...]) -> None:
    log = (RECORDED / f"condor-EventLog-{recording}.log").read_bytes()
    assert read_histories(log) == {f"{first}.0": "1 2 8/3", f"{first + 1}.0": "1 4/0", f"{first + 2}.0": "1 4/0"}
    assert tuple(int(line.split(";")[1]) for line in read(log).splitlines()[:4]) == seconds
    assert EventLog(UTC, lambda: NOW).read_time(log) == seconds[0]


SCENARIOS: Mapping[tuple[int, int], str] = {
    (2, 0): "1 2 8/0",
    (3, 0): "1 2 8/3",
    (4, 0): "1 2 8/2",
    (5, 0): "1 2 8/137",
    (6, 0): "1 4/0",  # removed while held from the start
    (7, 0): "1 4/0",  # removed while idle
    (8, 0): "1 2 1 4/0",  # removed while running
    (9, 0): "1 2 1 16 1 2 8/0",  # held while running, released
    (10, 0): "1 2 16 2 8/0",  # suspended, resumed
    (11, 0): "1 2 8/0",
    (11, 1): "1 2 8/0",
    (11, 2): "1 2 8/7",
    (11, 3): "1 2 1 4/0",
    (12, 0): "1 2 8/0",  # late materialization
    (12, 1): "1 2 8/0",
    (12, 2): "1 2 8/0",
    (12, 3): "1 2 8/0",
    (13, 0): "1 2 1 2 8/0",  # vacated
    (15, 0): "1 2 1 16 4/0",  # executable missing: evicted, held; then removed
    (16, 0): "1 2 1 16 4/0",
    (17, 0): "1 1 16 4/0",  # output not writable: never ran
}


@pytest.mark.parametrize(
    ("recording", "shift"), [("classic", 0), ("JSON-all", 2), ("UTC-subsec-all", 18)], ids=lambda value: str(value)
)
def test_the_same_scenarios_give_the_same_histories_in_every_format(recording: str, shift: int) -> None:
    histories = read_histories((RECORDED / f"condor-EventLog-{recording}.log").read_bytes())
    expected = {f"{cluster + shift}.{proc}": history for (cluster, proc), history in SCENARIOS.items()}
    assert {local_id: histories.get(local_id) for local_id in expected} == expected
    assert len(histories) == len(expected) or recording == "classic"


def test_what_daemons_lose_is_in_the_histories() -> None:
    histories = read_histories(CLASSIC)
    assert histories["24.0"] == "1 2 2 8/5", "schedd killed before the first 001: 022, 023, 001"
    assert histories["25.0"] == "1 2 2 8/4", "shadow killed: two 001 in a row"
    assert histories["27.0"] == "1 2 1 1 2 8/4", "node lost: 022, 024, 004, 001"
    transcript = (RECORDED / "condor-down.txt").read_bytes()
    assert read_histories(transcript)["47.0"] == "1 2 1 1 2 8/4", "starter killed: 022, 024, 004, 001"


def test_ends_agree_with_condor_history() -> None:
    transcript = (RECORDED / "condor-scenarios.txt").read_text()
    terminated = re.findall(r"^1> (\d+) (\d+) 4 (\d+|undefined) (?:true|false) (\d+|undefined)$", transcript, re.M)
    removed = re.findall(r"^1> (\d+) (\d+) 3 undefined", transcript, re.M)
    ends = {local_id: history.split()[-1] for local_id, history in read_histories(CLASSIC).items()}
    for cluster, proc, code, signal in terminated:
        assert ends[f"{cluster}.{proc}"] == f"8/{code if signal == 'undefined' else 128 + int(signal)}"
    for cluster, proc in removed:
        assert ends[f"{cluster}.{proc}"] == "4/0"
    assert len(terminated) == 3
    assert len(removed) == 3


@pytest.mark.parametrize(
    ("recording", "removed"),
    [
        ("default", {"29.0", "30.0"}),
        ("JSON", {"35.0", "36.0"}),
        ("JSON+SUB_SECOND+UTC", {"38.0", "39.0"}),
        ("XML", {"41.0", "42.0"}),
    ],
)
def test_the_log_says_who_removed_what(recording: str, removed: set[str]) -> None:
    log = (RECORDED / f"condor-EventLog-{recording}.log").read_bytes()
    assert dict(read_deletions(log)) == {job.encode(): b"griduser" for job in removed}


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("Job was aborted.\n\tenough! (by user bob) (by user ann@site.org)", [(b"9.0", b"ann")]),
        ("Job was aborted.\n\tThe system macro SYSTEM_PERIODIC_REMOVE expression 'x' evaluated to TRUE", []),
        ("Job was aborted.", []),
        (f"Job was aborted.\n\t{REMOVED_ITSELF}> 60) =?= true' evaluated to TRUE", [(b"9.0", Cause.TIME_LIMIT)]),
    ],
)
def test_whoever_removed_a_job_comes_after_the_reason(text: str, by: list[tuple[bytes, bytes | Cause]]) -> None:
    held = record(12, "Job was held.\n\tvia condor_hold (by user root)")
    assert list(read_deletions(record(9, text) + held)) == by


def test_rotated_files_are_one_log(tmp_path: Path) -> None:
    for name in ("EventLog", "EventLog.1", "EventLog.2"):
        (tmp_path / name).write_bytes((RECORDED / f"condor-rotation-{name}").read_bytes())
    feed = CONDOR.open_feed(FeedSettings(log=tmp_path, since=1, environment={}))
    events = b"".join(feed.read_events(look_for_files=True)).decode().splitlines()
    states: dict[str, list[str]] = {}
    for event in events:
        states.setdefault(event.split(";")[2], []).append(event.split(";")[3])
    assert states == {f"46.{proc}": ["1", "2", "8"] for proc in range(12)}


MIXED = b"".join(
    (RECORDED / f"condor-EventLog-{name}.log").read_bytes()
    for name in ("default", "JSON", "ISO_DATE+UTC+SUB_SECOND", "XML", "UTC-subsec-all")
)


def test_a_log_may_change_its_format_in_the_middle() -> None:
    parts = split_records(MIXED)
    assert read(MIXED) == "".join(map(read, parts))
    assert [line.split(";")[2] for line in read(MIXED).splitlines() if line.split(";")[3] in ("4", "8")][:12] == [
        f"{cluster}.0" for cluster in (28, 29, 30, 34, 35, 36, 31, 32, 33, 40, 41, 42)
    ]


@pytest.mark.parametrize("name", ["default", "JSON", "XML"])
def test_a_followed_log_gives_every_whole_record_in_every_format(tmp_path: Path, name: str) -> None:
    log = MIXED + (RECORDED / f"condor-EventLog-{name}.log").read_bytes()
    (tmp_path / "u.log").write_bytes(log + b"001 (999.000.000) 2026-11-21 00:35:00Z Job exec")
    feed = CONDOR.open_feed(FeedSettings(log=tmp_path / "u.log", since=1, environment={}))
    assert b"".join(feed.read_events(look_for_files=True)).count(b"\n") == read(log).count("\n")


@pytest.mark.parametrize("recording", ["classic", "JSON-all", "XML"])
def test_the_time_of_a_block_is_that_of_its_first_whole_header(recording: str) -> None:
    log = (RECORDED / f"condor-EventLog-{recording}.log").read_bytes()
    records = split_records(log)
    first = next(at for at, record in enumerate(records) if read(record))
    seconds = int(read(records[first]).split(";")[1])
    torn = b"e\n  \x00\n"
    assert EventLog(UTC, lambda: NOW).read_time(torn + b"".join(records[first:])) == seconds
    assert EventLog(UTC).read_time(torn) is None


def test_recorded_attempts_to_forge_give_no_event() -> None:
    transcript = (RECORDED / "user-text-in-logs.txt").read_bytes()
    log = transcript.partition(b"HTCondor: user-controlled")[2].partition(b"--- EventLog:\n")[2].partition(b"\n===")[0]
    assert b"005 (998.000.000)" in log
    assert read_histories(log) == {"1.0": "1 2 8/0", "2.0": "1 2 1 16 4/0", "3.0": "1 2 1 4/0"}


FORGED = (
    "\n...\n005 (998.000.000) 2026-01-01 00:00:00 Job terminated.\n\t(1) Normal termination (return value 0)\n...\n"
)
FORGED_XML = '\n</c>\n<c>\n    <a n="Cluster"><i>998</i></a>\n    <a n="Proc"><i>0</i></a>\n'


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            b"000 (002.000.000) 2026-11-20 23:52:36 Job submitted from host: <>\n"
            b"    009 (998.000.000) 2026-11-20 23:52:36 Job was aborted.\n...\n",
            id="a note like a record",
        ),
        pytest.param(
            b"000 (002.000.000) 2026-11-20 23:52:36 Job terminated.|\t(1) Normal termination (return value 5)\n...\n",
            id="text behind the header",
        ),
        pytest.param(
            json.dumps(
                {
                    "Proc": 0,
                    "LogNotes": FORGED + '\n  "Cluster": 998,\n  "EventTypeNumber": 5,\n  "ReturnValue": 0,\n}\n',
                    "Cluster": 2,
                    "EventTime": "2026-11-20T23:52:36",
                    "EventTypeNumber": 0,
                    "ExecuteProps": {"Cluster": 998, "EventTypeNumber": 5, "ReturnValue": 0},
                },
                indent=2,
            ).encode()
            + b"\n",
            id="a JSON string, and an inner ad",
        ),
        pytest.param(
            b'<c>\n    <a n="Proc"><i>0</i></a>\n    <a n="Cluster"><i>2</i></a>\n    <a n="LogNotes"><s>'
            + (FORGED + FORGED_XML + '  "Cluster": 998,').replace("<", "&lt;").replace(">", "&gt;").encode()
            + b'</s></a>\n    <a n="EventTime"><s>2026-11-20T23:52:36</s></a>\n'
            b'    <a n="ExecuteProps"><c>\n        <a n="Cluster"><i>998</i></a>\n    </c></a>\n'
            b'    <a n="EventTypeNumber"><i>0</i></a>\n</c>\n',
            id="an XML string of several lines, and an inner ad",
        ),
    ],
)
def test_text_of_users_forges_no_event(record: bytes) -> None:
    assert read(CLASSIC + record + CLASSIC) == read(CLASSIC) + "001;1795218756;2.0;1;0\n" + read(CLASSIC)


@pytest.mark.parametrize(
    "record",
    [
        b'{\n  "Cluster": 12,\n  "EventTime": "2026-11-20T23:52:36",\n  "EventTypeNumber": 0\n}\n',
        b'{\n  "Cluster": 12,\n  "Proc": -1,\n  "EventTime": "2026-11-20T23:52:36",\n  "EventTypeNumber": 0\n}\n',
        b'{\n  "Cluster": 12,\n  "Proc": 0,\n  "EventTypeNumber": 0\n}\n',
        b'{\n  "Cluster": 12,\n  "Proc": 0,\n  "EventTime": "2026-11-20T23:52:36"\n}\n',
        b'{\n  "Cluster": 12,\n  "Proc": 0,\n  "EventTime": "2026-11-20T23:52:36",\n  "EventTypeNumber": 5\n}\n',
        b'{\n  "Cluster": 12,\n  "Proc": 0,\n  "EventTime": "2026-11-20T23:52:36",\n  "EventTypeNumber": 15,\n'
        b'  "ReturnValue": 0\n}\n',
        b"{\n}\n",
        b"<c>\n</c>\n",
        pytest.param(
            b"<c>\n" + b'    <a n="Reason"><s></s></a>\n' * 900, id="many strings and no end: must not take for ever"
        ),
    ],
)
def test_an_ad_without_a_job_a_time_a_state_or_an_outcome_gives_no_event(record: bytes) -> None:
    assert read(record) == ""


def write_config_val(folder: Path, script: str) -> Mapping[str, str]:
    command = folder / "condor_config_val"
    command.write_text(f'#!/bin/sh\ntest "$*" = EVENT_LOG || exit 9\n{script}\n')
    command.chmod(0o700)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_the_log_is_where_condor_says(tmp_path: Path) -> None:
    environment = write_config_val(tmp_path, "echo /var/log/condor/EventLog")
    assert find_log(environment) == Path("/var/log/condor/EventLog")


@pytest.mark.parametrize(
    "script", ["echo Not defined: EVENT_LOG >&2; exit 1", "echo /log; exit 1", "echo", "echo UNDEFINED"]
)
def test_a_pool_without_an_event_log_is_told_so(tmp_path: Path, script: str) -> None:
    environment = write_config_val(tmp_path, script)
    with pytest.raises(LogNotKnown, match=r"knows no event log .* set EVENT_LOG .* or name a log with --log PATH"):
        find_log(environment)


def test_a_machine_without_condor_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LogNotKnown, match=r"cannot be asked for the event log .* --log PATH"):
        find_log({"PATH": str(tmp_path)})
