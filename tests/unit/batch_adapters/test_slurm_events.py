"""Slurm's logs, as recorded from a real cluster (22.05), turned into events."""

import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

from batch_adapters.generator.module import LogNotKnown, Parser
from batch_adapters.slurm import controller_log
from batch_adapters.slurm.controller_log import read_deletions
from batch_adapters.slurm.events import SLURM, find_log
from batch_adapters.states import Cause, Event, State, read_event
from tests.unit.batch_adapters.log_reading import collect_changes, read_lines

pytestmark = pytest.mark.usefixtures("utc")

RECORDED = Path(__file__).parents[2] / "recorded" / "slurm"
CONTROLLER_LOG = (RECORDED / "slurm-slurmctld-info.log").read_bytes()
COMPLETION_LOG = (RECORDED / "slurm-jobcomp-filetxt.log").read_bytes()
SCENARIOS = (RECORDED / "slurm-scenarios-info.txt").read_bytes()
RANGES = (RECORDED / "array-ranges-cancelled-slurmctld.log").read_bytes()
DEADLINE = (RECORDED / "deadline-slurmctld.log").read_bytes()
NEVER_STARTED = (RECORDED / "never-started-jobcomp.log").read_bytes()
NEWER_LOG = (RECORDED / "slurmctld-24.11.log").read_bytes()
NEWEST_LOG = (RECORDED / "slurmctld-26.05.log").read_bytes()
DOWN = (RECORDED / "slurm-down.txt").read_bytes()
MISCELLANEOUS = (RECORDED / "slurm-misc.txt").read_bytes()
USER_TEXT = (RECORDED / "user-text-in-logs.txt").read_bytes().partition(b"\n=== SGE")[0]

STATE_OF_WORD = {
    b"PENDING": State.PENDING,
    b"RUNNING": State.ACTIVE,
    b"SUSPENDED": State.SUSPENDED,
    b"COMPLETED": State.DONE,
    b"FAILED": State.DONE,
    b"CANCELLED": State.FAILED,
    b"TIMEOUT": State.FAILED,
    b"NODE_FAIL": State.FAILED,
}


def read_all(log: bytes, parser: Parser | None = None) -> list[Event]:
    lines = (parser or SLURM.new_parser()).read_events(log).decode().splitlines(keepends=True)
    events = [read_event(line) for line in lines]
    assert None not in events
    return [event for event in events if event]


def select(pattern: bytes, text: bytes) -> bytes:
    return b"".join(line + b"\n" for line in text.splitlines() if re.search(pattern, line))


def select_controller_lines(text: bytes) -> bytes:
    return select(rb"^\[\d{4}-", text)


def select_records(text: bytes) -> bytes:
    return select(rb"^JobId=\d+ UserId=.*ExitCode=", text)


def select_jobs(*jobs: str) -> bytes:
    """Every line of the recorded slurmctld.log that names one of the jobs."""
    names = "|".join(map(re.escape, jobs))
    return select(rf"(?:JobId=|\) for )(?:{names})(?![\d_+])".encode(), CONTROLLER_LOG)


def read_changes(log: bytes, parser: Parser | None = None) -> dict[str, str]:
    return collect_changes(read_lines(parser or SLURM.new_parser(), log))


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(["2"], {"2": "1 2 8/0"}, id="exit 0"),
        pytest.param(["3"], {"3": "1 2 8/3"}, id="exit 3"),
        pytest.param(["4"], {"4": "1 2 8/137"}, id="killed by signal 9"),
        pytest.param(["6"], {"6": "1 4/0"}, id="submitted held, cancelled while pending"),
        pytest.param(["7"], {"7": "1 2 4/0"}, id="cancelled while running"),
        pytest.param(["8"], {"8": "1 4/0"}, id="hold and release are no events"),
        pytest.param(["9"], {"9": "1 2 16 2 8/0"}, id="refused suspend, suspend, resume"),
        pytest.param(
            ["10", "10_1", "10_2", "10_3", "10_4"],
            {"10": "1", "10_1": "2 8/0", "10_2": "2 8/0", "10_3": "2 8/7", "10_4": "2 4/0"},
            id="array, one running task cancelled",
        ),
        pytest.param(
            ["14", "14_2"], {"14": "1 4/0", "14_2": "4/0"}, id="pending task, then all of the array cancelled"
        ),
        pytest.param(["15"], {"15": "1 2 1 2 8/0"}, id="requeued by hand"),
        pytest.param(["16"], {"16": "1 2 1 2 4/0"}, id="requeued after node failure, the old run's end is no event"),
        pytest.param(["17"], {"17": "1 2 4/0"}, id="killed by node failure"),
        pytest.param(["18"], {"18": "1 2 8/1"}, id="started by backfill"),
        pytest.param(["19"], {"19": "1 4/0"}, id="dependency never met, cancelled"),
        pytest.param(["20"], {"20": "1 4/0"}, id="dependency never met, killed"),
        pytest.param(["21"], {"21": "1 2 4/0"}, id="launch failure"),
        pytest.param(["23"], {"23": "1 2 8/2"}, id="bad interpreter"),
        pytest.param(["24"], {"24": "1 2 4/0"}, id="time limit"),
        pytest.param(["26"], {"26": "1 2 8/0"}, id="cancelled after its end, twice"),
        pytest.param(["999999"], {}, id="cancelled, but unknown"),
    ],
)
def test_each_case_gives_its_events(jobs: list[str], expected: dict[str, str]) -> None:
    assert read_changes(select_jobs(*jobs)) == expected


@pytest.mark.parametrize(
    ("recording", "jobs", "expected"),
    [
        pytest.param(MISCELLANEOUS, ["2", "3"], {"2": "1 2 1 4/0", "3": "1 2 8/0"}, id="preempted and requeued"),
        pytest.param(DOWN, ["53"], {"53": "1 2 2 1"}, id="run twice after the controller was killed, queued again"),
        pytest.param(DOWN, ["55", "56"], {"55": "1 2 1 4/0", "56": "1 2 4/0"}, id="node's daemon killed"),
    ],
)
def test_each_other_case_gives_its_events(recording: bytes, jobs: list[str], expected: dict[str, str]) -> None:
    lives = read_changes(select_controller_lines(recording.partition(b"=== SlurmSchedLogFile")[0]))
    assert {job: lives[job] for job in jobs} == expected


def test_recorded_ranges_of_cancelled_tasks() -> None:
    lives = read_changes(RANGES)
    assert len([job for job in lives if job.startswith("133_")]) == 300
    assert {job: life for job, life in lives.items() if job.startswith("135")} == {
        **{"135": "1", "135_0": "2 4/0", "135_1": "2 4/0"},
        **dict.fromkeys(("135_2", "135_3", "135_4", "135_5", "135_6", "135_7"), "4/0"),
    }
    # Of 139, some were asked for twice, and some do not exist; 147 was refused to a stranger, then cancelled.
    assert {job: lives[job] for job in ("139", "139_1", "139_2", "139_3", "139_4")} == {
        **{"139": "1 4/0", "139_1": "4/0", "139_2": "4/0", "139_3": "4/0", "139_4": "4/0"}
    }
    assert {job: lives[job] for job in ("147", "147_1", "147_2")} == {
        "147": "1 4/0",
        "147_1": "4/0 1 4/0",
        "147_2": "4/0 1 4/0",
    }


def test_recorded_deadlines() -> None:
    assert read_changes(DEADLINE) == {"115": "1 4/0", "116": "1 4/0", "138": "1 2 4/0"}


def test_what_never_got_a_node_has_failed() -> None:
    assert read_changes(NEVER_STARTED) == {"118": "4/129", "115": "4/129"}


def test_times_are_those_of_the_lines() -> None:
    assert SLURM.new_parser().read_events(select_jobs("3")) == (
        b"001;1795217186;3;1;0\n001;1795217187;3;2;0\n001;1795217187;3;8;3\n"
    )


def test_the_log_says_what_the_queue_said() -> None:
    lives: dict[str, list[State]] = defaultdict(list)
    for event in read_all(CONTROLLER_LOG):
        lives[event.local_id].append(event.state)
    looks = re.findall(rb"^1> (\d+(?:_\d+)?) (?:\d+ \d+ \d+ )?([A-Z_]{6,})\b", SCENARIOS, re.MULTILINE)
    known = [(job.decode(), STATE_OF_WORD[word]) for job, word in looks if word in STATE_OF_WORD]
    assert len(known) == 30
    for job, state in known:
        # Tasks that never started have the events of their array; the program of job 21 was never launched.
        life = lives[job] or lives[job.partition("_")[0]]
        expected = State.FAILED if job == "21" else state
        assert expected in life, job
        assert life[-1] == expected or not expected.is_final, job


def test_both_logs_agree_on_every_end() -> None:
    ends = {event.local_id: event for event in read_all(select_controller_lines(SCENARIOS)) if event.state.is_final}
    completions = {event.local_id: event for event in read_all(select_records(SCENARIOS)) if event.state.is_final}
    # NODE_FAIL is no event of the completions, and the end of a single pending task is in none of their records.
    assert ends.keys() - completions.keys() == {"14_2", "17"}
    assert not completions.keys() - ends.keys()
    for job, end in completions.items():
        assert (ends[job].state, ends[job].exit_code) == (end.state, end.exit_code), job
        assert 0 <= ends[job].timestamp - end.timestamp <= 1, job


def test_completions_of_a_requeued_job() -> None:
    assert read_changes(select(b"^JobId=1[567] ", SCENARIOS)) == {"15": "1 8/0", "16": "4/0"}
    assert read_changes(select_records(MISCELLANEOUS)) == {"2": "4/0", "3": "8/0"}


def test_every_whole_record_of_the_completions_is_an_event() -> None:
    events = read_all(COMPLETION_LOG)
    assert len(events) == COMPLETION_LOG.count(b"\n") == 40
    assert events[0] == Event(1795217876, "58", State.DONE, 0)


@pytest.mark.parametrize("name", ["iso8601", "iso8601_ms", "rfc5424", "rfc5424_ms", "short", "thread_id"])
def test_every_time_format_with_a_date(name: str) -> None:
    line = select(rf"^{name}: ".encode(), MISCELLANEOUS).partition(b": ")[2]
    (event,) = read_all(line)
    assert event.state == State.PENDING
    assert time.strftime("%m-%d %H:%M", time.gmtime(event.timestamp)) == "11-21 00:20"
    assert SLURM.new_parser().read_time(b"torn line\n" + line) == event.timestamp


def test_a_thread_may_have_a_number() -> None:
    # LogTimeFormat=thread_id of Slurm 26.05
    stamp = b"[Nov 26 16:19:13.415247 13753 worker[2]    0x14a31d6076c0] "
    (event,) = read_all(stamp + b"_slurm_rpc_submit_batch_job: JobId=112 SLUID=sBRNM8CAESC600 InitPrio=0 usec=766\n")
    assert time.strftime("%m-%d %H:%M:%S", time.gmtime(event.timestamp)) == "11-26 16:19:13"


def test_an_offset_overrules_the_local_zone() -> None:
    line = b"[2026-11-21T00:20:49.783-05:00] sched: Allocate JobId=8 NodeList=n1 #CPUs=1 Partition=batch\n"
    assert read_all(line) == [Event(1795220449 + 5 * 3600, "8", State.ACTIVE)]


def test_processor_time_has_no_date_and_no_events() -> None:
    line = select(b"^clock: ", MISCELLANEOUS).partition(b": ")[2]
    assert read_all(line) == []
    assert SLURM.new_parser().read_time(line) is None


def test_the_first_time_of_completions_is_an_end() -> None:
    assert SLURM.new_parser().read_time(b"torn 5:0 \n" + COMPLETION_LOG) == 1795217876


def test_no_time_where_no_record_is() -> None:
    assert SLURM.new_parser().read_time(b"torn\n\n") is None


START = b"[2026-11-20T23:27:04.528] "
QUEUED = START + b"_slurm_rpc_submit_batch_job: JobId=7 InitPrio=4294901755 usec=330\n"
STARTED = START + b"sched: Allocate JobId=7 NodeList=n1 #CPUs=1 Partition=batch\n"
KILLED_BY_STRANGER = START + b"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 1002\n"
KILLED_BY_OWNER = START + b"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 1001\n"
REFUSED = (
    START + b"error: Security violation, REQUEST_KILL_JOB RPC for JobId=7 from uid 1002\n"
    + START + b"_slurm_rpc_kill_job: job_str_signal() uid=1002 JobId=7 sig=9 returned: Access/permission denied\n"
)  # fmt: skip
ENDED = START + b"_job_complete: JobId=7 WEXITSTATUS 5\n" + START + b"_job_complete: JobId=7 done\n"
REQUEUED = START + b"Requeuing JobId=7\n"
REQUEUED_AT_ITS_END = (
    START + b"_job_complete: JobId=7 WTERMSIG 15\n"
    + START + b"_job_complete: requeue JobId=7 per user/system request\n"
    + START + b"_job_complete: JobId=7 done\n"
)  # fmt: skip
ARRAY = START + b"_slurm_rpc_submit_batch_job: JobId=10 InitPrio=4294901750 usec=323\n"
TASK_1 = START + b"sched: Allocate JobId=10_1(11) NodeList=n1 #CPUs=1 Partition=batch\n"
TASK_1_ENDED = (
    START + b"_job_complete: JobId=10_1(11) WEXITSTATUS 0\n" + START + b"_job_complete: JobId=10_1(11) done\n"
)
REQUEUED_TASK_1 = START + b"Requeuing JobId=10_1(11)\n"
LAST_TASK = START + b"sched: Allocate JobId=10_4(10) NodeList=n1 #CPUs=1 Partition=batch\n"


def kill(job: str, user: int = 1001) -> bytes:
    return START + f"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={job} uid {user}\n".encode()


def refuse(job: str, user: int = 1002) -> bytes:
    line = f"_slurm_rpc_kill_job: job_str_signal() uid={user} JobId={job} sig=9 returned: Access/permission denied\n"
    return START + line.encode()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(QUEUED + KILLED_BY_STRANGER + REFUSED, {"7": "1 4/0 1"}, id="refused while pending"),
        pytest.param(QUEUED + STARTED + KILLED_BY_STRANGER + REFUSED, {"7": "1 2 4/0 1 2"}, id="refused while running"),
        pytest.param(
            QUEUED + STARTED + KILLED_BY_STRANGER + REFUSED + KILLED_BY_OWNER,
            {"7": "1 2 4/0 1 2 4/0"},
            id="then cancelled",
        ),
        pytest.param(
            QUEUED + STARTED + KILLED_BY_OWNER + KILLED_BY_STRANGER + REFUSED,
            {"7": "1 2 4/0"},
            id="a refused request takes back only its own event",
        ),
        pytest.param(
            QUEUED + STARTED + ENDED + KILLED_BY_STRANGER + REFUSED, {"7": "1 2 8/5"}, id="refused after the end"
        ),
        pytest.param(KILLED_BY_STRANGER + REFUSED, {}, id="not known to be alive"),
        pytest.param(QUEUED + STARTED + KILLED_BY_OWNER + ENDED, {"7": "1 2 4/0 1 8/5"}, id="was only sent a signal"),
        pytest.param(QUEUED + KILLED_BY_OWNER + STARTED, {"7": "1 4/0"}, id="started while the request waited"),
        pytest.param(
            QUEUED + KILLED_BY_STRANGER + STARTED + REFUSED, {"7": "1 4/0 1 2"}, id="refused, started while it waited"
        ),
        pytest.param(
            QUEUED + STARTED + KILLED_BY_OWNER + REQUEUED + STARTED, {"7": "1 2 4/0 1 2"}, id="requeued after all"
        ),
        pytest.param(
            QUEUED + STARTED + ENDED + REQUEUED + REQUEUED, {"7": "1 2 8/5 1"}, id="requeued after its end, once"
        ),
        pytest.param(
            STARTED + REQUEUED_AT_ITS_END + REQUEUED + STARTED + ENDED,
            {"7": "2 1 2 8/5"},
            id="requeued at the end of its run",
        ),
        pytest.param(
            QUEUED.replace(b" InitPrio", b" SLUID=s1A2B3C4D5E6F7 InitPrio") + KILLED_BY_OWNER,
            {"7": "1 4/0"},
            id="queued, as Slurm 25.11 writes it",
        ),
        pytest.param(
            STARTED + START + b"Killing JobId=7 on DOWN node n1\n", {"7": "2 4/0"}, id="its node was down at the start"
        ),
        pytest.param(ENDED + ENDED.splitlines(True)[1], {"7": "8/5"}, id="the end twice"),
        pytest.param(ENDED.splitlines(True)[1], {}, id="end without exit code"),
        pytest.param(
            ARRAY + TASK_1 + kill("10"), {"10": "1 4/0", "10_1": "2 4/0"}, id="array with running task cancelled"
        ),
        pytest.param(
            ARRAY + TASK_1 + kill("10", 1002) + refuse("10"),
            {"10": "1 4/0 1", "10_1": "2 4/0 1 2"},
            id="cancelling an array refused",
        ),
        pytest.param(
            ARRAY + TASK_1 + LAST_TASK + kill("10"),
            {"10": "1", "10_1": "2 4/0", "10_4": "2 4/0"},
            id="array without waiting tasks cancelled",
        ),
        pytest.param(ARRAY + kill("10") + TASK_1, {"10": "1 4/0"}, id="task started while its array's end waited"),
        pytest.param(
            ARRAY + TASK_1 + TASK_1_ENDED + kill("10_1", 1002) + refuse("10_1"),
            {"10": "1", "10_1": "2 8/0"},
            id="ended task of a waiting array cancelled",
        ),
        pytest.param(
            ARRAY + TASK_1 + kill("10") + REQUEUED_TASK_1 + TASK_1,
            {"10": "1 4/0", "10_1": "2 4/0 1 2"},
            id="task requeued after its array was cancelled",
        ),
        pytest.param(
            ARRAY + TASK_1 + TASK_1_ENDED + kill("10"),
            {"10": "1 4/0", "10_1": "2 8/0"},
            id="array with ended task cancelled",
        ),
        pytest.param(
            ARRAY + TASK_1 + TASK_1_ENDED + REQUEUED_TASK_1 + kill("10_1"),
            {"10": "1", "10_1": "2 8/0 1 4/0"},
            id="requeued task cancelled",
        ),
        pytest.param(
            ARRAY + TASK_1 + REQUEUED_TASK_1 + LAST_TASK + START + b"_slurm_rpc_suspend(suspend) for 10 usec=310\n",
            {"10": "1", "10_1": "2 1", "10_4": "2 16"},
            id="array suspended: a waiting task still waits",
        ),
        pytest.param(
            ARRAY + TASK_1 + kill("10_[1-3]") + kill("10_[3-4]"),
            {"10": "1", "10_1": "2 4/0", "10_2": "4/0", "10_3": "4/0", "10_4": "4/0"},
            id="some tasks of an array cancelled",
        ),
        pytest.param(
            ARRAY + TASK_1 + TASK_1_ENDED + kill("10_[1,2,2,5-7:2,7-6,,9:%2]"),
            {"10": "1", "10_1": "2 8/0", "10_2": "4/0", "10_5": "4/0", "10_7": "4/0"},
            id="steps, a task named twice, an ended one, nonsense",
        ),
        pytest.param(
            ARRAY + TASK_1 + kill("10_[1-2]", 1002) + refuse("10_[1-2]"),
            {"10": "1", "10_1": "2 4/0 1 2", "10_2": "4/0 1"},
            id="cancelling some tasks refused",
        ),
        pytest.param(
            ARRAY + kill("10_[2]") + TASK_1.replace(b"10_1", b"10_2") + TASK_1_ENDED.replace(b"10_1", b"10_2"),
            {"10": "1", "10_2": "4/0 1 8/0"},
            id="task of a range started while the request waited, and ended by itself",
        ),
        pytest.param(kill("10_[1-3]"), {}, id="tasks of an unknown array"),
        pytest.param(
            ARRAY + START + b"_kill_dependent: Job dependency can't be satisfied, cancelling JobId=10_*\n",
            {"10": "1 4/0"},
            id="waiting array killed",
        ),
        pytest.param(
            ARRAY + TASK_1 + START + b"_slurm_rpc_suspend(suspend) for 10 usec=310\n",
            {"10": "1", "10_1": "2 16"},
            id="array suspended: its running tasks",
        ),
        pytest.param(
            STARTED + START + b"_job_complete: JobId=7 OOM failure\n" + START + b"_job_complete: JobId=7 done\n",
            {"7": "2 4/0"},
            id="out of memory",
        ),
        pytest.param(
            STARTED + START + b"preempted JobId=7 has been killed to reclaim resources for JobId=8\n",
            {"7": "2 4/0"},
            id="preempted and killed",
        ),
    ],
)
def test_a_request_to_cancel_is_not_yet_an_end(log: bytes, expected: dict[str, str]) -> None:
    assert read_changes(log) == expected


@pytest.mark.parametrize(
    "after",
    [
        ENDED,
        REQUEUED,
        START + b"_job_complete: requeue JobId=7 per user/system request\n",
        START + b"requeue job JobId=7 due to failure of node n1\n",
        START + b"preempted JobId=7 has been requeued to reclaim resources for JobId=8\n",
    ],
    ids=["end", "requeue", "requeued at its end", "lost node, requeued", "preempted, requeued"],
)
def test_who_only_sent_a_signal_has_deleted_nothing(after: bytes) -> None:
    assert list(read_deletions(KILLED_BY_OWNER + after)) == [(b"7", b"1001"), (b"7", b"")]


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (b"Time limit exhausted for JobId=7\n", Cause.TIME_LIMIT),
        (
            b"deadline_ok: JobId=7 with time_limit 5 exceeded deadline 2026-11-20T23:27:00 and cancelled\n",
            Cause.TIME_LIMIT,
        ),
        (b"Reservation ended for JobId=7\n", Cause.TIME_LIMIT),
        (b"Killing JobId=7 on failed node n1\n", Cause.NODE_LOST),
        (b"_job_complete: JobId=7 OOM failure\n" + START + b"_job_complete: JobId=7 done\n", Cause.MEMORY_LIMIT),
        (
            b"Batch JobId=7 missing from batch node n1 (not found BatchStartTime after startup), Requeuing job\n"
            + START
            + b"_job_complete: requeue JobId=7 due to node failure\n"
            + START
            + b"_job_complete: JobId=7 done\n",
            b"",
        ),
    ],
    ids=["time limit", "deadline", "reservation", "lost node", "out of memory", "by itself, after a lost run"],
)
def test_the_log_says_what_else_ended_a_job(end: bytes, cause: Cause | bytes) -> None:
    assert dict(read_deletions(KILLED_BY_OWNER + START + end)) == {b"7": cause}


def test_the_log_of_a_newer_slurm_gives_its_events() -> None:
    lives = read_changes(NEWER_LOG)
    assert {job: lives[job] for job in ("44_1", "59_0", "66_0", "68_0", "79_0")} == {
        **{"44_1": "2 8/137", "66_0": "2 4/0", "68_0": "2 4/0", "79_0": "2 4/0"},
        # Its slurmstepd was killed; the end of that run is none.
        "59_0": "2 1 2 1 4/0",
    }
    causes = dict(read_deletions(NEWER_LOG))
    assert {job: causes[job] for job in (b"44_1", b"59", b"66_0", b"68_0", b"79_0")} == {
        **{b"44_1": b"", b"59": b"1001", b"66_0": Cause.TIME_LIMIT, b"68_0": b"1001", b"79_0": Cause.MEMORY_LIMIT}
    }


def test_the_log_of_the_newest_slurm_gives_its_events() -> None:
    lives = read_changes(NEWEST_LOG)
    ends = {job: lives[job] for job in ("47_0", "49_0", "56_0", "57_0", "62_0", "74_0", "85_0")}
    # 57_0 was preempted, and started again by the backfill scheduler.
    assert ends == dict.fromkeys(ends, "2 4/0") | {"57_0": "2 1 8/0"}
    # A signal to a task that was suspended was refused, as often as scancel tried.
    assert lives["13_0"] == "2 16 4/0 1 16 4/0 1 16 4/0"
    # Missing from its node and queued again, then cancelled.
    assert lives["80_0"] == "1 4/0"
    causes = dict(read_deletions(NEWEST_LOG))
    assert {job.decode(): causes[job] for job in map(str.encode, (*ends, "13_0", "80_0"))} == {
        **{
            "47_0": Cause.TIME_LIMIT,
            "85_0": Cause.TIME_LIMIT,
            "49_0": Cause.NODE_LOST,
            "74_0": Cause.NODE_LOST,
            "57_0": b"",
        },
        **{"56_0": Cause.CANCELLED_OUTSIDE, "62_0": Cause.CANCELLED_OUTSIDE, "13_0": b"0", "80_0": b"4001"},
    }


@pytest.mark.parametrize("name", ["7", "7_[1-2]"])
def test_who_was_refused_has_deleted_nothing(name: str) -> None:
    jobs = [b"7_1", b"7_2"] if "[" in name else [b"7"]
    assert list(read_deletions(kill(name, 1002) + refuse(name))) == []
    assert list(read_deletions(refuse(name))) == [(job, b"") for job in jobs], "the request was in the block before"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_log, "_MOST_JOBS", 3)
    monkeypatch.setattr(controller_log, "_MOST_OTHERS", 3)
    monkeypatch.setattr(controller_log, "_MOST_REQUESTS", 3)
    parser = controller_log.ControllerLog()
    for job in range(10):
        parser.read_events(ARRAY.replace(b"=10 ", b"=1%d " % job))
        parser.read_events(LAST_TASK.replace(b"10_4(10)", b"9_%d(9%d)" % (job, job)))
        parser.read_events(kill(f"9_{job}"))
        parser.read_events(kill(f"1{job}_[1-999999999]"))
        parser.read_events(TASK_1_ENDED.replace(b"10_1(11)", b"8_%d(8%d)" % (job, job)))
        parser.read_events(ENDED.splitlines(True)[0].replace(b"=7 ", b"=7%d " % job))
    sizes = {name: len(value) for name, value in vars(parser).items() if isinstance(value, dict) and "time" not in name}
    assert sizes.pop("_actions") == len(controller_log._LINES)
    assert set(sizes.values()) <= {0, 1, 2, 3}
    assert read_changes(kill("10") + kill("19"), parser) == {"19": "4/0"}


def test_users_text_forges_no_event() -> None:
    controller, _, completions = USER_TEXT.partition(b"--- jobcomp.log:")
    lives = read_changes(select_controller_lines(controller))
    assert lives == {"427": "1 2 8/3", "428": "1 2 8/3", "429": "1 2 8/0", "430": "1 2 8/0"}
    records = completions.lstrip(b"\n")
    # Job 428 has a newline in its name: nothing of it is believed, and above all nothing of job 1.
    assert read_changes(records) == {"430": "8/0", "427": "8/3", "429": "8/0"}


NAME = b"Name=wrap JobState"
RECORDS = COMPLETION_LOG.splitlines(keepends=True)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"x\nJobId=1 UserId=root(0) GroupId=root(0) Name=y", id="second head"),
        pytest.param(b"x\ny\nJobId=1 UserId=root(0) GroupId=root(0) Name=y", id="second head after another line"),
        pytest.param(b"x\n[2026-11-20T23:37:56.000] Time limit exhausted for JobId=1\n", id="controller's line"),
        pytest.param(b"x ArrayJobId=1 ArrayTaskId=1 DerivedExitCode=0:0 ExitCode=0:0", id="task of another array"),
    ],
)
@pytest.mark.parametrize("before", [b"", RECORDS[1]], ids=["first", "later"])
def test_a_job_name_forges_no_event_of_another_job(name: bytes, before: bytes) -> None:
    log = before + RECORDS[0].replace(NAME, b"Name=" + name + b" JobState") + RECORDS[2]
    assert {event.local_id for event in read_all(log)} <= {"58", "59", "60"}
    assert read_all(log)[-1].local_id == "60"


FORGED_LINE = START + b"Time limit exhausted for JobId=1\n"


def test_a_log_that_begins_with_a_forged_line_is_still_one_of_completions() -> None:
    parser = SLURM.new_parser()
    parser.read_events(RECORDS[0].partition(b" JobState")[0] + b"\n" + FORGED_LINE)
    assert read_all(RECORDS[0].partition(b"Name=")[2] + RECORDS[1], parser)[-1].local_id == "59"
    assert read_all(FORGED_LINE + COMPLETION_LOG) == read_all(COMPLETION_LOG)


def test_a_state_in_a_name_or_folder_is_not_believed() -> None:
    middle = RECORDS[0].partition(b" JobState=")[2].partition(b" WorkDir=")[0]
    forged = b"Name=x JobState=%b WorkDir=/ JobState" % middle.replace(b"COMPLETED", b"CANCELLED")
    assert read_all(RECORDS[0].replace(NAME, forged)) == []


@pytest.mark.parametrize(
    "text",
    [
        b"error: no partition [2026-11-20T23:27:04.528] Time limit exhausted for JobId=7",
        b"_get_job_parts: invalid partition specified: sched: Allocate JobId=7 NodeList=n1",
        b"error: ] Requeuing JobId=7",
        b"Requeuing JobId=7 by request",
        b"Requeuing JobId=7x",
        b"_slurm_rpc_suspend(suspend) for 7 Access/permission denied",
        b"_slurm_rpc_submit_batch_job: JobId=7",
    ],
    ids=repr,
)
def test_lines_that_only_look_like_events_are_none(text: bytes) -> None:
    assert read_all(START + text + b"\n") == []


def test_a_head_with_many_false_ends_does_not_take_for_ever() -> None:
    ends = b" JobState=X Partition= EndTime=2026-11-20T23:37:56 NodeList= EligibleTime=" * 300
    parser = SLURM.new_parser()
    parser.read_events(COMPLETION_LOG)
    assert parser.read_events(b"JobId=1 UserId=" + ends + b"\n") == b""


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param("SlurmctldLogFile=/var/log/slurmctld.log\n", id="plain"),
        pytest.param('# SlurmctldLogFile=/no\nslurmctldlogfile = "/var/log/slurmctld.log" # here\n', id="any case"),
    ],
)
def test_the_log_is_found_in_the_configuration(settings: str, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(settings)
    assert find_log({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == Path("/var/log/slurmctld.log")


def test_a_log_that_is_not_configured_is_asked_for(tmp_path: Path) -> None:
    environment = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    with pytest.raises(LogNotKnown, match=r"slurm\.conf.*--log"):
        find_log(environment)
    (tmp_path / "slurm.conf").write_text("SlurmctldDebug=info\n")
    with pytest.raises(LogNotKnown, match=r"SlurmctldLogFile.*--log"):
        find_log(environment)
