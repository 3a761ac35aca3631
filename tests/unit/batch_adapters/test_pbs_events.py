"""The PBS module on a real server's log (OpenPBS 23.06), job by job against what happened; Torque by its words."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_adapters.generator.module import LogNotKnown
from batch_adapters.pbs import events
from batch_adapters.pbs.events import PBS, ServerLog, find_log, read_deletions
from tests.unit.batch_adapters.log_reading import collect_changes, read_lines

pytestmark = pytest.mark.usefixtures("utc")

RECORDED = Path(__file__).parents[2] / "recorded" / "pbs"
LOG_LINE = re.compile(rb"^\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;[0-9a-f]{4};.*\n", re.MULTILINE)
ACCOUNTING = re.compile(r"^([\d/]{10} [\d:]{8});([SED]);([^;]+);(.*)$", re.MULTILINE)


def read_recording(*names: str) -> list[bytes]:
    """The log lines of transcripts or logs; a transcript shows some lines twice."""
    text = b"".join((RECORDED / name).read_bytes() for name in names)
    return list(dict.fromkeys(LOG_LINE.findall(text)))


def read_events(*blocks: bytes) -> list[str]:
    return read_lines(PBS.new_parser(), *blocks)


def read_changes(*blocks: bytes) -> dict[str, str]:
    return collect_changes(read_events(*blocks))


def seconds(stamp: str) -> int:
    return int(datetime.strptime(stamp, "%m/%d/%Y %H:%M:%S").replace(tzinfo=UTC).timestamp())


def line(text: str, local_id: str = "7.vm", mask: str = "0008", stamp: str = "11/20/2026 23:26:21") -> bytes:
    return f"{stamp};{mask};Server@localhost;Job;{local_id};{text}\n".encode()


TRANSCRIPTS = ("pbs-transcript.txt", "pbs-history.txt")
QUEUED = line("Job Queued at request of u@h, owner = u@h, job name = n, queue = q")
RUN = line("Job Run at request of Scheduler@h on exec_vnode (vm:ncpus=1)")
EXIT = line("Exit_status=0 resources_used.walltime=00:00:02", mask="0010")
DELETED = line("Job to be deleted at request of u@h")
OBIT = line("Obit received momhop:1 serverhop:1 state:R substate:42", mask="0080")


@pytest.fixture(scope="module")
def recorded_changes(utc: None) -> dict[str, str]:
    return read_changes(b"".join(read_recording(*TRANSCRIPTS)))


@pytest.mark.parametrize(
    ("local_id", "changes"),
    [
        pytest.param("1.vm", "1 2 8/0", id="exit 0"),
        pytest.param("2.vm", "1 2 8/3", id="exit 3"),
        pytest.param("3.vm", "1 2 8/255", id="exit 255"),
        pytest.param("4.vm", "1 2 8/137", id="kill -9 in the script"),
        pytest.param("5.vm", "1 2 8/139", id="segmentation fault"),
        pytest.param("6.vm", "1 2 8/271", id="qsig TERM by the owner"),
        pytest.param("7.vm", "1 2 8/137", id="qsig KILL by the owner"),
        pytest.param("8.vm", "1 2 8/0", id="qsub -h, qrls"),
        pytest.param("9.vm", "1 2 8/0", id="qhold, qrls, qalter"),
        pytest.param("10.vm", "1 4/0", id="qdel queued"),
        pytest.param("11.vm", "1 4/0", id="qdel held"),
        pytest.param("12.vm", "1 2 4/271", id="qdel running"),
        pytest.param("13.vm", "1 2 4/271", id="qdel of a job that traps TERM"),
        pytest.param("14.vm", "1 2 4/271", id="qdel by root"),
        pytest.param("15.vm", "1 2 4/265", id="qdel -W force by root"),
        pytest.param("16.vm", "1 2 4/265", id="qdel -W force by the owner"),
        pytest.param("17.vm", "1 2 16 2 4/143", id="suspend, resume, qdel"),
        pytest.param("18[].vm", "1 2 8/0", id="array parent"),
        pytest.param("18[3].vm", "2 8/0", id="array subjob"),
        pytest.param("18[7].vm", "2 8/7", id="array subjob exits 7"),
        pytest.param("18[9].vm", "2 8/137", id="array subjob killed"),
        pytest.param("19[2].vm", "2 4/271", id="qdel of one subjob"),
        pytest.param("19[3].vm", "2 4/271", id="qdel of a range, then of the array"),
        pytest.param("19[4].vm", "2 4/143", id="qdel of a range"),
        pytest.param("19[6].vm", "2 4/271", id="qdel of the array: a subjob"),
        pytest.param("19[].vm", "1 2 4/0", id="qdel of the array: its parent"),
        pytest.param("20[].vm", "1 2 8/0", id="array qsub -h, qrls"),
        pytest.param("21[].vm", "1 4/0", id="qdel of a held array"),
        pytest.param("22.vm", "1 2 1 2 4/271", id="qrerun, then qdel"),
        pytest.param("23.vm", "1 2 4/271", id="qrerun refused, then qdel"),
        pytest.param("25.vm", "1 2 8/0", id="afterok satisfied"),
        pytest.param("27.vm", "1 4/0", id="afterok failed"),
        pytest.param("29.vm", "1 2 8/0", id="afternotok"),
        pytest.param("31.vm", "1 4/0", id="afterok on a gone id"),
        pytest.param("52.vm", "1 4/0", id="afterok on a finished job, with history"),
        pytest.param("33.vm", "1 2 4/-29", id="walltime exceeded"),
        pytest.param("34.vm", "1 2 8/0", id="qsub -a"),
        pytest.param("35.vm", "1 2 8/254", id="no such shell"),
        pytest.param("39.vm", "1 4/0", id="modified by the scheduler, then qdel"),
        pytest.param("42.vm", "1 2 8/0", id="output could not be delivered"),
        pytest.param("45.vm", "1 2 8/0", id="history deleted later"),
        pytest.param("49[].vm", "1 2", id="array parent with history: no end in the log"),
        pytest.param("49[9].vm", "2 8/137", id="array subjob with history"),
        pytest.param("51.vm", "1 4/0", id="afterok failed, with history"),
    ],
)
def test_each_recorded_job_has_the_events_of_what_happened_to_it(
    local_id: str, changes: str, recorded_changes: dict[str, str]
) -> None:
    assert recorded_changes[local_id] == changes


def test_a_job_whose_host_is_lost_waits_again() -> None:
    changes = read_changes(b"".join(read_recording("pbs-server_log.lost-node")))
    assert changes == {
        # Its host's daemon was killed: only a second start is logged.
        "38[].vm": "2",
        "38[2].vm": "2 2 8/0",
        "39[].vm": "1 2",
        "39[1].vm": "2 4/-20 1 2 8/0",
        "39[2].vm": "2 4/-20 1 2 8/0",
    }


DELETIONS = (RECORDED / "pbs-server_log.deletions").read_bytes()


def test_the_log_says_who_deleted_what_runs_and_what_waits() -> None:
    deleted = [b"2[1].pbs1", b"2[2].pbs1", b"3[9].pbs1", b"3[10].pbs1"]
    assert dict(read_deletions(DELETIONS)) == dict.fromkeys(deleted, b"root")


@pytest.mark.parametrize(
    ("requested", "deleted"),
    [
        ("3[5].vm", ["3[5].vm"]),
        ("3[1-5:2,8].vm", ["3[1].vm", "3[3].vm", "3[5].vm", "3[8].vm"]),
        pytest.param("3[].vm", [], id="a line of its own names who deletes the array"),
        pytest.param("7.vm", [], id="so for a job that is none of an array"),
        pytest.param("3[5-1].vm", [], id="no numbers"),
        pytest.param("3[1-999999999].vm", [], id="more than any array has"),
    ],
)
def test_a_request_alone_deletes_elements_that_wait(requested: str, deleted: list[str]) -> None:
    found = list(read_deletions(line("delete job request received", requested, "0080")))
    assert found == [(local_id.encode(), b"") for local_id in deleted]


def test_who_deletes_what_is_being_deleted_has_not_ended_it() -> None:
    again = line("delete job request received", "3[5-6].vm", "0080")
    by = [line(f"Job to be deleted at request of {user}@vm", "3[5].vm") for user in ("root", "ann")]
    assert list(read_deletions(b"".join((*by, again)))) == [(b"3[5].vm", b"root"), (b"3[6].vm", b"")]


def test_starts_and_ends_agree_with_the_servers_own_accounting() -> None:
    found = set(read_events(b"".join(read_recording(*TRANSCRIPTS))))
    text = b"".join((RECORDED / name).read_bytes() for name in TRANSCRIPTS).decode(errors="replace")
    records = [match.groups() for match in ACCOUNTING.finditer(text)]
    cancelled = {local_id for _, kind, local_id, _ in records if kind == "D"}
    checked = 0
    for stamp, kind, local_id, attributes in records:
        exit_status = re.search(r"Exit_status=(-?\d+)", attributes)
        expected = f"001;{seconds(stamp)};{local_id};2;0"
        if kind == "D" or "[]" in local_id:
            continue
        if kind == "E" and exit_status:
            failed = local_id in cancelled or int(exit_status[1]) < 0
            expected = f"001;{seconds(stamp)};{local_id};{4 if failed else 8};{exit_status[1]}"
        assert expected in found
        checked += 1
    assert checked > 120


def test_a_server_with_history_tells_the_end_of_an_array_that_is_deleted() -> None:
    changes = read_changes((RECORDED / "pbs-server_log.history-on").read_bytes())
    assert {job: changes[job] for job in changes if "[]" in job} == {
        "16[].pbs1": "1 2",
        # The server was started anew.
        "18[].pbs1": "1 2 8/0",
        "41[].pbs1": "1 2 4/0",
        "1037[].pbs1": "1 2 4/0",
    }


def test_a_server_that_starts_tells_the_end_of_each_array_once() -> None:
    start = line("enqueuing into workq, state F hop 1", "7[].vm", "0100")
    queued, run = QUEUED.replace(b"7.vm", b"7[].vm"), RUN.replace(b"7.vm", b"7[1].vm")
    parent = {"7[].vm": "1 2 8/0", "7[1].vm": "2"}
    assert read_changes(queued + run + start + start) == parent
    deleted = line("Job to be deleted at request of u@h", "7[].vm")
    assert read_changes(queued + run + deleted + start)["7[].vm"] == "1 2 4/0"
    assert read_changes(start) == read_changes(line("enqueuing into workq, state F hop 1", mask="0100")) == {}


def test_a_subjob_that_ends_by_itself_while_its_array_is_deleted_has_not_failed() -> None:
    changes = read_changes((RECORDED / "pbs-server_log.history-on").read_bytes())
    ends = {job: change.split()[-1] for job, change in changes.items() if "[]" not in job}
    # Their host told of their end before it took the signal; the others were ended by it.
    itself = [f"41[{number}].pbs1" for number in range(1, 31)] + [f"1037[{number}].pbs1" for number in range(1, 11)]
    killed = [f"41[{number}].pbs1" for number in range(31, 36)] + [f"1037[{number}].pbs1" for number in (11, 12, 13)]
    assert {job: ends[job] for job in itself} == dict.fromkeys(itself, "8/0")
    assert {job: ends[job] for job in killed} == dict.fromkeys(killed, "4/143")


EVENTS_10 = {
    "3005.vm": "1 2 8/0",
    "3006.vm": "1 2 8/3",
    "3007.vm": "1 2 4/143",
    "3008.vm": "1 4/0",
    "3009.vm": "1 2 8/0",
    "3010[].vm": "1 2",
    "3010[1].vm": "2 8/0",
    "3010[2].vm": "2 8/0",
    "3010[3].vm": "2 8/0",
    "3011.vm": "1 2 16 2 4/271",
    "3012.vm": "1 2 1 2 4/271",
    "3013.vm": "1 2 8/3",
    "3014.vm": "1 4/0",
    "3015.vm": "1 2 4/265",
    "3016.vm": "1 2 4/-29",
}
# The same was done again, 12 jobs later.
EVENTS_26 = {
    re.sub(r"\d+", lambda number: str(int(number[0]) + 12), job, count=1): EVENTS_10[job] for job in EVENTS_10
} | {"3019.vm": "1 2 4/271"}


@pytest.mark.parametrize(
    ("name", "changes"), [("pbs-server_log.events10", EVENTS_10), ("pbs-server_log.events26", EVENTS_26)]
)
def test_a_server_that_logs_less_gives_the_same_events(name: str, changes: dict[str, str]) -> None:
    assert read_changes((RECORDED / name).read_bytes()) == changes


def test_an_event_is_a_line_with_the_seconds_and_the_id_of_qsub() -> None:
    assert read_events(*read_recording("pbs-transcript.txt")[:6]) == [
        "001;1795217181;1.vm;1;0",
        "001;1795217181;1.vm;2;0",
        "001;1795217184;1.vm;8;0",
    ]


# These were not recorded: the words are those of the reference's table, of the 2004 documents and of qsig(1B).
@pytest.mark.parametrize(
    ("block", "changes"),
    [
        pytest.param(QUEUED + RUN + RUN + EXIT, "1 2 2 8/0", id="node death: only another Job Run"),
        pytest.param(
            QUEUED + RUN + line("Requeueing job, substate: 41 Requeued in queue: workq", mask="0086") + EXIT,
            "1 2 8/0",
            id="a server restart is no requeue",
        ),
        pytest.param(QUEUED + line("Job moved to other at request of u@h") + RUN, "1 2", id="qmove"),
        pytest.param(QUEUED + RUN + line("Holds u set at request of u@h") + EXIT, "1 2 8/0", id="qhold of a running"),
        pytest.param(QUEUED + line("Job deleted at request of u@h"), "1 4/0", id="Torque: qdel queued"),
        pytest.param(
            QUEUED + RUN + line("Job deleted at request of u@h") + EXIT, "1 2 4/0 4/0", id="Torque: qdel running"
        ),
        pytest.param(QUEUED + RUN + line("Exit_status=3 x", mask="0016"), "1 2 8/3", id="Torque: class in decimal"),
        pytest.param(QUEUED + RUN + line("Exit_status=3", mask="0009"), "1 2 8/3", id="mask 0009"),
        pytest.param(QUEUED + RUN + line("Exit_status=3", mask="0d80"), "1 2 8/3", id="mask 0d80"),
        pytest.param(
            QUEUED.replace(b":21;", b":21.000123;") + RUN.replace(b":21;", b":21.9;"), "1 2", id="microseconds"
        ),
        pytest.param(
            b"11/20/2026 23:26:21;0100;PBS_Server;Req;req_commit;job_id: 7.vm\n", "1", id="Torque: req_commit"
        ),
        pytest.param(
            QUEUED
            + RUN
            + line("job signaled with admin-suspend by r@h")
            + line("job signaled with admin-resume by r@h"),
            "1 2 16 2",
            id="admin-suspend",
        ),
        pytest.param(QUEUED + RUN + DELETED + EXIT, "1 2 4/0", id="qdel running, exit 0 all the same"),
        pytest.param(QUEUED + RUN + OBIT + DELETED + EXIT, "1 2 8/0", id="qdel of a job that has ended"),
        pytest.param(
            QUEUED + RUN + OBIT + DELETED + DELETED + line("Exit_status=3"), "1 2 8/3", id="two qdel of one that has"
        ),
        pytest.param(
            QUEUED + RUN + OBIT + DELETED + line("Exit_status=143"), "1 2 4/143", id="qdel of a job that TERM ended"
        ),
        pytest.param(QUEUED + RUN + OBIT + RUN + DELETED + EXIT, "1 2 2 4/0", id="qdel of a job that started again"),
        pytest.param(DELETED + OBIT + EXIT, "4/0 4/0", id="qdel of a job that ends later"),
        pytest.param(DELETED, "4/0", id="qdel of a job that we saw nothing of"),
        pytest.param(
            line("Job sent signal TermJob on delete") + DELETED + EXIT, "4/0", id="qdel of a job that started before us"
        ),
        pytest.param(QUEUED + RUN + DELETED + QUEUED + RUN + EXIT, "1 2 1 2 8/0", id="an id used again"),
        pytest.param(
            QUEUED + RUN + line("Job Rerun at request of r@h") + DELETED, "1 2 1 4/0", id="qdel queued after qrerun"
        ),
    ],
)
def test_cases_by_their_words(block: bytes, changes: str) -> None:
    assert read_changes(block) == {"7.vm": changes}


@pytest.mark.parametrize(
    "block",
    [
        QUEUED.replace(b"Queued at request of u@h,", b"Modified at request of u@h; 7.vm;Exit_status=0"),
        b"11/20/2026 23:26:21;0080;Server@h;Req;;Type 21;Job;7.vm;Exit_status=0\n",
        b"11/20/2026 23:26:21;0080;Server@h;Req;;Job;7.vm;Exit_status=0\n",
        b"11/20/2026 23:26:21;0008;Server@h;Que;x;Job;7.vm;Exit_status=0\n",
        b"11/20/2026 23:26:21;0008;Server@h;Que;7.vm;Exit_status=0\n",
        b" 11/20/2026 23:26:21;0008;Server@h;Job;7.vm;Exit_status=0\n",
        line("x;Job;7.vm;Job Run at request of"),
        line("comment = Job Run at request of Scheduler@h"),
        line("Job Running at request of Scheduler@h"),
        line("Exit_status=zero"),
        line("Exit_status=12345678901"),
        line("Exit_status=2711/20/2026"),
        line("Job Obit notice received has error 15001", mask="0009"),
        b"#" * 200 + b"\n",
    ],
)
def test_text_elsewhere_in_a_line_forges_no_event(block: bytes) -> None:
    assert read_events(block) == []


def test_an_impossible_date_gives_no_well_formed_event_and_harms_no_other() -> None:
    found = read_events(QUEUED.replace(b"11/20", b"13/40") + RUN)
    assert found == ["001;;7.vm;1;0", f"001;{seconds('11/20/2026 23:26:21')};7.vm;2;0"]


def test_what_is_remembered_is_bounded_and_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_STARTED", 10)
    parser = ServerLog()
    for number in range(100):
        parser.read_events(RUN.replace(b"7.vm", b"%d.vm" % number))
        assert b"%d.vm" % number in parser._stages
        assert len(parser._stages) <= 10
    assert parser.read_events(DELETED.replace(b"7.vm", b"99.vm")) == b""
    assert b";0.vm;4;0" in parser.read_events(DELETED.replace(b"7.vm", b"0.vm"))


@pytest.mark.parametrize(
    ("block", "time"),
    [
        (b"", None),
        (b"rest of a torn line\n", None),
        (b"13/40/2026 23:26:21;garbage\n", None),
        (b"rest\n" + EXIT, seconds("11/20/2026 23:26:21")),
        (b"11/20/2026 23:26:22.123456;0002;PBS_Server;Svr;Log;Log opened\n" + EXIT, seconds("11/20/2026 23:26:22")),
    ],
)
def test_a_block_begins_at_the_time_of_its_first_line(block: bytes, time: int | None) -> None:
    assert PBS.new_parser().read_time(block) == time


def test_the_log_is_below_pbs_home_or_where_pbs_conf_says(tmp_path: Path) -> None:
    configuration = tmp_path / "pbs.conf"
    configuration.write_text("PBS_SERVER=vm\n# PBS_HOME=/no\nPBS_HOME=/srv/pbs # here\n")
    environment = {"PBS_CONF_FILE": str(configuration)}
    assert find_log(environment) == Path("/srv/pbs/server_logs")
    assert find_log(environment | {"PBS_HOME": "/opt/pbs"}) == Path("/opt/pbs/server_logs")


def test_a_log_in_none_of_the_usual_places_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_USUAL_HOMES", (tmp_path / "none", tmp_path))
    with pytest.raises(LogNotKnown, match="PBS_HOME"):
        find_log({"PBS_CONF_FILE": str(tmp_path / "pbs.conf")})
    (tmp_path / "server_logs").mkdir()
    assert find_log({"PBS_CONF_FILE": str(tmp_path / "pbs.conf")}) == tmp_path / "server_logs"
