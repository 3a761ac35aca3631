"""Batch commands: how they are rendered, run, and told apart by what they answer; small real programs play them."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
import sh

from batch_adapters.adapter import OK, Answer, BatchError, Command, Garbled, Meaning, Postponed, Refused, Unreachable
from batch_adapters.running import commands as running
from batch_adapters.running.commands import (
    TimedOut,
    make_environment,
    render_argv,
    render_text,
    run_command,
    run_question,
)
from tests.descriptors import open_descriptors
from tests.waiting import is_gone, wait_until

Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a shell script, and says where it is."""

    def make(script: str) -> str:
        path = tmp_path / f"program{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


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
    Meaning(1, "(?i)connection refused", Answer.TRANSIENT),
    Meaning(None, "invalid answer", Answer.UNKNOWN),
    Meaning(4, "^$", Answer.OK),
    Meaning(6, "no such job", Answer.ABSENT),
    Meaning(7, "limit", Answer.LATER),
    Meaning(5, "rejected", Answer.PERMANENT),
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
        pytest.param("echo job limit >&2; exit 7", Postponed, "exit code 7: job limit", id="not now"),
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


@pytest.mark.parametrize(
    "script", ["echo no such job 7; exit 6", "echo no such job 7 >&2; exit 6"], ids=["stdout", "stderr"]
)
def test_that_there_is_nothing_is_an_answer_without_words(program: Program, script: str) -> None:
    assert run_command(Command((program(script),), outcomes=OUTCOMES), {}) == ""


def test_a_long_complaint_is_shortened(program: Program) -> None:
    with pytest.raises(Garbled) as caught:
        run_command(Command((program("seq 100000 >&2; exit 2"),)), {})
    assert len(str(caught.value)) < 1000


def test_bytes_that_are_no_text_do_no_harm(program: Program) -> None:
    assert run_command(Command((program(r"printf '\377\n'"),)), {}) == "\ufffd\n"


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        pytest.param(None, 0, "there is no such program", id="missing"),
        pytest.param(b"#!/bin/sh\n", 0o644, "it is not executable", id="not executable"),
        pytest.param(b"#!/no/such/interpreter\n", 0o755, ".+", id="no interpreter"),
        pytest.param(b"\0nonsense", 0o755, ".+", id="not a program"),
    ],
)
def test_a_program_that_cannot_be_started_is_no_answer(
    tmp_path: Path, content: bytes | None, mode: int, why: str
) -> None:
    path = tmp_path / "program"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(Unreachable, match=f"^{path} cannot be run: {why}$") as caught:
        run_command(Command((str(path),)), {})
    assert "\n" not in str(caught.value)


def test_arguments_that_are_too_long_are_one_clear_error() -> None:
    with pytest.raises(Unreachable, match=r"/bin/true cannot be run: .*Argument list too long"):
        run_command(Command(("/bin/true", "{{ word }}")), {"word": "x" * 3_000_000})


# --- programs that hang, talk too much, or leave something behind


def test_a_program_that_hangs_is_given_up_with_all_that_it_started(program: Program, tmp_path: Path) -> None:
    script = f'trap "" TERM; sh -c "sleep 3600; exit" & echo $! >{tmp_path}/child; wait; sleep 3600'
    child, timeout = tmp_path / "child", 0.1
    # A busy machine may take longer to start it.
    while not (child.exists() and child.read_text()):
        timeout *= 2
        with pytest.raises(TimedOut, match=rf"did not answer within {timeout:g} s"):
            run_command(Command((program(script),), timeout=timeout), {})
    wait_until(lambda: is_gone(int(child.read_text())))


LEAVES_ITS_GROUP = """
import os, signal, sys, time
other = os.fork() or time.sleep(3600)
os.setpgid(other, other)
os.setpgid(0, other)
os.kill(other, signal.SIGKILL)
open(sys.argv[1], "w").close()
time.sleep(3600)
"""


def test_a_program_that_leaves_its_process_group_is_given_up_as_well(tmp_path: Path) -> None:
    timeout = 0.1
    while not (tmp_path / "left").exists():
        timeout *= 2
        with pytest.raises(TimedOut):
            run_command(Command((sys.executable, "-c", LEAVES_ITS_GROUP, str(tmp_path / "left")), timeout=timeout), {})


def test_a_command_ends_with_the_patience_of_who_waits_for_it(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"

    def lose_patience(_: sh.RunningCommand) -> None:
        wait_until(pid.exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(sh.RunningCommand, "wait", lose_patience)
    with pytest.raises(KeyboardInterrupt):
        run_command(Command((program(f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 3600"),)), {})
    wait_until(lambda: is_gone(int(pid.read_text())))


def test_a_command_dies_with_the_process_that_waits_for_it(program: Program, tmp_path: Path) -> None:
    command = Command((program(f"echo $$ >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 3600"),))
    worker = os.fork()
    if worker == 0:
        try:
            run_command(command, {})
        finally:
            os._exit(0)
    wait_until((tmp_path / "pid").exists)
    os.kill(worker, 9)
    os.waitpid(worker, 0)
    wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())))


def test_a_daemon_that_keeps_our_pipes_open_does_not_keep_us(program: Program, tmp_path: Path) -> None:
    command = Command((program(f"sleep 3600 & echo $! >{tmp_path}/daemon; echo 17"),), timeout=600)
    assert run_command(command, {}) == "17\n"
    daemon = int((tmp_path / "daemon").read_text())
    os.kill(daemon, 9)  # it must have outlived the command: batch commands start daemons


def test_an_answer_that_is_too_long_is_garbled(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_OUTPUT", 100)
    assert len(run_command(Command((program("printf %100d 0"),)), {})) == 100
    for script in ("printf %101d 0", "printf %101d 0 >&2", "printf %60d 0; printf %60d 0"):
        with pytest.raises(Garbled, match="more than 100 bytes"):
            run_command(Command((program(script),)), {})


# --- what a command reads and sees


def test_a_command_reads_what_its_template_gives(program: Program) -> None:
    stdin = "#!/bin/sh\n#$ -N {{ token }}\nexec {{ driver | sh }}\n"
    variables = {"token": "k3f9zq2m-1", "driver": "/it's/a driver"}
    expected = "#!/bin/sh\n#$ -N k3f9zq2m-1\nexec '/it'\"'\"'s/a driver'\n"
    assert run_command(Command((program("cat"),), stdin=stdin), variables) == expected


@pytest.mark.parametrize("word", ["plain", "a b", "it's", "$(id)`id`", "new\nline", "", "-n", "*", "ü€"])
def test_a_value_survives_the_shell_that_reads_a_script(program: Program, word: str) -> None:
    script = "printf 'x%sx' {{ word | sh }}"
    assert run_command(Command(("/bin/sh",), stdin=script), {"word": word}) == f"x{word}x"


def test_a_script_keeps_its_last_line_break() -> None:
    assert render_text("exec true\n", {}) == "exec true\n"


def test_a_command_speaks_english_and_sees_no_variables_that_change_its_answers(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_FORMAT", "SQUEUE_STATES", "SBATCH_HOLD", "LC_ALL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    command = Command((program("env"),))
    seen = dict(
        line.split("=", 1) for line in run_command(command, {}, ("SQUEUE_", "SBATCH_")).splitlines() if "=" in line
    )
    assert {name for name in seen if name.startswith(("SLURM", "SQUEUE", "SBATCH"))} == {"SLURM_CONF"}
    assert (seen["LC_ALL"], seen["PATH"]) == ("C", os.environ["PATH"])


def test_without_names_to_be_ignored_all_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "x")
    assert make_environment(()) == {**os.environ, "LC_ALL": "C"}


@pytest.mark.parametrize(
    ("script", "exit_code", "stdout", "stderr"),
    [
        pytest.param("echo yes; echo but >&2", 0, "yes\n", "but\n", id="good"),
        pytest.param("echo no >&2; exit 77", 77, "", "no\n", id="bad"),
        pytest.param("sleep 3600", None, "", "did not answer within 0.3 s", id="hanging"),
        pytest.param("kill -9 $$", None, "", "was killed by SIGKILL", id="killed"),
    ],
)
def test_a_harmless_question_never_raises(
    program: Program, script: str, exit_code: int | None, stdout: str, stderr: str
) -> None:
    printed = run_question([program(script)], 0.3 if script.startswith("sleep") else 60)
    assert (printed.exit_code, printed.stdout) == (exit_code, stdout)
    assert stderr in printed.stderr
    assert run_question(["/no/such/program"], 1).exit_code is None


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
    before = open_descriptors()
    for _ in range(3):
        run_command(quick, {})
        with pytest.raises(Unreachable):
            run_command(slow, {})
    wait_until(lambda: open_descriptors() <= before)
