"""Batch commands: how they are rendered, run, and told apart by what they answer; small real programs play them."""

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from batch_adapters import batch_system
from batch_adapters.adapter import (
    OK,
    BatchError,
    Command,
    Garbled,
    LocalStatus,
    Outcome,
    Refused,
    Submission,
    Unreachable,
)
from batch_adapters.batch_system import BatchSystem, render_argv, run_command
from batch_adapters.fork import FORK, read_jobs, read_submitted
from batch_adapters.states import State
from jobmanager.account import LAUNCH

Program = Callable[[str], str]
SUBMISSION = Submission("k3f9zq2m-1", 3, 5, "/driver", "/results")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a shell script, and says where it is."""

    def make(script: str) -> str:
        path = tmp_path / f"program{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_gone(pid: str) -> bool:
    """True where there is no such process, or a zombie only."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# --- argv


@pytest.mark.parametrize(
    ("templates", "argv"),
    [
        pytest.param(("qdel", "{{ ids* }}"), ["qdel", "a.1", "b 2"], id="a list is as many arguments"),
        pytest.param(("qdel", "{{ids*}}", "-"), ["qdel", "a.1", "b 2", "-"], id="a list without blanks"),
        pytest.param(("qsub", "{{ none* }}"), ["qsub"], id="an empty list is no argument"),
        pytest.param(("qsub", "{{ empty }}", "x"), ["qsub", "x"], id="an empty argument is left out"),
        pytest.param(
            ("qsub", "{% if empty %}--queue={{ empty }}{% endif %}"),
            ["qsub"],
            id="an option without a value is left out",
        ),
        pytest.param(("qsub", "-l m={{ number }}M"), ["qsub", "-l m=5M"], id="blanks do not split"),
        pytest.param(("qsub", "{{ nasty }}"), ["qsub", "$(id); `id` {{ number }} *"], id="values are never evaluated"),
    ],
)
def test_every_template_becomes_its_own_arguments(templates: tuple[str, ...], argv: list[str]) -> None:
    nasty = "$(id); `id` {{ number }} *"
    variables = {"ids": ["a.1", "b 2"], "none": [], "empty": "", "number": 5, "nasty": nasty}
    assert render_argv(Command(templates), variables) == argv


def test_a_template_with_an_unknown_variable_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="qeue"):
        render_argv(Command(("qsub", "{{ qeue }}")), {"queue": "long"})


@pytest.mark.parametrize("word", ["a b", "$HOME;`id`", "*", "-n", "new\nline", "ü€", "'\""])
def test_a_value_reaches_the_program_byte_for_byte(program: Program, word: str) -> None:
    printed = run_command(Command((program('printf "%s" "$1" | od -An -tx1'), "{{ word }}")), {"word": word})
    assert bytes.fromhex("".join(printed.split())) == os.fsencode(word)


# --- answers

OUTCOMES = (
    OK,
    Outcome(1, "(?i)connection refused", Unreachable),
    Outcome(None, "invalid answer", Garbled),
    Outcome(4, "^$", None),
    Outcome(5, "rejected", Refused),
)


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        pytest.param(
            "echo Connection refused >&2; exit 1", Unreachable, "exit code 1: Connection refused", id="stderr"
        ),
        pytest.param("echo connection refused; exit 1", Unreachable, "connection refused", id="stdout"),
        pytest.param("echo invalid answer >&2; exit 77", Garbled, "exit code 77: invalid answer", id="any exit code"),
        pytest.param("echo no such queue >&2; exit 1", Garbled, "exit code 1: no such queue", id="other words"),
        pytest.param("echo rejected >&2; exit 5", Refused, "exit code 5: rejected", id="a refusal"),
        pytest.param("exit 1", Garbled, "exit code 1: nothing printed", id="no words"),
        pytest.param("echo id; echo warning >&2; exit 255", Garbled, "exit code 255: warning", id="other exit code"),
        pytest.param("kill -9 $$", Unreachable, "killed.*SIGKILL", id="SIGKILL"),
        pytest.param("echo 17; kill -15 $$", Unreachable, "killed.*SIGTERM", id="SIGTERM after an answer"),
    ],
)
def test_a_failure_is_named_by_its_outcome(program: Program, script: str, error: type[BatchError], words: str) -> None:
    command = Command((program(script), "submit"), outcomes=OUTCOMES)
    with pytest.raises(BatchError, match=words) as caught:
        run_command(command, {})
    assert caught.type is error
    assert command.argv[0] in str(caught.value)


def test_the_first_outcome_that_fits_counts(program: Program) -> None:
    command = Command((program("echo invalid answer"),), outcomes=OUTCOMES)
    assert run_command(command, {}) == "invalid answer\n"
    with pytest.raises(Garbled):
        run_command(replace(command, outcomes=OUTCOMES[::-1]), {})


def test_a_good_answer_is_what_was_printed_to_stdout_whatever_the_exit_code(program: Program) -> None:
    assert run_command(Command((program("echo one; echo two >&2; printf three"),)), {}) == "one\nthree"
    assert run_command(Command((program("exit 4"),), outcomes=OUTCOMES), {}) == ""


def test_a_long_complaint_is_shortened(program: Program) -> None:
    with pytest.raises(Garbled) as caught:
        run_command(Command((program("seq 100000 >&2; exit 2"),)), {})
    assert len(str(caught.value)) < 1000


def test_bytes_that_are_no_text_do_no_harm(program: Program) -> None:
    assert run_command(Command((program(r"printf '\377\n'"),)), {}) == "\ufffd\n"


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        pytest.param(None, 0, id="missing"),
        pytest.param(b"#!/bin/sh\n", 0o644, id="not executable"),
        pytest.param(b"#!/no/such/interpreter\n", 0o755, id="no interpreter"),
        pytest.param(b"\0nonsense", 0o755, id="not a program"),
    ],
)
def test_a_program_that_cannot_be_started_is_no_answer(tmp_path: Path, content: bytes | None, mode: int) -> None:
    path = tmp_path / "program"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(Unreachable, match=f"^{path} cannot be run: .+") as caught:
        run_command(Command((str(path),)), {})
    assert "\n" not in str(caught.value)


def test_arguments_that_are_too_long_are_one_clear_error() -> None:
    with pytest.raises(Unreachable, match=r"/bin/true cannot be run: .*Argument list too long"):
        run_command(Command(("/bin/true", "{{ word }}")), {"word": "x" * 3_000_000})


# --- programs that hang, talk too much, or leave something behind


def test_a_program_that_hangs_is_given_up_with_all_that_it_started(program: Program, tmp_path: Path) -> None:
    script = f'trap "" TERM; sh -c "sleep 3600; exit" & echo $! >{tmp_path}/child; wait; sleep 3600'
    with pytest.raises(Unreachable, match=r"did not answer within 0\.5 s"):
        run_command(Command((program(script),), timeout=0.5), {})
    wait_until(lambda: is_gone((tmp_path / "child").read_text().strip()))


def test_a_command_dies_with_the_process_that_waits_for_it(program: Program, tmp_path: Path) -> None:
    command = Command((program(f"echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 3600; exit"),))
    worker = os.fork()
    if worker == 0:
        try:
            run_command(command, {})
        finally:
            os._exit(0)
    wait_until((tmp_path / "pid").exists)
    os.kill(worker, 9)
    os.waitpid(worker, 0)
    wait_until(lambda: is_gone((tmp_path / "pid").read_text().strip()))


def test_a_daemon_that_keeps_our_pipes_open_does_not_keep_us(program: Program, tmp_path: Path) -> None:
    command = Command((program(f"sleep 3600 & echo $! >{tmp_path}/daemon; echo 17"),), timeout=600)
    assert run_command(command, {}) == "17\n"
    daemon = int((tmp_path / "daemon").read_text())
    os.kill(daemon, 9)  # it must have outlived the command: batch commands start daemons


def test_an_answer_that_is_too_long_is_garbled(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_system, "MAX_OUTPUT", 100)
    assert len(run_command(Command((program("printf %100d 0"),)), {})) == 100
    for script in ("printf %101d 0", "printf %101d 0 >&2", "printf %60d 0; printf %60d 0"):
        with pytest.raises(Garbled, match="more than 100 bytes"):
            run_command(Command((program(script),)), {})


def test_nothing_comes_from_standard_input(program: Program) -> None:
    assert run_command(Command((program("cat; echo end"),)), {}) == "end\n"


def test_a_program_sees_no_terminal_and_none_of_our_descriptors(program: Program, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    script = 'for n in 0 1 2; do test ! -t $n || echo terminal; done; ls /proc/self/fd | tr "\\n" " "'
    assert run_command(Command((program(script),)), {}).split() == ["0", "1", "2", "3"]  # 3 is that of ls
    os.close(held)


def test_a_daemon_that_a_program_starts_heeds_sighup(program: Program) -> None:
    ignored = run_command(Command((program("grep SigIgn /proc/self/status"),)), {}).split()[1]
    assert int(ignored, 16) & 1 == 0


def test_no_descriptor_is_lost(program: Program) -> None:
    quick, slow = Command((program("echo"),)), Command((program("sleep 3600"),), timeout=0.05)
    before = count_descriptors()
    for _ in range(3):
        run_command(quick, {})
        with pytest.raises(Unreachable):
            run_command(slow, {})
    assert count_descriptors() == before


# --- one batch system


def system(program: str) -> BatchSystem:
    command = Command((program, "{{ ids* }}")), Command((program, "{{ token }}")), Command((program, "{{ site }}"))
    adapter = replace(FORK, name="toy", cancel=command[0], submit=command[1], find=command[1], query=command[2])
    return BatchSystem(adapter, {"site": "here"})


def test_a_submission_gives_the_id_of_each_index(program: Program) -> None:
    ids = system(program('echo "$1 3-5"')).submit(SUBMISSION)
    assert ids == {3: "k3f9zq2m-1.3", 4: "k3f9zq2m-1.4", 5: "k3f9zq2m-1.5"}


@pytest.mark.parametrize("printed", ["k3f9zq2m-1 3-4", "k3f9zq2m-1 1-5", "k3f9zq2m-1 5-3"])
def test_ids_of_other_jobs_than_were_submitted_are_garbled(program: Program, printed: str) -> None:
    with pytest.raises(Garbled, match="k3f9zq2m-1"):
        system(program(f"echo {printed}")).submit(SUBMISSION)


def test_finding_nothing_is_an_answer(program: Program) -> None:
    assert system(program("true")).find("k3f9zq2m-1") == []


def test_found_jobs_have_states_and_an_unknown_word_is_none(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = system(program('echo "$1.3 running -"; echo "$1.4 ended 7"; echo "$1.5 levitating -"')).find("a-1")
    assert found == [
        LocalStatus("a-1.3", "running", State.ACTIVE),
        LocalStatus("a-1.4", "ended", State.DONE, 7),
        LocalStatus("a-1.5", "levitating", None),
    ]
    assert "toy a-1.5: unknown native state 'levitating'" in caplog.text


def test_a_query_gets_the_sites_variables(program: Program) -> None:
    assert system(program('echo "a-1.1 $1 -"')).query() == [LocalStatus("a-1.1", "here", None)]


@pytest.mark.parametrize(
    ("number", "calls"), [(0, []), (1, [1]), (500, [500]), (501, [500, 1]), (1200, [500, 500, 200])]
)
def test_ids_are_cancelled_in_portions(program: Program, tmp_path: Path, number: int, calls: list[int]) -> None:
    log = tmp_path / "log"
    log.touch()
    system(program(f"echo $# >>{log}")).cancel(f"a-1.{index}" for index in range(number))
    assert list(map(int, log.read_text().split())) == calls


# --- what the commands of fork print


def test_the_answer_to_a_fork_submission_is_read() -> None:
    assert read_submitted("k3f9zq2m-1 3-5\n", SUBMISSION) == {index: f"k3f9zq2m-1.{index}" for index in (3, 4, 5)}


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param("", id="nothing"),
        pytest.param("k3f9zq2m-1 3-5", id="torn at the end"),
        pytest.param("k3f9zq2m-1 3-", id="torn"),
        pytest.param("k3f9zq2m-2 3-5\n", id="another token"),
        pytest.param("Welcome!\nk3f9zq2m-1 3-5\n", id="a banner before"),
        pytest.param("k3f9zq2m-1 3-5\nbye\n", id="a banner after"),
        pytest.param("k3f9zq2m-1 3-x\n", id="no number"),
        pytest.param("k3f9zq2m-1 -3-5\n", id="a negative number"),
    ],
)
def test_any_other_answer_to_a_fork_submission_is_garbled(printed: str) -> None:
    with pytest.raises(Garbled, match="samgrid-fork submit"):
        read_submitted(printed, SUBMISSION)


def test_the_answer_to_a_fork_query_is_read() -> None:
    printed = "a-1.1 queued -\na-1.2 running -\na-1.12 ended 0\nb.1 killed 137\nb.2 lost -\n"
    assert list(read_jobs(printed)) == [
        ("a-1.1", "queued", None),
        ("a-1.2", "running", None),
        ("a-1.12", "ended", 0),
        ("b.1", "killed", 137),
        ("b.2", "lost", None),
    ]
    assert list(read_jobs("")) == []


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param("Welcome!\na-1.1 queued -\n", id="a banner before"),
        pytest.param("a-1.1 queued -\nConnection closed.\n", id="a banner after"),
        pytest.param("a-1.1 queued -\na-1.2 run", id="torn in a word"),
        pytest.param("a-1.1 queued -\na-1", id="torn in an id"),
        pytest.param("a-1.1 ended\n", id="no exit code"),
        pytest.param("a-1.1 ended 0x0\n", id="no number"),
        pytest.param("a-1.1  ended 0\n", id="two blanks"),
        pytest.param("\n", id="an empty line"),
        pytest.param("a-1.1 ended 1", id="torn in an exit code"),
        pytest.param("Last login 5\n", id="a banner of the same form"),
    ],
)
def test_any_other_answer_to_a_fork_query_is_garbled(printed: str) -> None:
    with pytest.raises(Garbled, match="samgrid-fork query"):
        list(read_jobs(printed))


def test_a_wrong_argument_of_a_fork_command_is_a_refusal(tmp_path: Path) -> None:
    site = {"python": sys.executable, "launch": str(LAUNCH), "fork_slots": "1", "fork_grace": "1"}
    site["fork_spool"] = str(tmp_path / "fork")
    wrong = Submission("NoToken", 1, 2, "/bin/true", str(tmp_path))
    with pytest.raises(Refused, match="NoToken"):
        BatchSystem(FORK, site).submit(wrong)
