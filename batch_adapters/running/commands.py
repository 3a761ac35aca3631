"""Runs one batch command: renders it, waits for its answer no longer than it may take, tells what the answer means."""

import contextlib
import ctypes
import functools
import io
import logging
import os
import re
import shlex
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_adapters.adapter import Answer, Command, Garbled, Postponed, Refused, Unreachable
from batch_adapters.diagnosis import Printed

if TYPE_CHECKING:  # both are slow to load, and the monitor, which runs no command, waits for neither
    import jinja2
    import sh

logger = logging.getLogger(__name__)

MAX_OUTPUT = 64 * 1024 * 1024
"""Bytes that one command may print; more is no answer."""

_BLOCK = 1 << 16
_LIST = re.compile(r"\{\{ *(\w+)\* *\}\}")
_ANY_CODE = list(range(256))
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


class TimedOut(Unreachable):
    """The command was given up and killed: asking again at once would only take as long again."""


class OutputTooLong(Garbled):
    """It printed more than anybody reads: a question about less may be answered."""


class _Bounded(io.BytesIO):
    """Keeps what a command prints, up to `MAX_OUTPUT`."""

    overflowed = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_OUTPUT:
            self.overflowed = True
            return len(data)
        return super().write(data)


@functools.cache
def _environment() -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment


@functools.cache
def _template(text: str) -> "jinja2.Template":
    return _environment().from_string(text)


def render_text(text: str, variables: Mapping[str, Any]) -> str:
    """A template's text; filter ``sh`` quotes a value for a shell script that a batch system wants on stdin."""
    return _template(text).render(variables)


def render_argv(command: Command, variables: Mapping[str, Any]) -> list[str]:
    """The command's arguments, each template rendered on its own: no shell ever sees them."""
    argv: list[str] = []
    for text in command.argv:
        listed = _LIST.fullmatch(text)
        if listed:
            argv.extend(variables[listed[1]])
        else:
            argv.append(render_text(text, variables))
    return [argument for argument in argv if argument]


def find_environment(ignored: Iterable[str]) -> dict[str, str]:
    """Our environment for a batch command: in English, without variables whose names begin with one of the ignored."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(tuple(ignored))}
    return {**kept, "LC_ALL": "C"}


def run_command(command: Command, variables: Mapping[str, Any], ignored_variables: Iterable[str] = ()) -> str:
    """What the command printed, where that is a good answer; nothing where the answer is that there is nothing.

    It is run once. A program that is asked something again later is `Command.attempts`'s matter, not ours.

    :raises TimedOut, Unreachable, Postponed: no answer; Refused: a no; Garbled: nobody knows what it means.
    """
    argv = render_argv(command, variables)
    stdin = render_text(command.stdin, variables)
    exit_code, stdout, stderr = _run(argv, command.timeout, stdin, find_environment(ignored_variables))
    return judge_answer(command, argv, exit_code, stdout, stderr)


def run_question(
    argv: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> Printed:
    """What a program printed and how it ended, whatever that means; ``timeout`` in seconds. Never raises.

    :param environment: by default as a batch command's.
    """
    try:
        return Printed(*_run(argv, timeout, stdin, find_environment(()) if environment is None else environment))
    except (Unreachable, Garbled) as error:
        return Printed(None, "", str(error))


def _run(argv: Sequence[str], timeout: float, stdin: str, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = _Bounded(), _Bounded()
    running = _start(argv, stdin, environment, out, err)
    exit_code = _wait(running, argv[0], timeout)
    if out.overflowed or err.overflowed:
        raise OutputTooLong(f"{argv[0]} printed more than {MAX_OUTPUT} bytes")
    stdout, stderr = (stream.getvalue().decode(errors="replace") for stream in (out, err))
    logger.debug("%s: exit %d, stdout %r, stderr %r", argv[:8], exit_code, stdout[:2000], stderr[:2000])
    return exit_code, stdout, stderr


def _start(
    argv: Sequence[str], stdin: str, environment: Mapping[str, str], out: _Bounded, err: _Bounded
) -> "sh.RunningCommand":
    import sh

    try:
        return sh.Command(argv[0])(
            *argv[1:],
            _in=stdin,
            _env=dict(environment),
            _out=out,
            _err=err,
            # Programs cut their lines to the width of a terminal.
            _tty_out=False,
            # Line by line, which is sh's way, each megabyte takes a fifth of a second of CPU time.
            _out_bufsize=_BLOCK,
            _err_bufsize=_BLOCK,
            _ok_code=_ANY_CODE,
            _bg=True,
            _bg_exc=False,
            _new_group=True,
            _preexec_fn=_prepare_child,
        )
    except sh.CommandNotFound as error:
        why = "it is not executable" if Path(argv[0]).is_file() else "there is no such program"
        raise Unreachable(f"{argv[0]} cannot be run: {why}") from error
    except (sh.ForkException, OSError) as error:
        raise Unreachable(f"{argv[0]} cannot be run: {str(error).strip().splitlines()[-1].strip()}") from error


def _wait(running: "sh.RunningCommand", program: str, timeout: float) -> int:
    """The exit code; children that keep the output open after the command's end are waited for 2 s (by sh)."""
    import sh

    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        _kill_group(running.pgid)

    # sh's own timeout would make every command last a tenth of a second.
    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        exit_code: int = running.wait().exit_code
    except sh.SignalException as error:
        if given_up.is_set():
            raise TimedOut(f"{program} did not answer within {timeout:g} s") from error
        signal_name = type(error).__name__.removeprefix("SignalException_")
        raise Unreachable(f"{program} was killed by {signal_name}") from error
    finally:
        timer.cancel()
    return exit_code


def die_with_parent() -> None:
    """From now on, end this process, a child, when its parent ends, however that happens."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _prepare_child() -> None:
    """Runs in the new process: it dies with us, so that nothing is submitted behind the back of who comes after us."""
    die_with_parent()
    # sh has it ignored, and daemons that the command starts would ignore it for ever.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill_group(group: int) -> None:
    """End what a command that was given up had started: it might do later what we are about to ask for again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


_ERRORS = {
    Answer.TRANSIENT: Unreachable,
    Answer.LATER: Postponed,
    Answer.PERMANENT: Refused,
    Answer.UNKNOWN: Garbled,
}


def judge_answer(command: Command, argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> str:
    """As `run_command`, of what a command has printed."""
    # Nobody has said what an answer means that no outcome fits: it is not taken for a no, which would end grid jobs.
    fitting = (outcome.answer for outcome in command.outcomes if outcome.fits(exit_code, stdout + stderr))
    answer = next(fitting, Answer.UNKNOWN)
    if answer in _ERRORS:
        raise _ERRORS[answer](_failure(argv, exit_code, stdout, stderr))
    return stdout if answer is Answer.OK else ""


def _failure(argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> str:
    text = (stderr.strip() or stdout.strip() or "nothing printed")[:500]
    return f"{argv[0]} {argv[1] if len(argv) > 1 else ''}: exit code {exit_code}: {text}"
