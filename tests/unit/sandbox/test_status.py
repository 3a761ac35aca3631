"""What the status file tells, and what may be written into it."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.status import (
    MAX_CAUGHT,
    MAX_OUTPUTS,
    MAX_PHASES,
    CaughtSignal,
    DriverStatus,
    PhaseStatus,
    fetch_status,
    read_phase,
    read_status,
)
from tests.waiting import SECONDS

REPORT = Path(__file__).parents[3] / "sandbox" / "samgrid-report.sh"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"", DriverStatus(), id="nothing yet"),
        pytest.param(
            b"\nstart 10\nhost wn1\npid 4\nindex 2\ncpu 1.25\nsignal TERM\nexit 143\nend 20\n",
            DriverStatus(start=10, end=20, exit_code=143, signal="TERM", host="wn1", pid=4, index=2, cpu_seconds=1.25),
            id="a whole run",
        ),
        pytest.param(
            b"\nstart 10\nhost wn1\npid 4\nindex 1002\ntoken k3f9zq2m-2\n",
            DriverStatus(start=10, host="wn1", pid=4, index=1002, token="k3f9zq2m-2"),
            id="a run that says whose it is",
        ),
        pytest.param(b"start 10\nindex x\nindex \ntoken A\ntoken a b\n", DriverStatus(start=10), id="bad names"),
        pytest.param(
            b"start 1\ncaught USR1 5\ncaught TERM 7 2\ncaught term 8\nexit 0\nend 9\nagain 30\n",
            DriverStatus(*(1, 9, 0), again=30, caught=(CaughtSignal("USR1", 5), CaughtSignal("TERM", 7, 2))),
            id="told to end, and started again",
        ),
        pytest.param(
            b"start 10\nscratch relative\nscratch /tmp/a b\nscratch /tmp/\xff\n",
            DriverStatus(start=10, scratch="/tmp/a b"),
            id="a scratch folder",
        ),
        pytest.param(b"start 10\nexit 1", DriverStatus(start=10), id="torn last line"),
        pytest.param(
            b"lost a\nstart 1\nlost output/x\x1b: no\nlost\nlost \n" + b"lost x\n" * 30,
            DriverStatus(start=1, lost=("output/x?: no", *["x"] * 20)),
            id="what did not come back",
        ),
        pytest.param(
            b"start 1\nexit 0\nend 9\ncaught TERM 20\nagain 30\n",
            DriverStatus(*(1, 9, 0), again=30),
            id="started again, and told to end then",
        ),
        pytest.param(b"start 10\nexi\nstart 30\n", DriverStatus(start=30), id="torn, then run again"),
        pytest.param(
            b"start 1\nphase a 1 2\nproblem x\nend 2\nexit 3\nstart 4\n",
            DriverStatus(start=4),
            id="a new start forgets",
        ),
        pytest.param(b"start x\nstart -1\nexit 1000\nend 5x\nhost a b\nnonsense\n\xff\n", DriverStatus(), id="garbage"),
        pytest.param(b"problem waits\nscratch /s\n", DriverStatus(scratch="/s"), id="room in the end"),
        pytest.param(b"problem disk \x1b[1m\xff full\n", DriverStatus(problem="disk ?[1m� full"), id="control codes"),
        pytest.param(b"problem " + b"x" * 9999 + b"\n", DriverStatus(problem="x" * 500), id="long problem"),
        pytest.param(
            b"phase b 1 9 events\nphase a 2 3\nphase b 4 9 events\n",
            DriverStatus(phases=(PhaseStatus("b", 4, 9, "events"), PhaseStatus("a", 2, 3))),
            id="a phase's last line counts, its first gives its place",
        ),
        pytest.param(b"phase a 1\nphase a/b 1 2\nphase a -1 2\nphase a 1 2 3 4\n", DriverStatus(), id="bad phases"),
    ],
)
def test_the_status_file_is_read(data: bytes, status: DriverStatus) -> None:
    assert read_status(data) == status


LONGEST = {
    "start": "9" * 11, "host": "h" * 255, "index": "9" * 9, "token": "t" + "0" * 63, "cpu": "9" * 12 + "." + "9" * 6,
    "signal": "RTMAX-1+1234", "exit": "999", "end": "9" * 11,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LONGEST.items(), ids=LONGEST.keys())
def test_a_value_has_a_longest_form(name: str, value: str) -> None:
    assert read_status(f"{name} {value}\n".encode()) != DriverStatus()
    assert read_status(f"{name} {value}{value[-1]}\n".encode()) == DriverStatus()


def test_cpu_time_may_be_whole_seconds() -> None:
    assert read_status(b"cpu 7\n") == DriverStatus(cpu_seconds=7.0)


@pytest.mark.parametrize("longer", [None, 0, 1, 2, 3], ids=["as long as may be", "name", "done", "total", "unit"])
def test_a_phase_has_a_longest_form(longer: int | None) -> None:
    words = ["a" * 40, "9" * 15, "9" * 15, "u" * 20]
    line = " ".join(word + word[0] if at == longer else word for at, word in enumerate(words))
    assert (read_phase(line.encode()) is not None) is (longer is None)


def test_a_phase_has_the_files_that_were_named_of_it() -> None:
    told = read_status(
        b"start 1\noutput reco before-the-phase\nphase reco 1 2\noutput reco b\noutput reco b\noutput other x\n"
        b"phase reco 2 2\noutput reco a b\noutput reco torn"
    )
    assert told.phases == (PhaseStatus("reco", 2, 2, "", ("before-the-phase", "b")),)
    assert read_status(b"output reco a\nstart 2\nphase reco 1 2\n").phases == (PhaseStatus("reco", 1, 2),)


def test_a_phase_names_only_so_many_files() -> None:
    lines = b"phase a 1 1\n" + b"".join(b"output a %d\n" % number for number in range(MAX_OUTPUTS + 9))
    (phase,) = read_status(lines).phases
    assert len(phase.outputs) == MAX_OUTPUTS


def test_only_so_many_phases_name_files() -> None:
    named = b"".join(b"output p%d a\n" % number for number in range(MAX_PHASES + 1)) + b"output p0 b\n"
    told = read_status(b"".join(b"phase p%d 1 1\n" % at for at in (0, MAX_PHASES - 1, MAX_PHASES)) + named).phases
    assert [phase.outputs for phase in told] == [("a", "b"), ("a",), ()]


def test_of_endless_signals_the_first_count() -> None:
    data = b"".join(b"caught TERM %d\n" % number for number in range(MAX_CAUGHT + 1))
    assert [caught.time for caught in read_status(data).caught] == list(range(MAX_CAUGHT))


def test_endless_phases_do_not_fill_the_memory() -> None:
    data = b"".join(b"phase p%d 1 2\n" % number for number in range(1000)) + b"phase p5 2 2\n"
    phases = read_status(data).phases
    assert len(phases) == MAX_PHASES
    assert phases[5] == PhaseStatus("p5", 2, 2)


@given(
    st.binary(max_size=300) | st.lists(st.sampled_from([b"start 1\n", b"end", b" 9\n", b"phase a 1 2\n"])).map(b"".join)
)
def test_no_content_can_break_the_reader(data: bytes) -> None:
    assert isinstance(read_status(data), DriverStatus)


def test_a_missing_status_file_is_an_empty_status(room: Path) -> None:
    assert fetch_status(room / "none") == DriverStatus()


def test_of_a_huge_status_file_the_first_and_last_part_are_read(room: Path) -> None:
    file = room / "status"
    file.write_bytes(b"start 10\n" + b"exit 99 \n" * 300_000 + b"exit 0\nend 20\n")
    assert fetch_status(file) == DriverStatus(start=10, exit_code=0, end=20)


def test_of_a_huge_status_file_every_whole_line_of_both_parts_counts_and_none_between(room: Path) -> None:
    first, last = b"start 10\nhost n1\n", b"\ntoken k3f9zq2m-1\npro"
    head = first + last.rjust(512 * 1024 - len(first), b"x")
    tail = b"y\nexit 0\n".ljust(16 * 1024 - 8, b"z") + b"\nend 20\n"
    (room / "status").write_bytes(head + b"blem x\nsignal TERM\ny" + tail)
    expected = DriverStatus(start=10, host="n1", token="k3f9zq2m-1", exit_code=0, end=20)
    assert fetch_status(room / "status") == expected


def test_a_cut_in_a_huge_status_file_makes_no_line_of_its_own(room: Path) -> None:
    file = room / "status"
    head = b"start 10\n".ljust(512 * 1024 - 5, b"x") + b"\nexit"
    file.write_bytes(head + b" 7 is no line\n" + b"\n 7\n".rjust(16 * 1024, b"y"))
    assert fetch_status(file) == DriverStatus(start=10)


def test_a_link_in_place_of_a_status_file_is_not_followed(room: Path) -> None:
    (room / "status").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        fetch_status(room / "status")


def test_a_named_pipe_in_place_of_a_status_file_is_not_waited_for(room: Path) -> None:
    os.mkfifo(room / "status")
    with pytest.raises(OSError, match=r"no regular file: '.*/status'$") as raised:
        fetch_status(room / "status")
    assert raised.value.errno == errno.EINVAL


def report(status: Path | None, *words: str) -> int:
    environment = {"PATH": os.environ["PATH"]} | ({"SAMGRID_STATUS": str(status)} if status else {})
    return subprocess.run(["/bin/sh", REPORT, *words], env=environment, check=False, capture_output=True).returncode


@pytest.mark.parametrize(
    ("words", "line"),
    [
        pytest.param(("phase", "generate", "1/250", "events"), "phase generate 1 250 events\n", id="with unit"),
        pytest.param(("phase", "a.b-C_9", "0/0"), "phase a.b-C_9 0 0\n", id="without unit"),
        pytest.param(
            ("output", "reco", "a.root", "b/c_1.log"), "output reco a.root\noutput reco b/c_1.log\n", id="files"
        ),
    ],
)
def test_a_report_becomes_a_line(room: Path, words: tuple[str, ...], line: str) -> None:
    status = room / "status"
    status.touch()
    assert report(status, *words) == 0
    assert status.read_text() == line


@pytest.mark.parametrize(
    "words",
    [
        *((), ("phase",), ("phase", "a", "1/2", "u", "more"), ("state", "a", "1/2"), ("outputs", "a", "file")),
        *(("phase", name, "1/2") for name in ("", "a b", "a\nend 9", "é", "a" * 41)),
        *(("phase", "a", amount) for amount in ("12", "1/2/3", "/2", "-1/2", "1/2.5", "1/" + "9" * 16)),
        *(("phase", "a", "1/2", unit) for unit in ("u v", "u" * 21)),
        *(("output",), ("output", "a"), ("output", "a b", "file"), ("output", "a", "file", "/etc/passwd")),
        *(("output", "a", name) for name in ("two words", "f\nend 9", "f" * 201)),
    ],
    ids=repr,
)
def test_a_report_that_is_not_understood_writes_nothing(room: Path, words: tuple[str, ...]) -> None:
    status = room / "status"
    status.touch()
    assert report(status, *words) == 2
    assert status.read_bytes() == b""


def test_a_report_outside_a_local_job_says_so(room: Path) -> None:
    assert report(None, "phase", "a", "1/2") == 2
    assert report(room / "absent", "phase", "a", "1/2") == 2
    assert list(room.iterdir()) == []


def test_a_full_status_file_takes_only_the_ends_of_phases(room: Path) -> None:
    status = room / "status"
    status.write_bytes(b"\n" * 262_143)
    assert report(status, "phase", "a", "1/2") == 0
    assert report(status, "phase", "a", "1/2") == 1
    assert report(status, "phase", "a", "2/2") == 0
    assert read_status(status.read_bytes()).phases == (PhaseStatus("a", 2, 2),)


def report_xml(room: Path, text: str) -> None:
    (room / "file").write_text(text)
    assert report(room / "k3f9zq2m.1.status", "xml", str(room / "file")) == 0


def waiting_xml(room: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (room / "reports").iterdir()}


def test_xml_waits_whole_and_in_its_order(room: Path) -> None:
    (room / "k3f9zq2m.1.status").touch()
    (room / "reports").mkdir()
    for text in ("<a/>", "<b/>"):
        report_xml(room, text)
    assert waiting_xml(room) == {"k3f9zq2m.1.1.xml": "<a/>", "k3f9zq2m.1.2.xml": "<b/>"}
    assert {path.stat().st_mode & 0o777 for path in (room / "reports").iterdir()} == {0o600}
    # Somebody has read the first: the next one still comes after the second.
    (room / "reports" / "k3f9zq2m.1.1.xml").unlink()
    report_xml(room, "<c/>")
    assert waiting_xml(room) == {"k3f9zq2m.1.2.xml": "<b/>", "k3f9zq2m.1.3.xml": "<c/>"}


def test_where_ten_wait_the_newest_takes_the_place_of_the_one_before(room: Path) -> None:
    (room / "k3f9zq2m.1.status").touch()
    (room / "reports").mkdir()
    for number in range(1, 13):
        report_xml(room, f"<x{number}/>")
    expected = {f"k3f9zq2m.1.{number}.xml": f"<x{number}/>" for number in range(1, 10)}
    assert waiting_xml(room) == {**expected, "k3f9zq2m.1.10.xml": "<x12/>"}


def test_two_processes_that_report_at_once_are_both_heard(room: Path) -> None:
    (room / "k3f9zq2m.1.status").touch()
    (room / "reports").mkdir()
    (room / "file").write_text("<x/>")
    command = ["/bin/sh", str(REPORT), "xml", str(room / "file")]
    environment = {"PATH": os.environ["PATH"], "SAMGRID_STATUS": str(room / "k3f9zq2m.1.status")}
    reporters = [subprocess.Popen(command, env=environment) for _ in range(8)]
    assert [reporter.wait(SECONDS) for reporter in reporters] == [0] * 8
    assert len(waiting_xml(room)) == 8


@pytest.mark.parametrize("size", [65536, 65537])
def test_xml_of_more_than_64_kib_is_not_understood(room: Path, size: int) -> None:
    (room / "status").touch()
    (room / "reports").mkdir()
    (room / "file").write_bytes(b"x" * size)
    assert report(room / "status", "xml", str(room / "file")) == (0 if size == 65536 else 2)
    assert len(list((room / "reports").iterdir())) == (1 if size == 65536 else 0)


@pytest.mark.parametrize("words", [("xml",), ("xml", "absent"), ("xml", "/"), ("xml", "/dev/null", "more")], ids=repr)
def test_what_is_no_file_is_not_reported(room: Path, words: tuple[str, ...]) -> None:
    (room / "status").touch()
    (room / "reports").mkdir()
    assert report(room / "status", *words) == 2
    assert list((room / "reports").iterdir()) == []


def test_xml_that_finds_no_folder_is_not_taken(room: Path) -> None:
    (room / "status").touch()
    (room / "file").write_text("<x/>")
    assert report(room / "status", "xml", str(room / "file")) == 1


@pytest.mark.parametrize(
    ("caught", "interruption"),
    [
        pytest.param([("TERM", None)], "TERM", id="while the program ran"),
        pytest.param([("TERM", 1)], "TERM", id="at the moment of its end"),
        pytest.param([("TERM", 2)], "TERM", id="on a busy host, where all are not told at once"),
        pytest.param([("TERM", 6)], None, id="after its end"),
        pytest.param([("USR1", None), ("USR2", None)], None, id="warnings"),
        pytest.param([("USR1", None), ("INT", None), ("TERM", None)], "INT", id="the first that ends"),
    ],
)
def test_a_signal_interrupts_where_it_may_have_ended_the_program(
    caught: list[tuple[str, int | None]], interruption: str | None
) -> None:
    signals = tuple(CaughtSignal(name, 7, after) for name, after in caught)
    assert DriverStatus(start=1, caught=signals).interruption == interruption
