"""The program behind the Perl module: answers each of GRAM's calls once, and logs it in the account's log."""

import dataclasses
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from batch_adapters.launch import Installation
from batch_adapters.states import GramError
from gram_shims.calls import cancel, poll, signal, stage_out, submit
from gram_shims.request import BadDescription, JobDescription, read_description
from jobmanager import UserError
from jobmanager.gram.answers import NO_CHANGE, GramAnswer, refuse, render_answer, render_message
from jobmanager.monitor.logs import log_to
from jobmanager.site.account import Account, open_account
from jobmanager.site.host import check_host
from sandbox.files import empty_descriptors, open_own

logger = logging.getLogger(__name__)


def seal() -> tuple[BinaryIO, BinaryIO]:
    """Give the streams of questions and answers, and keep all others from using them.

    From now on file descriptor 0 is empty and 1 is standard error, for us and our children. Descriptors from 3 on,
    which GRAM's job manager leaks, are closed.
    """
    sys.stdout.flush()
    # dup takes the lowest free descriptor, so the second one is higher.
    questions, answers = os.dup(0), os.dup(1)
    for low, high in ((3, questions), (questions + 1, answers), (answers + 1, 65536)):
        os.closerange(low, high)
    os.dup2(2, 1)
    empty_descriptors(0)
    return os.fdopen(questions, "rb"), os.fdopen(answers, "wb")


_FUNCTIONS: Mapping[str, Callable[[Account, JobDescription], GramAnswer]] = {
    "submit": submit,
    "poll": poll,
    "cancel": cancel,
    "signal": signal,
    "stage_out": stage_out,
}
PATIENCE = 25.0
"""Seconds after which a question is answered even if something hangs; GRAM 1.5 waits for 30."""
_FAILURES = {
    "submit": GramError.JOB_EXECUTION_FAILED,
    "cancel": GramError.JOB_CANCEL_FAILED,
    "signal": GramError.SIGNALLING_JOB,
}
_LARGEST_LOG = 5_000_000
"""Bytes; a longer log is renamed ``gram.log.1``."""


class Reply:
    """The one answer of this process: the first one that is given."""

    def __init__(self, sink: BinaryIO, render: Callable[[GramAnswer], str]) -> None:
        self._sink = sink
        self._render = render
        self._given = threading.Lock()

    def give(self, answer: GramAnswer) -> None:
        """Write the answer and end the process at once, so that no thread of a handler can delay GRAM or add output."""
        if self._given.acquire(blocking=False):
            self._sink.write(self._render(answer).encode(errors="replace"))
            self._sink.flush()
            os._exit(0)

    def give_after(self, seconds: float, answer: GramAnswer) -> None:
        """Give this answer if there is no other one in time."""
        timer = threading.Timer(seconds, self.give, [answer])
        timer.daemon = True
        timer.start()


def main(argv: list[str]) -> int:
    """Read a description from stdin and answer one call; or serve: answer each line, a call and its description.

    An answer on stdout ends with an empty line.
    """
    # A call ends before there is garbage to collect, and GRAM waits.
    gc.disable()
    # No argparse, which loads slowly: only our Perl module writes this command line.
    match argv:
        case ["--state-dir", state_dir, command] if command in (*_FUNCTIONS, "serve"):
            pass
        case _:
            print(f"usage: samgrid-gram --state-dir FOLDER {'|'.join(_FUNCTIONS)}|serve", file=sys.stderr)
            return 2
    questions, answers = seal()
    if command == "serve":
        return _serve(state_dir, questions, answers)
    _answer_question(command, state_dir, questions.read(), answers)
    return 0


def _serve(state_dir: str, questions: BinaryIO, answers: BinaryIO) -> int:
    """Answer until the questions end, each in a forked process, in which everything is loaded already.

    After an upgrade it ends without an answer: the Perl module then asks a new process.
    """
    installation = Installation()
    for line in questions:
        if installation.is_replaced():
            return 0
        command, _, text = line.partition(b" ")
        child = os.fork()
        if child == 0:
            try:
                _answer_question(command.decode(), state_dir, text, answers)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] != 0:
            # No answer: the caller may ask again.
            with suppress(BrokenPipeError):
                answers.write(b"killed\n")
                answers.flush()
    return 0


def _answer_question(command: str, state_dir: str, text: bytes, answers: BinaryIO) -> None:
    """Answer one call and end the process."""
    reply = Reply(answers, lambda answer: f"{render_answer(_fit(command, answer))}\n")
    if command != "submit":
        # A submission may take longer; other calls can be repeated.
        reply.give_after(PATIENCE, make_failure(command, f"no answer within {PATIENCE:g} s"))
    try:
        description = read_description(text.decode("latin-1"))
    except BadDescription as error:
        reply.give(refuse(GramError.BAD_SCRIPT_ARG_FILE, str(error)))
    else:
        reply.give(answer_call(command, state_dir, description))


def answer_call(command: str, state_dir: str | None, description: JobDescription) -> GramAnswer:
    """The answer to a call, whatever goes wrong. Redirects standard output and error to the account's log.

    :param command: submit, poll, cancel, signal or stage_out; state_dir: the state folder, None: the default.
    """
    started = time.monotonic()
    os.umask(0o077)
    log_to(logging.StreamHandler())
    try:
        # Only a submission makes a state folder.
        account = open_account(state_dir, create=command == "submit")
        check_host(account.places)
        _log_into(account.places.root)
        answer = _FUNCTIONS[command](account, description)
    except (Exception, SystemExit) as error:  # an experiment's handler may raise anything
        logger.error("%s: %s", command, error, exc_info=None if isinstance(error, (UserError, OSError)) else error)
        answer = make_failure(command, " ".join(f"{error}".split()) or type(error).__name__)
    _log_call(command, description, answer, time.monotonic() - started)
    return answer


def make_failure(command: str, message: str) -> GramAnswer:
    """The answer to a call that failed: an error; for a poll no change."""
    return refuse(_FAILURES[command], message) if command in _FAILURES else NO_CHANGE


def _fit(command: str, answer: GramAnswer) -> GramAnswer:
    """Drop the message for cancel and signal: GRAM accepts only state and error there."""
    return dataclasses.replace(answer, message="") if command in ("cancel", "signal") else answer


def _log_into(root: Path) -> None:
    """Redirect descriptors 1 and 2 to the account's log."""
    if not root.exists():
        return
    log = root / "gram.log"
    if os.path.lexists(log) and log.lstat().st_size > _LARGEST_LOG:
        log.replace(log.with_name("gram.log.1"))
    descriptor = open_own(log, os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)


def _log_call(command: str, description: JobDescription, answer: GramAnswer, seconds: float) -> None:
    words = (description.contact, description.word("uniqid"), answer.job_id or description.word("jobid"))
    contact, uniqid, grid_job = ("".join(render_message(word).split()) or "-" for word in words)
    text = " ".join(render_answer(answer).splitlines()) or "no change"
    logger.info(
        "%s contact=%s uniqid=%s job=%s seconds=%.4f answer=%s", command, contact, uniqid, grid_job, seconds, text
    )
