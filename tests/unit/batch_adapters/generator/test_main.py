"""The generator as a process: its command line, its ends, its exit statuses."""

import fcntl
import itertools
import os
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.generator.emit import StandardOutput
from batch_adapters.generator.process import Watch
from batch_adapters.launch import command_line
from batch_adapters.registry import EVENT_MODULES
from tests.forked_samgrid import run_forked
from tests.samgrid import LAUNCH
from tests.unit.batch_adapters.generator.generator_process import (
    PROGRAM,
    Start,
    close_input,
    read_errors,
    starting,
)
from tests.unit.batch_adapters.generator.generator_process import read as read_until
from tests.waiting import SECONDS, wait_until


def line(number: int, second: int = 1795219187) -> bytes:
    return b"001;%d;job.%d;2;0\n" % (second, number)


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as start:
        yield start


def read(process: "subprocess.Popen[bytes]", size: int) -> bytes:
    return read_until(process, lambda data: len(data) >= size)


def count_waiting(stdout: int) -> int:
    """How many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(stdout, termios.FIONREAD, bytes(4)), sys.byteorder)


def append(log: Path, *lines: bytes) -> None:
    with log.open("ab", buffering=0) as file:
        file.write(b"".join(lines))


def test_events_come_from_the_start_time_on_through_rotations_until_the_input_ends(
    tmp_path: Path, start: Start
) -> None:
    log = tmp_path / "events"
    append(log, line(1, 99), line(2, 100), b"garbage\n", line(3, 101))
    process = start("-s", "fork", "-t", "100", "-l", log)
    expected = line(2, 100) + line(3, 101)
    assert read(process, len(expected)) == expected
    for number in range(10):
        append(log, line(number))
        log.rename(tmp_path / "events.1")
        append(log, line(number + 100))
        expected = line(number) + line(number + 100)
        assert read(process, len(expected)) == expected
    assert close_input(process) == 0
    assert read_errors(process) == f"{PROGRAM}: 1 malformed events were skipped\n"


def test_without_a_start_time_a_late_log_is_read_whole(tmp_path: Path, start: Start) -> None:
    folder, pid_file = tmp_path / "later", tmp_path / "pid"
    process = start("-s", "fork", "--interval", "0.01", "--log", folder / "events", "-p", pid_file)
    # It looked for the log before it wrote its process id.
    wait_until(pid_file.exists)
    folder.mkdir()
    append(folder / "events", line(1), line(2)[:9])
    assert read(process, len(line(1))) == line(1)
    append(folder / "events", line(2)[9:])
    assert read(process, len(line(2))) == line(2)


def test_a_link_of_globus_name_is_the_same_program(tmp_path: Path) -> None:
    # As pip writes it.
    script = tmp_path / "bin" / PROGRAM
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(LAUNCH.parents[1])!r})\n"
        "from batch_adapters.launch import run\nsys.exit(run())\n"
    )
    script.chmod(0o700)
    folder = tmp_path / "globus"
    folder.mkdir()
    link = folder / "globus-scheduler-event-generator"
    link.symlink_to(script)
    (tmp_path / "events").write_bytes(line(1))
    command: list[str | Path] = [link, "-s", "fork", "-t", "1", "-l", tmp_path / "events"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert read(process, len(line(1))) == line(1)
        assert close_input(process) == 0


@pytest.mark.parametrize("arguments", [[], ["-t", "0"]], ids=["no start time", "0"])
def test_what_was_logged_before_is_not_told_until_a_line_on_the_input_asks_for_it(
    tmp_path: Path, start: Start, arguments: list[str]
) -> None:
    log = tmp_path / "events"
    append(log, line(1, 99), line(2, 100), line(3, 101))
    pid_file = tmp_path / "pid"
    process = start("-s", "fork", *arguments, "-l", log, "-p", pid_file)
    # The log was opened before.
    wait_until(pid_file.exists)
    append(log, line(4))
    assert read(process, len(line(4))) == line(4)
    assert process.stdin is not None
    process.stdin.write(b"100 nonsense\n200 10")
    process.stdin.flush()
    process.stdin.write(b"0\n")
    process.stdin.flush()
    expected = line(2, 100) + line(3, 101) + line(4)
    assert read(process, len(expected)) == expected


def test_a_start_time_that_is_told_later_leaves_out_what_is_older(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "events"
    append(log, line(1, 500))
    process = start("-s", "fork", "-t", "100", "-l", log, "--interval", "0.01")
    assert read(process, len(line(1, 500))) == line(1, 500)
    assert process.stdin is not None
    process.stdin.write(b"200 1000\n200 200\n")
    process.stdin.flush()
    # A line that is older comes and goes until it is left out.
    for number in itertools.count():
        append(log, line(number, 999), line(number, 1000))
        if read(process, len(line(number, 1000))) == line(number, 1000):
            break
        assert number < 10_000


def test_a_large_log_comes_whole_through_a_pipe_whose_reader_is_slow(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "events"
    lines = b"".join(line(number) for number in range(100_000))
    log.write_bytes(lines)
    process = start("-s", "fork", "-t", "1", "-l", log)
    assert process.stdout is not None
    # By then, the pipe has no room for the second block.
    assert select.select([process.stdout], [], [], SECONDS)[0]
    assert read(process, len(lines)) == lines


def test_who_shares_our_output_may_block_on_it_as_before() -> None:
    reader, writer = os.pipe()
    StandardOutput(writer, Watch([], None, writer)).write(line(1))
    assert os.read(reader, 100) == line(1)
    assert os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_may_not_be_opened_again_gets_its_lines_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(path, flags)

    reader, writer = os.pipe()
    watch = Watch([], None, writer)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        StandardOutput(writer, watch).write(line(1) * 1000)
    assert os.read(reader, 100_000) == line(1) * 1000
    os.close(reader)
    os.close(writer)


def test_output_to_a_file_is_appended_where_the_file_stands(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as file:
        file.write(b"before\n")
        StandardOutput(file.fileno(), Watch([], None, file.fileno())).write(line(1) * 1000)
        file.write(b"after\n")
    assert (tmp_path / "out").read_bytes() == b"before\n" + line(1) * 1000 + b"after\n"


def test_a_large_log_is_given_up_at_once_when_the_input_ends(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "events"
    log.write_bytes(b"".join(line(number) for number in range(100_000)))
    process = start("-s", "fork", "-t", "1", "-l", log)
    assert process.stdout is not None
    stdout = process.stdout.fileno()
    # There is room for a few pages, not for a block.
    read(process, 20_000)
    wait_until(lambda: count_waiting(stdout) > fcntl.fcntl(stdout, fcntl.F_GETPIPE_SZ) - 2 * select.PIPE_BUF)
    # Nobody reads on: the pipe is full, and the program must notice all the same.
    assert close_input(process) == 0


@pytest.mark.parametrize("backlog", [0, 100_000], ids=["idle", "writing"])
def test_a_broken_output_ends_the_program_at_once(tmp_path: Path, start: Start, backlog: int) -> None:
    log = tmp_path / "events"
    log.write_bytes(b"".join(line(number) for number in range(backlog + 1)))
    process = start("-s", "fork", "-t", "1", "-l", log)
    read(process, len(line(1)))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(SECONDS) == 4


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param([], 2, "-s", id="no-name"),
        pytest.param(["-s", "nosuch"], 2, 'no module "nosuch": known are ', id="unknown-module"),
        pytest.param(["-s", "fork", "-t", "yesterday"], 2, "'yesterday' is no number of seconds", id="bad-time"),
        pytest.param(["-s", "fork", "-t", "-5"], 2, "-t", id="negative-time"),
        pytest.param(["-s", "fork", "--interval", "0"], 2, "interval", id="bad-interval"),
        pytest.param(["-s", "fork", "surplus"], 2, "surplus", id="surplus"),
        pytest.param(["-s", "events"], 2, "--log FOLDER", id="log-not-known"),
        pytest.param(["-s", "fork", "-l", "/dev/null"], 3, "not a regular file: '/dev/null'", id="no-file"),
        pytest.param(["-s", "fork", "-l", "/dev/null/x"], 3, "/dev/null/x", id="no-folder"),
        pytest.param(["-s", "fork", "-l", "/x", "-d", "/no/such"], 5, "/no/such", id="no-event-folder"),
        pytest.param(["-s", "fork", "-l", "/x", "-p", "/no/such/pid"], 5, "/no/such/pid", id="no-pid-folder"),
        pytest.param(["-s", "fork", "-l", "/x", "-b", "-p", "/no/such/pid"], 5, "/no/such/pid", id="no-pid-folder-b"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_status(arguments: list[str], status: int, message: str) -> None:
    done = run_forked(command_line(PROGRAM, *arguments), input=b"", env=os.environ)
    assert done.returncode == status
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_the_watch_tells_new_names_from_growth(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    watch = Watch([tmp_path, tmp_path / "missing"], None, None)
    append(log, b"more")
    assert watch.wait(SECONDS)
    append(log, b"more")
    assert not watch.wait(SECONDS)
    log.rename(tmp_path / "log.1")
    assert watch.wait(SECONDS)
    assert watch.wait(0.001)


def test_what_is_told_in_quick_succession_is_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.touch()
    watch = Watch([tmp_path], None, None)
    watch.wait(SECONDS)
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 1000.0, sleep=pauses.append)
    monkeypatch.setattr("batch_adapters.generator.process.time", clock)
    for _ in range(2):
        append(log, b"more")
        watch.wait(SECONDS)
    assert pauses == [0, pytest.approx(0.02)]


def test_a_stream_is_read_in_larger_parts_until_it_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.touch()
    watch = Watch([tmp_path], None, None)
    watch.wait(SECONDS)
    now = 1000.0
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(round(seconds, 6))

    monkeypatch.setattr("batch_adapters.generator.process.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    for quiet in (*[0.0] * 13, 0.2, 0.0):
        now += quiet
        append(log, b"more")
        watch.wait(SECONDS)
    assert pauses == [0, *[0.02] * 10, 0.1, 0.1, 0, 0.02]


def test_help_names_the_options_the_modules_and_exit_statuses(start: Start) -> None:
    output, errors = start("-h").communicate(timeout=SECONDS)
    assert (errors, b"--log PATH" in output, b"exit status" in output) == (b"", True, True)
    assert re.findall(rb"^  ([a-z]+) +\S", output, re.MULTILINE) == [name.encode() for name in sorted(EVENT_MODULES)]


@pytest.mark.parametrize("closed", ["", "<&-", "<&- >&- 2>&-"], ids=["open", "no-input", "nothing-open"])
def test_in_the_background_it_fills_the_event_folder_until_it_is_terminated(tmp_path: Path, closed: str) -> None:
    log, folder, pid_file = tmp_path / "events", tmp_path / "days", tmp_path / "pid"
    folder.mkdir()
    append(log, line(1))
    command = f'exec "$@" {closed}'
    arguments = (sys.executable, "-P", LAUNCH, PROGRAM, *("-s", "fork", "-t", "1", "-l", log, "-d", folder))
    # The end of its output shows that nothing holds on to the caller's descriptors.
    done = subprocess.run(
        ["/bin/sh", "-c", command, "sh", *arguments, "-b", "-p", pid_file],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    pid = int(pid_file.read_text())
    day = folder / "20261120"
    try:
        append(log, line(2))
        wait_until(lambda: day.exists() and day.read_bytes() == line(1) + line(2))
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not pid_file.exists())


def test_events_for_a_closed_output_are_not_thrown_away(tmp_path: Path) -> None:
    append(tmp_path / "log", line(1))
    arguments = (sys.executable, "-P", LAUNCH, PROGRAM, *("-s", "fork", "-t", "1", "-l", tmp_path / "log"))
    argv = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *map(str, arguments)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        assert process.wait(SECONDS) == 5


def test_a_signal_ends_it_and_takes_the_pid_file_along(tmp_path: Path, start: Start) -> None:
    pid_file = tmp_path / "pid"
    process = start("-s", "fork", "-l", tmp_path, "-p", pid_file)
    wait_until(lambda: pid_file.exists() and pid_file.read_text() == f"{process.pid}\n")
    process.terminate()
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert not pid_file.exists()


def test_a_closed_input_counts_as_ended(tmp_path: Path) -> None:
    append(tmp_path / "events", line(1))
    command = f'exec "{sys.executable}" -P "{LAUNCH}" {PROGRAM} -s fork -t 1 -l "$1" <&-'
    done = subprocess.run(["/bin/sh", "-c", command, "sh", tmp_path], timeout=SECONDS, check=False)
    assert done.returncode == 0
