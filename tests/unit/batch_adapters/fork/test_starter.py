"""The fork starter as a process, spoken to by hand."""

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from batch_adapters.fork.processes import read_process
from batch_adapters.fork.protocol import StartRefused, StartRequest, read_wire, render_wire
from batch_adapters.fork.spool import JobRun, read_run_file
from batch_adapters.fork.starter import run_program
from batch_adapters.launch import LAUNCH, command_line
from batch_adapters.states import Event, GramError, State, read_event
from tests.unit.batch_adapters.fork.messages import NotStarted, Started, read_answer, render_start_request
from tests.waiting import SECONDS, wait_until


class Starter:
    """A fork starter process and the log it writes."""

    def __init__(
        self,
        folder: Path,
        *,
        ignored: Sequence[signal.Signals] = (),
        leaked: Sequence[int] = (),
    ) -> None:
        self.log = folder / "log"
        with contextlib.ExitStack() as stack:
            for number in ignored:
                # What we ignore, the starter inherits as ignored.
                stack.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))
            self.process = subprocess.Popen(
                command_line("samgrid-fork-starter", str(self.log)),
                cwd=LAUNCH.parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                restore_signals=False,
                pass_fds=leaked,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input = self.process.stdin
        self.output = self.process.stdout

    def write(self, request: StartRequest) -> None:
        self.input.write(render_wire(render_start_request(request)))
        self.input.flush()

    def ask(self, request: StartRequest) -> Started | NotStarted:
        self.write(request)
        return read_answer(read_wire(self.output.readline()))

    def run(self, request: StartRequest) -> tuple[int, ...]:
        answer = self.ask(request)
        assert isinstance(answer, Started), answer
        return answer.pids

    def events(self) -> list[Event]:
        if not self.log.exists():
            return []
        events = [read_event(line) for line in self.log.read_text().splitlines(keepends=True)]
        return [event for event in events if event is not None]

    def end_of(self, local_id: str) -> tuple[State, int]:
        wait_until(lambda: any(event.local_id == local_id and event.state.is_final for event in self.events()))
        event = next(event for event in self.events() if event.local_id == local_id and event.state.is_final)
        return event.state, event.exit_code

    def close(self) -> None:
        self.output.close()
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        assert self.process.wait(SECONDS) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Starter]]:
    """Starts starters, which end well afterwards."""
    with contextlib.ExitStack() as stack:

        def start() -> Starter:
            starter = Starter(tmp_path)
            stack.callback(starter.close)
            return starter

        yield start


@pytest.fixture
def starter(start: Callable[..., Starter]) -> Starter:
    return start()


def sh(
    script: str, *, tag: str = "t", directory: str = "/", stdout: tuple[str, ...] = (), count: int = 1
) -> StartRequest:
    return StartRequest(tag, "/bin/sh", ("-c", script), directory=directory, stdout=stdout, count=count)


def test_a_job_is_started_answered_and_logged_under_its_pid(starter: Starter) -> None:
    (pid,) = starter.run(sh("exit 7"))
    assert starter.end_of(str(pid)) == (State.DONE, 7)
    assert [event.state for event in starter.events()] == [State.ACTIVE, State.DONE]
    assert starter.log.stat().st_mode & 0o777 == 0o600


def test_count_two_starts_two_processes_with_files_of_their_own(starter: Starter, tmp_path: Path) -> None:
    files = (str(tmp_path / "0"), str(tmp_path / "1"))
    pids = starter.run(sh("echo $$", stdout=files, count=2))
    assert [starter.end_of(str(pid)) for pid in pids] == [(State.DONE, 0)] * 2
    assert [Path(file).read_text() for file in files] == [f"{pid}\n" for pid in pids]


def test_a_killed_job_has_failed_with_128_and_the_signal(starter: Starter) -> None:
    (pid,) = starter.run(sh("kill -9 $$"))
    assert starter.end_of(str(pid)) == (State.FAILED, 137)


REFUSALS = [
    pytest.param(StartRequest("t", "/bin/true", directory="/no/such"), GramError.BAD_DIRECTORY, id="directory"),
    pytest.param(StartRequest("t", "/no/such"), GramError.EXECUTABLE_NOT_FOUND, id="executable"),
    pytest.param(StartRequest("t", "/etc/passwd/x"), GramError.EXECUTABLE_NOT_FOUND, id="executable below a file"),
    pytest.param(StartRequest("t", "/etc/passwd"), GramError.EXECUTABLE_PERMISSIONS, id="not executable"),
    pytest.param(StartRequest("t", "/bin/true", stdin="/no/such"), GramError.STDIN_NOT_FOUND, id="stdin"),
    pytest.param(StartRequest("t", "/bin/true", stdout=("/no/such",)), GramError.OPENING_STDOUT, id="stdout"),
    pytest.param(StartRequest("t", "/bin/true", stderr=("/no/such",)), GramError.OPENING_STDERR, id="stderr"),
]


def test_what_cannot_be_started_is_refused_with_a_gram_error_and_not_logged(starter: Starter) -> None:
    for case in REFUSALS:
        request, error = case.values
        assert isinstance(request, StartRequest)
        answer = starter.ask(request)
        assert isinstance(answer, NotStarted)
        assert (answer.tag, answer.error) == ("t", error)
        assert answer.reason
    assert starter.events() == []


def test_a_garbled_line_is_refused_and_the_next_is_obeyed(starter: Starter) -> None:
    starter.input.write(b"hello\n")
    assert isinstance(starter.ask(sh("exit 0")), NotStarted)
    assert isinstance(read_answer(read_wire(starter.output.readline())), Started)


def test_of_a_request_that_fails_half_way_nothing_runs_on(starter: Starter, tmp_path: Path) -> None:
    files = (str(tmp_path / "0"), "/no/such")
    answer = starter.ask(sh("echo $$; exec sleep 60", stdout=files, count=2))
    assert isinstance(answer, NotStarted)
    assert answer.error == GramError.OPENING_STDOUT
    printed = (tmp_path / "0").read_text()
    assert not printed or read_process(int(printed)) is None
    assert starter.events() == []


def test_arguments_and_environment_of_any_bytes_arrive(starter: Starter, tmp_path: Path) -> None:
    arguments = (b"\xff;,=\\n\n\\", b"", "é".encode())
    script = tmp_path / "script"
    script.write_text('#!/bin/sh\nprintf "%s|" "$@" "$X" "$0"\n')
    script.chmod(0o700)
    request = StartRequest(
        tag="t",
        executable=str(script),
        arguments=tuple(map(read_wire, arguments)),
        environment=(("X", read_wire(b"\xfe=;")),),
        stdout=(str(tmp_path / "out"),),
    )
    (pid,) = starter.run(request)
    assert starter.end_of(str(pid)) == (State.DONE, 0)
    printed = (tmp_path / "out").read_bytes().split(b"|")
    assert printed == [*arguments, b"\xfe=;", str(script).encode(), b""]


def test_a_job_gets_the_environment_it_was_given_and_no_other(starter: Starter, tmp_path: Path) -> None:
    request = StartRequest("t", "/usr/bin/env", environment=(("A", "1"),), stdout=(str(tmp_path / "out"),))
    (pid,) = starter.run(request)
    starter.end_of(str(pid))
    assert (tmp_path / "out").read_text() == "A=1\n"


def test_a_job_leads_a_session_with_default_signals_and_three_descriptors(tmp_path: Path) -> None:
    leaked = [os.dup2(0, number) for number in (50, 500)]
    starter = Starter(tmp_path, ignored=(signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE), leaked=leaked)
    for number in leaked:
        os.close(number)
    out = str(tmp_path / "out")
    (pid,) = starter.run(StartRequest("t", "/bin/cat", ("/proc/self/stat", "/proc/self/status"), stdout=(out,)))
    assert starter.end_of(str(pid)) == (State.DONE, 0)
    stat, *status = Path(out).read_text().splitlines()
    assert stat.split()[4:6] == [str(pid), str(pid)], "process group and session"
    ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
    # Signals 32 and 33 are the C library's own: whoever started us may have them ignored, and nobody can change it.
    assert ignored & ~(0b11 << 31) == 0
    assert "SigBlk:\t0000000000000000" in status
    (pid,) = starter.run(StartRequest("t", "/bin/ls", ("/proc/self/fd",), stdout=(str(tmp_path / "fds"),)))
    starter.end_of(str(pid))
    # The fourth is the listing's own.
    assert (tmp_path / "fds").read_text().split() == ["0", "1", "2", "3"]
    starter.close()


def test_what_a_leader_leaves_of_its_group_is_killed(starter: Starter, tmp_path: Path) -> None:
    script = "trap '' TERM HUP; sleep 60 & echo $! > rest; exit 3"
    (pid,) = starter.run(sh(script, directory=str(tmp_path)))
    assert starter.end_of(str(pid)) == (State.DONE, 3)
    rest = int((tmp_path / "rest").read_text())
    wait_until(lambda: read_process(rest) is None)


def test_after_stdin_is_closed_the_starter_stays_until_its_jobs_have_ended(starter: Starter, tmp_path: Path) -> None:
    (pid,) = starter.run(sh("until [ -e go ]; do sleep 0.02; done; exit 5", directory=str(tmp_path)))
    starter.input.close()
    # Another starter process takes longer to come and go than this one to see its input closed.
    Starter(tmp_path).close()
    assert starter.process.poll() is None
    (tmp_path / "go").touch()
    assert starter.process.wait(SECONDS) == 0
    assert starter.end_of(str(pid)) == (State.DONE, 5)


def test_what_was_asked_before_stdin_was_closed_is_started(starter: Starter) -> None:
    starter.write(sh("exit 4", tag="last"))
    starter.input.close()
    answer = read_answer(read_wire(starter.output.readline()))
    assert isinstance(answer, Started)
    assert starter.process.wait(SECONDS) == 0
    assert starter.end_of(str(answer.pids[0])) == (State.DONE, 4)


def test_after_stdout_is_closed_nothing_is_started(starter: Starter, tmp_path: Path) -> None:
    (pid,) = starter.run(sh("until [ -e go ]; do sleep 0.02; done", directory=str(tmp_path)))
    starter.output.close()
    with contextlib.suppress(BrokenPipeError):
        starter.write(sh("touch started", directory=str(tmp_path)))
    (tmp_path / "go").touch()
    assert starter.process.wait(SECONDS) == 0
    assert starter.end_of(str(pid)) == (State.DONE, 0)
    assert not (tmp_path / "started").exists()


def test_a_starter_without_any_standard_file_ends(tmp_path: Path) -> None:
    argv = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command_line("samgrid-fork-starter")]
    assert subprocess.run([*argv, str(tmp_path / "log")], timeout=SECONDS, check=False).returncode == 0


def lead_log_to(target: str, folder: Path) -> None:
    (folder / "link").symlink_to(target)
    (folder / "link").replace(folder / "log")


def test_an_end_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    lead_log_to("real", tmp_path)
    starter = Starter(tmp_path)
    starter.ask(StartRequest("t", "/no/such"))
    lead_log_to("/dev/full", tmp_path)
    (pid,) = starter.run(sh("exit 6"))
    starter.input.close()
    wait_until(lambda: read_process(pid) is None)
    assert starter.process.poll() is None
    lead_log_to("real", tmp_path)
    assert starter.process.wait(SECONDS) == 0
    assert [(event.state, event.exit_code) for event in starter.events()] == [(State.ACTIVE, 0), (State.DONE, 6)]
    starter.close()


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        pytest.param([], 2, id="no log"),
        pytest.param(["-x"], 2, id="unknown option"),
        pytest.param(["a", "b"], 2, id="two logs"),
        pytest.param(["/no/such/log"], 1, id="log that cannot be written"),
    ],
)
def test_a_wrong_call_is_an_error(argv: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    from batch_adapters.fork.starter import main

    assert main(argv) == status
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- as the queue starts them


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_job_claims_itself_and_finds_its_claim_in_its_environment(claims: Path, tmp_path: Path) -> None:
    claim = claims / "tok.1"
    script = 'ls "$SAMGRID_FORK_CLAIM" && echo "$SAMGRID_FORK_STARTED"'
    pid = run_program(sh(script, tag="tok.1", stdout=(str(tmp_path / "out"),)), 0, claim)
    assert os.waitpid(pid, 0)[1] == 0
    path, started = (tmp_path / "out").read_text().split()
    assert (path, read_run_file(claim)) == (str(claim), JobRun())
    assert abs(int(started) - claim.stat().st_mtime) < 10


def test_a_claim_that_comes_between_keeps_the_program_from_starting(claims: Path, tmp_path: Path) -> None:
    claim = claims / "tok.1"
    claim.touch()
    # The process itself makes the claim: to look before is not what keeps it from starting.
    with pytest.raises(StartRefused, match="File exists"):
        run_program(sh("touch ran", tag="tok.1", directory=str(tmp_path)), 0, claim)
    assert not (tmp_path / "ran").exists()


def test_a_named_pipe_in_the_place_of_a_jobs_file_holds_up_nobody(starter: Starter, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    answer = starter.ask(sh("exit", stdout=(str(tmp_path / "pipe"),)))
    assert isinstance(answer, NotStarted)
    assert answer.error == GramError.OPENING_STDOUT
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        (pid,) = starter.run(sh("echo out", stdout=(str(tmp_path / "pipe"),)))
        assert starter.end_of(str(pid)) == (State.DONE, 0)
        assert reader.read() == b"out\n"


@pytest.mark.parametrize("what", ["posix_spawn", "open"])
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.EROFS, errno.EIO])
def test_what_a_machine_that_is_short_of_something_cannot_start_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    def fail(*arguments: object, **options: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, what, fail)
    with pytest.raises(StartRefused) as refusal:
        run_program(sh("exit"), 0, None)
    assert not refusal.value.for_good
