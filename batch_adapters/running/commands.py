"""Runs one batch command: renders it, waits for its answer up to a time limit, and decides what the answer means."""

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

from batch_adapters.adapter import Answer, Command, Garbled, Postponed, Refused, TooMany, Unreachable
from batch_adapters.running.diagnosis import Printed

if TYPE_CHECKING:  # imported late: both are slow to load, and the monitor runs no command
    import jinja2
    import sh

logger = logging.getLogger(__name__)

MAX_OUTPUT = 64 * 1024 * 1024
"""Most bytes that one command may print; more is not an answer."""

_BLOCK = 1 << 16
_LIST = re.compile(r"\{\{ *(\w+)\* *\}\}")
_ANY_CODE = list(range(256))
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


class TimedOut(Unreachable):
    """The command took too long and was killed; trying again at once would take as long again."""


class OutputTooLong(Garbled):
    """The command printed too much; a query about fewer jobs may succeed."""


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
    """Render a template; the filter ``sh`` quotes a value for shell scripts that a batch system reads from stdin."""
    return _template(text).render(variables)


def render_argv(command: Command, variables: Mapping[str, Any]) -> list[str]:
    """The command's arguments, each rendered separately: no shell reads them."""
    argv: list[str] = []
    for text in command.argv:
        listed = _LIST.fullmatch(text)
        if listed:
            argv.extend(variables[listed[1]])
        else:
            argv.append(render_text(text, variables))
    return [argument for argument in argv if argument]


def make_environment(ignored: Iterable[str]) -> dict[str, str]:
    """The environment for batch commands: ours, but in English and without variables that have an ignored prefix."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(tuple(ignored))}
    return {**kept, "LC_ALL": "C"}


def run_command(command: Command, variables: Mapping[str, Any], ignored_variables: Iterable[str] = ()) -> str:
    """Run a command once; its output, or an empty text if the answer is that there is no such job.

    :raises TimedOut, Unreachable, Postponed: no answer; Refused: it refused; Garbled: the answer is not understood.
    """
    argv = render_argv(command, variables)
    stdin = render_text(command.stdin, variables)
    exit_code, stdout, stderr = _run(argv, command.timeout, stdin, make_environment(ignored_variables))
    return judge_answer(command, argv, exit_code, stdout, stderr)


def run_question(
    argv: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> Printed:
    """Run a program and give its output and exit code; ``timeout`` in seconds. Never raises.

    :param environment: by default that of batch commands.
    """
    try:
        return Printed(*_run(argv, timeout, stdin, make_environment(()) if environment is None else environment))
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
            # On a terminal, programs cut their lines to its width.
            _tty_out=False,
            # By default sh reads line by line, which takes 0.2 s of CPU time per megabyte.
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
    """Wait for the exit code; sh waits 2 s more for children that keep the output open."""
    import sh

    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        _kill(running)

    # With sh's own timeout, every command would take at least 0.1 s.
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
    except BaseException:  # whoever asked has no more time, or wants no answer
        _kill(running)
        raise
    finally:
        timer.cancel()
    return exit_code


def die_with_parent() -> None:
    """End this process when its parent ends, for whatever reason."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _prepare_child() -> None:
    """Runs in the new process, which dies with us, so that nothing is submitted behind the back of our successor."""
    die_with_parent()
    # sh ignores it, and daemons that the command starts would ignore it for ever.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill(running: "sh.RunningCommand") -> None:
    """Kill a command, and what it had started: it might still do later what we are about to try again."""
    for kill, number in ((os.killpg, running.pgid), (os.kill, running.pid)):  # it may have left its group
        with contextlib.suppress(ProcessLookupError):
            kill(number, signal.SIGKILL)


_ERRORS = {
    **{Answer.TRANSIENT: Unreachable, Answer.LATER: Postponed, Answer.TOO_MANY: TooMany},
    **{Answer.PERMANENT: Refused, Answer.UNKNOWN: Garbled},
}


def judge_answer(command: Command, argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> str:
    """Decide what a command's answer means; result and errors as `run_command`."""
    # An answer that no outcome fits is unknown: to take it for a refusal would end grid jobs.
    # A complaint must not become a part of the last line, where that has no line break.
    said = stdout + "\n" * (stdout != "" and not stdout.endswith("\n")) + stderr
    answer = next((outcome.answer for outcome in command.outcomes if outcome.fits(exit_code, said)), Answer.UNKNOWN)
    if answer in _ERRORS:
        raise _ERRORS[answer](_failure(argv, exit_code, stdout, stderr))
    return stdout if answer is Answer.OK else ""


def _failure(argv: Sequence[str], exit_code: int, stdout: str, stderr: str) -> str:
    text = (stderr.strip() or stdout.strip() or "nothing printed")[:500]
    return f"{argv[0]} {argv[1] if len(argv) > 1 else ''}: exit code {exit_code}: {text}"
