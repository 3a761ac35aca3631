"""What is known of started jobs, and the processes they name."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_adapters.fork.processes import (
    Process,
    find_ended_children,
    has_children,
    is_alive,
    is_waited_for,
    read_own_end,
    read_process,
)
from batch_adapters.fork.spool import (
    JobEnd,
    JobRun,
    is_token,
    read_local_id,
    read_run,
    read_run_file,
    remove_claim,
    render_end,
    render_process,
    write_claim,
    write_events,
    write_line,
    write_to_claim,
)
from batch_adapters.launch import LAUNCH
from batch_adapters.states import Event, State

JOB = Process(10, 1000, "4f6b0c1e-0000-4000-8000-00000000beef")
LINE = f"process 10 1000 {JOB.boot}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = tmp_path / "records"
    records.mkdir()
    return records


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("text", "run"),
    [
        pytest.param("", JobRun(), id="claimed"),
        pytest.param(LINE, JobRun(JOB), id="running"),
        pytest.param(LINE + "end 8 3 77\n", JobRun(JOB, JobEnd(State.DONE, 3, 77)), id="done"),
        pytest.param(LINE + "end 4 143 77\n", JobRun(JOB, JobEnd(State.FAILED, 143, 77)), id="killed"),
        pytest.param(LINE + "end 8\nend 8 0 7\n", JobRun(JOB, JobEnd(State.DONE, 0, 7)), id="torn, whole"),
        pytest.param(LINE + "end 8 0 7", JobRun(JOB), id="half an end is none"),
        pytest.param(LINE[:-9], JobRun(), id="half a process is none"),
        pytest.param(f"{LINE[:-9]}\n{LINE}", JobRun(JOB), id="half a process, then all of it"),
        pytest.param(LINE[:-1], JobRun(), id="a process that may go on"),
        pytest.param(f"{LINE[:-1]} 9 900\n", JobRun(JOB), id="of an earlier version"),
        pytest.param("end 8 0 7\n", JobRun(end=JobEnd(State.DONE, 0, 7)), id="a process that could not be written"),
        pytest.param("\0\0\0", JobRun(), id="zeros after a power failure"),
    ],
)
def test_what_is_known_of_a_started_job_is_read(text: str, run: JobRun) -> None:
    assert read_run(text) == run


def test_what_is_rendered_is_read_again() -> None:
    end = JobEnd(State.FAILED, 255, 7)
    assert read_run(render_process(JOB) + render_end(end)) == JobRun(JOB, end)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("k3f9zq2m-1.250", ("k3f9zq2m-1", 250), id="local id"),
        pytest.param("a.1", ("a", 1), id="shortest"),
        pytest.param("a.0", None, id="index 0"),
        pytest.param("a.01", None, id="leading zero"),
        pytest.param("a.1.2", None, id="two points"),
        pytest.param("../x.1", None, id="path"),
        pytest.param("A.1", None, id="capital"),
        pytest.param("a.1\n", None, id="linefeed"),
        pytest.param("a" * 16 + ".1", None, id="long token"),
        pytest.param("a.1234567890", None, id="long index"),
    ],
)
def test_local_ids_are_read_and_nothing_else(text: str, place: tuple[str, int] | None) -> None:
    assert read_local_id(text) == place


def test_a_token_is_one_word_of_at_most_fifteen_characters() -> None:
    assert is_token("a23456789012345")
    assert not any(map(is_token, ["", "1a", "a" * 16, "a.b", "a/b", "a\n", "starter.lock"]))


def test_of_claims_to_one_job_the_first_is_made(folder: Path) -> None:
    assert read_run_file(folder / "a.1") is None
    assert write_claim(folder / "a.1")
    write_line(folder / "a.1", LINE)
    assert not write_claim(folder / "a.1")
    assert read_run_file(folder / "a.1") == JobRun(JOB)
    assert (folder / "a.1").stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "1").symlink_to("elsewhere")
    with pytest.raises(OSError, match=r".+"):
        write_line(tmp_path / "1", "end")
    assert (tmp_path / "elsewhere").read_text() == ""


def test_events_of_many_writers_stay_whole_lines(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        for number in range(100):
            write_events(tmp_path / "events", [Event(number, f"w{writer}.1", State.ACTIVE)])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "events").read_text().splitlines()
    assert sorted(lines) == sorted(f"001;{n};w{w}.1;2;0" for w in range(4) for n in range(100))


def test_a_full_disk_is_an_error_not_a_lost_event(tmp_path: Path) -> None:
    (tmp_path / "events").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_events(tmp_path / "events", [Event(1, "a.1", State.DONE)])


def test_a_running_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    process = read_process(sleeper.pid)
    assert process is not None
    assert is_alive(process)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another-boot"}], ids=["reused pid", "before this boot"])
def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[bytes], change: dict[str, object]) -> None:
    process = read_process(sleeper.pid)
    assert process is not None
    assert not is_alive(dataclasses.replace(process, **change))  # type: ignore[arg-type]


def test_a_zombie_is_dead_and_its_end_is_known_to_its_parent_alone(sleeper: subprocess.Popen[bytes]) -> None:
    process = read_process(sleeper.pid)
    assert process is not None
    assert read_own_end(process) is None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    assert read_process(sleeper.pid) is None
    end = read_own_end(process)
    assert end is not None
    assert (end.si_code, end.si_status) == (os.CLD_KILLED, 9)
    assert read_own_end(dataclasses.replace(process, started=1)) is None


_PARENT = """
import os, subprocess
child = subprocess.Popen(["/bin/true"])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(child.pid, flush=True)
input()
"""


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        pytest.param(("--spool", "/a/spool", "serve"), True, id="serves the spool"),
        pytest.param(("--spool", "/another/spool", "serve"), False, id="serves another"),
        pytest.param(("--spool", "/a/spool", "query"), False, id="does not serve"),
    ],
)
def test_a_zombie_is_waited_for_by_a_parent_that_serves_the_spool(words: tuple[str, ...], answer: bool) -> None:
    # Of a session of its own, as is a starter of an earlier version whose queue has been killed.
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        process = read_process(int(parent.stdout.readline()), zombie=True)
        assert process is not None
        assert is_waited_for(process, Path("/a/spool")) == answer
        assert not is_waited_for(dataclasses.replace(process, started=1), Path("/a/spool"))
        parent.communicate("\n")
    assert not is_waited_for(process, Path("/a/spool"))


def test_children_are_known_until_they_are_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    process = read_process(sleeper.pid)
    assert has_children()
    assert process not in find_ended_children()
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process in find_ended_children()
    sleeper.wait()
    assert process not in find_ended_children()
    code = "from batch_adapters.fork import processes as p; print(p.has_children(), p.find_ended_children())"
    answer = subprocess.run([sys.executable, "-c", code], cwd=LAUNCH.parents[1], stdout=subprocess.PIPE, text=True)
    assert answer.stdout == "False []\n"


def test_a_pid_that_nobody_has_is_no_process() -> None:
    assert read_process(2**22 + 1) is None


def link_away(path: Path) -> None:
    path.symlink_to(os.devnull)


def fill_folder(path: Path) -> None:
    (path / "deep" / "in").mkdir(parents=True)
    (path / "deep").chmod(0)


@pytest.mark.parametrize("make", [link_away, os.mkfifo, fill_folder], ids=["link", "pipe", "folder"])
def test_what_a_job_puts_in_the_place_of_its_claim_holds_up_nobody(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    claim = tmp_path / "tok.1"
    make(claim)
    write_to_claim(claim, LINE)
    assert read_run_file(claim) == JobRun()
    for _ in range(2):
        remove_claim(claim)
        assert list(tmp_path.iterdir()) == []


def test_a_claim_that_cannot_be_written_now_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_to_claim(tmp_path / "tok.1", LINE)

    def fail(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="No space left"):
        write_to_claim(tmp_path / "tok.1", LINE)
    with pytest.raises(OSError, match="No space left"):
        read_run_file(tmp_path / "tok.1")
