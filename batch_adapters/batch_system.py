"""All I/O with batch systems: renders an adapter's commands, runs them, tells their answers apart."""

import contextlib
import ctypes
import functools
import io
import logging
import os
import re
import signal
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
import sh

from batch_adapters.adapter import BatchAdapter, Command, Garbled, LocalStatus, Submission, Unreachable

logger = logging.getLogger(__name__)

MAX_OUTPUT = 64 * 1024 * 1024
"""Bytes that one command may print; more is no answer."""

_LIST = re.compile(r"\{\{ *(\w+)\* *\}\}")
_ANY_CODE = list(range(256))
_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


class _Bounded(io.BytesIO):
    """Keeps what a command prints, up to `MAX_OUTPUT`."""

    overflowed = False

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_OUTPUT:
            self.overflowed = True
            return len(data)
        return super().write(data)


@functools.cache
def _template(text: str) -> jinja2.Template:
    return jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False).from_string(text)


def render_argv(command: Command, variables: Mapping[str, Any]) -> list[str]:
    """The command's arguments, each template rendered on its own: no shell ever sees them."""
    argv: list[str] = []
    for text in command.argv:
        listed = _LIST.fullmatch(text)
        if listed:
            argv.extend(variables[listed[1]])
        else:
            argv.append(_template(text).render(variables))
    return [argument for argument in argv if argument]


def run_command(command: Command, variables: Mapping[str, Any]) -> str:
    """What the command printed, where one of its outcomes calls that a good answer.

    :raises Unreachable: no answer within the timeout, or the program cannot be started.
    :raises BatchError: as the outcome that fits says; Garbled where none does.
    """
    argv = render_argv(command, variables)
    out, err = _Bounded(), _Bounded()
    exit_code = _wait(_start(argv, command.timeout, out, err), argv[0], command.timeout)
    if out.overflowed or err.overflowed:
        raise Garbled(f"{argv[0]} printed more than {MAX_OUTPUT} bytes")
    stdout, stderr = (stream.getvalue().decode(errors="replace") for stream in (out, err))
    logger.debug("%s: exit %d, stdout %r, stderr %r", argv[:8], exit_code, stdout[:2000], stderr[:2000])
    return _judge(command, argv, exit_code, stdout, stderr)


def _start(argv: list[str], timeout: float, out: _Bounded, err: _Bounded) -> sh.RunningCommand:
    try:
        return sh.Command(argv[0])(
            *argv[1:],
            _in="",
            _out=out,
            _err=err,
            # Programs cut their lines to the width of a terminal.
            _tty_out=False,
            _timeout=timeout,
            _ok_code=_ANY_CODE,
            _bg=True,
            _bg_exc=False,
            _new_group=True,
            _preexec_fn=_prepare_child,
        )
    except sh.CommandNotFound as error:
        raise Unreachable(f"{argv[0]} cannot be run: there is no such program") from error
    except (sh.ForkException, OSError) as error:
        raise Unreachable(f"{argv[0]} cannot be run: {str(error).strip().splitlines()[-1].strip()}") from error


def _wait(running: sh.RunningCommand, program: str, timeout: float) -> int:
    """The exit code; children that keep the output open after the command's end are waited for 2 s (by sh)."""
    try:
        exit_code: int = running.wait().exit_code
    except sh.TimeoutException as error:
        _kill_group(running.pgid)
        raise Unreachable(f"{program} did not answer within {timeout:g} s") from error
    except sh.SignalException as error:
        raise Unreachable(f"{program} was killed: {type(error).__name__}") from error
    return exit_code


def _prepare_child() -> None:
    """Runs in the new process: it dies with us, so that nothing is submitted behind the back of who comes after us."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # sh has it ignored, and daemons that the command starts would ignore it for ever.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _kill_group(group: int) -> None:
    """End what a command that was given up had started: it might do later what we are about to ask for again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _judge(command: Command, argv: list[str], exit_code: int, stdout: str, stderr: str) -> str:
    for outcome in command.outcomes:
        if outcome.fits(exit_code, stdout + stderr):
            if outcome.error is None:
                return stdout
            raise outcome.error(_failure(argv, exit_code, stdout, stderr))
    # Nobody has said what this answer means: it is not taken for a no, which would end grid jobs.
    raise Garbled(_failure(argv, exit_code, stdout, stderr))


def _failure(argv: list[str], exit_code: int, stdout: str, stderr: str) -> str:
    text = (stderr.strip() or stdout.strip() or "nothing printed")[:500]
    return f"{argv[0]} {argv[1] if len(argv) > 1 else ''}: exit code {exit_code}: {text}"


class BatchSystem:
    """One batch system as this account uses it: a batch adapter and the site's variables for its templates."""

    def __init__(self, adapter: BatchAdapter, site: Mapping[str, Any]) -> None:
        self.adapter = adapter
        self.site = site

    @property
    def event_log(self) -> str:
        """The path of the log that the generator follows."""
        return _template(self.adapter.event_log).render(self.site)

    def submit(self, submission: Submission) -> Mapping[int, str]:
        """Submit an array once; the local id of each of its indexes.

        :raises Refused: nothing was submitted.
        :raises Unreachable, Garbled: it may or may not have been: `find` its token.
        """
        variables = {**self.site, **{name: getattr(submission, name) for name in submission.__dataclass_fields__}}
        printed = run_command(self.adapter.submit, variables)
        ids = self.adapter.read_submitted(printed, submission)
        if set(ids) != set(range(submission.first, submission.last + 1)):
            raise Garbled(f"{self.adapter.name}: ids for {sorted(ids)[:9]} … in the answer to {submission.token}")
        return ids

    def find(self, token: str) -> list[LocalStatus]:
        """The local jobs submitted under a token; an empty list is an answer: there is no such submission.

        :raises Unreachable, Garbled: nothing is known.
        """
        return self._jobs(run_command(self.adapter.find, {**self.site, "token": token}))

    def query(self) -> list[LocalStatus]:
        """Every local job that the batch system shows us, in one command.

        :raises Unreachable, Garbled: nothing is known.
        """
        return self._jobs(run_command(self.adapter.query, self.site))

    def cancel(self, ids: Iterable[str]) -> None:
        """Ask for the end of local jobs; that they ended, an event or a query must say.

        :raises BatchError: some of them may not have been asked.
        """
        wanted = list(ids)
        for start in range(0, len(wanted), 500):
            run_command(self.adapter.cancel, {**self.site, "ids": wanted[start : start + 500]})

    def _jobs(self, printed: str) -> list[LocalStatus]:
        statuses = []
        for local_id, native, exit_code in self.adapter.read_jobs(printed):
            state = self.adapter.states.get(native)
            if state is None:
                logger.warning("%s %s: unknown native state %r", self.adapter.name, local_id, native)
            statuses.append(LocalStatus(local_id, native, state, exit_code))
        return statuses
