"""The Grid Engine module of the generator, on what a real qmaster (8.1.9) wrote."""

import re
from pathlib import Path

import pytest

from batch_adapters.generator.module import FeedSettings, LogNotKnown
from batch_adapters.registry import find_event_module
from batch_adapters.sge import events
from batch_adapters.sge.events import SGE, GridEngineLog, find_log, read_deletions
from batch_adapters.states import Cause
from tests.unit.batch_adapters.log_reading import collect_changes, read_lines

RECORDED = Path(__file__).parents[2] / "recorded" / "sge"
REPORTING = (RECORDED / "sge-reporting.log").read_bytes()
ACCOUNTING = (RECORDED / "sge-accounting.log").read_bytes()
LINES = REPORTING.splitlines(keepends=True)


def read_blocks(*blocks: bytes) -> list[str]:
    """Each event as ``SECOND JOB STATE EXIT_CODE``, of blocks read by one parser."""
    return [line.removeprefix("001;").replace(";", " ") for line in read_lines(GridEngineLog(), *blocks)]


def read_changes(*blocks: bytes) -> dict[str, str]:
    return collect_changes(read_lines(GridEngineLog(), *blocks))


def read_scenario(transcript: str, title: str, record: bytes) -> bytes:
    """The last section of that title in a transcript: those of its lines that begin like the record."""
    text = (RECORDED / transcript).read_bytes()
    section = text[text.rindex(b"=== " + title.encode()) :].split(b"\n=== ")[0]
    return b"".join(re.findall(rb"^" + record + rb".*\n", section, re.MULTILINE))


def test_the_file_says_who_or_what_limit_deleted_what() -> None:
    deleted = [b"16", b"17", b"18", b"20.4", b"21.2", b"21.1", b"21.3", b"21.4"]
    limited, *others = read_deletions(REPORTING)
    assert limited == (b"28", Cause.TIME_LIMIT)
    assert others[: len(deleted)] == [(local_id, b"griduser") for local_id in deleted]
    assert {user for _, user in others} == {b"griduser"}


SCENARIOS = {
    "done exit 0": ["1795217933 1 1 0", "1795217933 1 2 0", "1795217935 1 8 0"],
    "done exit 3": ["1795217938 2 1 0", "1795217938 2 2 0", "1795217939 2 8 3"],
    "killed by signal 9 in the job": ["1795217942 3 1 0", "1795217942 3 2 0", "1795217943 3 8 137"],
    # The execution daemon's acknowledgement came too late to be written.
    "signal 11": ["1795217946 4 1 0", "1795217947 4 2 0", "1795217947 4 8 139"],
    "exit 137 by itself, not a signal": ["1795217949 5 1 0", "1795217950 5 2 0", "1795217951 5 8 137"],
    "cancelled while pending": ["1795217953 6 1 0", "1795217954 6 4 0"],
    "cancelled while running": ["1795217957 7 1 0", "1795217957 7 2 0", "1795217958 7 4 137"],
    "user hold, release": ["1795217961 8 1 0", "1795217961 8 4 0"],
    "suspend and resume": [
        *("1795217964 9 1 0", "1795217964 9 2 0", "1795217964 9 16 0", "1795217966 9 2 0", "1795217969 9 8 0")
    ],
    "array of 4, task 3 exits 7, task 4 cancelled": [
        *("1795217971 10 1 0", "1795217971 10.1 2 0", "1795217972 10.2 2 0", "1795217972 10.3 2 0"),
        *("1795217972 10.3 8 7", "1795217972 10.4 2 0", "1795217973 10.1 8 0", "1795217973 10.2 8 0"),
        "1795217976 10.4 4 137",
    ],
    "array held, one task cancelled while pending": [
        *("1795217978 11 1 0", "1795217979 11.2 4 0", "1795217979 11.1 4 0", "1795217979 11.3 4 0"),
        "1795217979 11.4 4 0",
    ],
    "qmod -rj of a rerunnable running job": ["1795217982 12 1 0", "1795217982 12 2 0", "1795217982 12 1 0"],
    "exit 99 (reschedule)": [
        *("1795218043 13 1 0", "1795218043 13 2 0", "1795218044 13 1 0", "1795218045 12 2 0", "1795218052 12 8 0"),
        *("1795218053 13 2 0", "1795218053 13 8 0"),
    ],
    # 14, 16 and 17 end in Eqw; 15, whose program is missing, exits with 127.
    "bad stdout path (job error state Eqw)": [
        *("1795218055 14 1 0", "1795218055 14 2 0", "1795218055 15 1 0", "1795218056 16 1 0", "1795218056 14 1 0"),
        *("1795218056 15 2 0", "1795218056 17 1 0", "1795218057 15 8 127", "1795218057 16 1 0", "1795218057 17 1 0"),
    ],
    "h_rt limit (10 s)": ["1795218064 18 1 0", "1795218065 18 2 0", "1795218077 18 4 137"],
    "hold_jid": [
        *("1795218079 19 1 0", "1795218079 19 2 0", "1795218080 20 1 0", "1795218082 19 8 0"),
        *("1795218083 20 2 0", "1795218084 20 8 0"),
    ],
    "rejected at submission": [],
}


@pytest.mark.parametrize(("title", "expected"), SCENARIOS.items(), ids=SCENARIOS)
def test_each_recorded_scenario_gives_its_events(title: str, expected: list[str]) -> None:
    assert read_blocks(read_scenario("sge-scenarios.txt", title, rb"\d{10}:[a-z_]+:")) == expected


OUTAGES = {
    # What was written of its submission and start was lost with the qmaster.
    "qmaster killed -9 while a job runs": ["1795218749 30 2 0", "1795218749 30 8 5"],
    "execd killed -9 while a job runs, restarted": ["1795218557 28 1 0", "1795218557 28 2 0", "1795218565 28 8 6"],
    # The deletion was only asked for: the job goes on until the execution daemon is back.
    "qdel of a running job while execd is dead": ["1795218568 29 1 0", "1795218568 29 2 0"],
}


@pytest.mark.parametrize(("title", "expected"), OUTAGES.items(), ids=OUTAGES)
def test_each_recorded_outage_gives_its_events(title: str, expected: list[str]) -> None:
    assert read_blocks(read_scenario("sge-down.txt", title, rb"\d{10}:[a-z_]+:")) == expected


WHOLE_REPORTING = {
    **dict.fromkeys(("6", "8", "10", "11", "29", "30"), "1 2 8/0"),
    "12": "1 2 8/3",
    "13": "1 2 8/137",
    "14": "1 2 8/139",
    "15": "1 2 8/137",
    "16": "1 4/0",
    "17": "1 2 4/137",
    "18": "1 4/0",
    "19": "1 2 16 2 8/0",
    "20": "1",
    "20.1": "2 8/0",
    "20.2": "2 8/0",
    "20.3": "2 8/7",
    "20.4": "2 4/137",
    "21": "1",
    **{f"21.{task}": "4/0" for task in range(1, 5)},
    "22": "1 2 1 2 8/0",
    "23": "1 2 1 2 8/0",
    "24": "1 2 1 4/0",
    "25": "1 2 8/127",
    "26": "1 1 4/0",
    "27": "1 1 4/0",
    "28": "1 2 4/137",
}


def test_a_whole_reporting_file_tells_every_job_from_its_submission_to_its_end() -> None:
    assert read_changes(REPORTING) == WHOLE_REPORTING


def test_events_of_a_reporting_file_come_in_the_order_of_time() -> None:
    stamps = [int(line.split()[0]) for line in read_blocks(REPORTING)]
    assert stamps == sorted(stamps)


def test_an_accounting_file_tells_how_each_job_ended_and_nothing_else() -> None:
    ends = {job: states.split()[-1] for job, states in WHOLE_REPORTING.items() if "2" in states.split()}
    # It was in the error state when it was deleted: that leaves no record.
    del ends["24"]
    # Nor does a record say that somebody deleted the job.
    ends["17"] = ends["20.4"] = "8/137"
    assert read_changes(ACCOUNTING) == ends


def make_account(
    job: int, end: int, failed: int = 0, exit_code: int = 0, task: int = 0, pe_task: str = "NONE"
) -> bytes:
    """A record of an accounting file whose category holds a colon."""
    return (
        f"all.q:vm:grid:griduser:sim:{job}:sge:0:1795220000:1795220100:{end}:{failed}:{exit_code}:0:"
        f"0.005678:0.005892:4976.000000:0:0:0:0:482:1:0:568.000000:32:0:0:0:12:5:NONE:defaultdepartment:NONE:1:{task}:"
        f"0.011570:0.000000:0.000000:-l h_rt=0:10:0:0.000000:{pe_task}:0.000000:0:0\n"
    ).encode()


def make_log(job: int, word: str, state: str = "r", who: str = "master", task: int = 0, pe_task: str = "NONE") -> bytes:
    """A ``job_log`` record of a reporting file."""
    return (
        f"1795220300:job_log:1795220300:{word}:{job}:{task}:{pe_task}:{state}:{who}:vm:0:1024:1795220000:"
        "finished:griduser:grid::defaultdepartment:sge:job exited\n"
    ).encode()


FAILED_CODES = [
    pytest.param(0, ["5 8 9"], id="ended by itself"),
    pytest.param(100, ["5 8 9"], id="killed by a signal"),
    pytest.param(37, ["5 4 9"], id="limit"),
    pytest.param(15, ["5 4 9"], id="ran, epilog failed"),
    pytest.param(19, ["5 4 9"], id="no exit status"),
    pytest.param(1, [], id="before job"),
    pytest.param(8, [], id="prolog failed"),
    pytest.param(11, [], id="before starting the job"),
    pytest.param(24, [], id="migrating"),
    pytest.param(25, [], id="rescheduled"),
    pytest.param(26, [], id="output file, error state"),
    pytest.param(30, [], id="exit 100, error state"),
]


@pytest.mark.parametrize(("failed", "expected"), FAILED_CODES)
def test_accounting_tells_ends_but_not_returns_to_the_queue(failed: int, expected: list[str]) -> None:
    assert read_blocks(make_account(5, 1795220200, failed, 9)) == [f"1795220200 {event}" for event in expected]


def test_stamps_of_an_accounting_file_never_go_back() -> None:
    records = make_account(1, 1795220200), make_account(2, 1795220190), make_account(3, 0), make_account(4, 1795220201)
    assert read_blocks(*records) == [*("1795220200 1 8 0", "1795220200 2 8 0", "1795220200 3 8 0", "1795220201 4 8 0")]


def test_a_task_of_a_parallel_job_is_not_the_end_of_the_job() -> None:
    record, prefix = make_account(5, 1795220150, exit_code=1, pe_task="1.vm"), b"1795220300:acct:"
    assert read_blocks(record) == []
    assert read_blocks(make_log(5, "finished", pe_task="1.vm")) == []
    ended = prefix + make_account(5, 1795220200) + prefix + record + make_log(5, "finished")
    assert read_changes(ended) == {"5": "2 8/0"}


def test_an_array_task_and_a_plain_job_of_the_same_number_are_not_mixed_up() -> None:
    record = b"1795220300:acct:" + make_account(5, 1795220200, exit_code=7, task=3)
    assert read_changes(record, make_log(5, "finished", task=3)) == {"5.3": "2 8/7"}


def test_a_job_of_whose_end_nothing_is_recorded_has_failed() -> None:
    assert read_changes(make_log(5, "delivered"), make_log(5, "finished")) == {"5": "2 4/0"}


def test_an_end_before_a_restart_is_not_taken_for_the_next_one() -> None:
    died = b"1795220300:acct:" + make_account(5, 1795220200, failed=19, exit_code=7)
    assert read_changes(died, make_log(5, "restart"), make_log(5, "finished")) == {"5": "1 4/0"}


def test_a_failed_start_that_is_recorded_after_its_restart_is_not_taken_for_the_end() -> None:
    before_job = b"1795220300:acct:" + make_account(5, 0, failed=8, exit_code=7)
    assert read_changes(make_log(5, "restart"), before_job, make_log(5, "finished")) == {"5": "1 4/0"}


NO_EVENTS = [
    pytest.param(make_log(5, "finished", who="griduser"), id="user as who"),
    pytest.param(make_log(5, "finished", who="execution daemon"), id="execd"),
    pytest.param(make_log(5, "deleted", state="", who="master"), id="user named master"),
    pytest.param(make_log(5, "deleted", state="T", who="scheduler"), id="clearing away"),
    pytest.param(make_log(5, "error", who="execution daemon"), id="error state"),
    pytest.param(make_log(5, "sent"), id="sent"),
    pytest.param(make_log(5, "delivered")[:48] + make_log(6, "delivered"), id="two records on one line"),
    pytest.param(b" " + make_log(5, "delivered"), id="not at the start of a line"),
    pytest.param(b"179522030:" + make_log(5, "delivered")[11:], id="nine digits"),
    pytest.param(b"1795220300:new_job:1795220300:5:-1:NONE:delivered:u:g::d:sge:1024\n", id="job name"),
    pytest.param(LINES[0] + make_account(5, 1795220200)[:-20] + b"\n", id="torn account"),
    pytest.param(make_log(6, "sent") + make_account(5, 1795220200), id="rest of a torn acct record"),
]


@pytest.mark.parametrize("block", NO_EVENTS)
def test_what_is_no_record_of_a_change_gives_no_event(block: bytes) -> None:
    assert read_blocks(block) == []


def test_a_clearing_away_does_not_count_as_a_deletion() -> None:
    account = b"1795220300:acct:" + make_account(5, 1795220200)
    cleared = make_log(5, "deleted", state="T", who="scheduler")
    assert read_changes(cleared, account, make_log(5, "finished"))["5"].split()[-1] == "8/0"


def test_a_job_number_that_is_used_again_is_another_job() -> None:
    deleted = make_log(5, "deleted", state="", who="griduser") + make_log(5, "finished", state="")
    account = b"1795220300:acct:" + make_account(5, 1795220200)
    jobs = read_changes(deleted, account + make_log(5, "finished"), account + make_log(5, "finished"))
    assert jobs == {"5": "4/0 2 8/0 2 8/0"}


def test_what_looks_like_accounting_counts_for_nothing_once_the_file_is_known() -> None:
    assert read_blocks(make_log(6, "sent"), make_account(5, 1795220200)) == []


def test_of_too_many_jobs_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_JOBS", 2)
    started = b"".join(make_log(job, "delivered") for job in (1, 2, 3))
    ended = b"".join(b"1795220300:acct:" + make_account(job, 7) + make_log(job, "finished") for job in (1, 2, 3))
    jobs = read_changes(started, ended)
    assert jobs == {"1": "2 2 8/0", "2": "2 8/0", "3": "2 8/0"}


TIMES = [
    pytest.param(REPORTING, 1795220663, id="reporting"),
    pytest.param(ACCOUNTING, 1795220728, id="accounting"),
    pytest.param(b"rest of a record\n" + LINES[-1], 1795221020, id="torn start"),
    pytest.param(make_account(1, 0) + make_account(2, 1795220200), 1795220200, id="first job never ran"),
    pytest.param(b"".join(LINES[:4]), None, id="header only"),
    pytest.param(b"", None, id="nothing"),
]


@pytest.mark.parametrize(("block", "expected"), TIMES)
def test_a_block_tells_when_it_begins(block: bytes, expected: int | None) -> None:
    assert GridEngineLog().read_time(block) == expected


LOGS = [
    pytest.param({"SGE_ROOT": "/opt/sge"}, "/opt/sge/default/common/reporting", id="default cell"),
    pytest.param({"SGE_ROOT": "/opt/sge", "SGE_CELL": "mc"}, "/opt/sge/mc/common/reporting", id="cell"),
    pytest.param({"SGE_ROOT": "/opt/sge", "SGE_CELL": ""}, "/opt/sge/default/common/reporting", id="empty cell"),
]


@pytest.mark.parametrize(("environment", "expected"), LOGS)
def test_the_log_is_in_the_cell(environment: dict[str, str], expected: str) -> None:
    assert find_log(environment) == Path(expected)


def test_without_sge_root_the_message_says_what_to_set() -> None:
    with pytest.raises(LogNotKnown, match="SGE_ROOT"):
        find_log({})


def test_a_rotation_between_an_exit_code_and_its_end_loses_nothing(tmp_path: Path) -> None:
    turn = next(place for place, line in enumerate(LINES) if b":finished:12:" in line)
    (tmp_path / "reporting.1").write_bytes(b"".join(LINES[:turn]))
    (tmp_path / "reporting").write_bytes(b"".join([*LINES[:4], *LINES[turn:]]))
    feed = find_event_module("sge").open_feed(FeedSettings(log=tmp_path, since=1, environment={}))
    found = b"".join(feed.read_events(look_for_files=True)).decode()
    assert collect_changes(found.splitlines()) == WHOLE_REPORTING
    assert find_event_module("sge") is SGE
