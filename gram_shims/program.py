"""The program behind the Perl module: for each call of GRAM's one sealed answer, and one line in the account's log."""

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

from gram_shims.calls import cancel, poll, signal, stage_out, submit
from gram_shims.request import BadDescription, JobDescription, read_description
from jobmanager import UserError
from jobmanager.gram.answers import NO_CHANGE, GramAnswer, GramError, refuse, render_answer, render_message
from jobmanager.monitor.logs import log_to
from jobmanager.site.account import Account, open_account
from jobmanager.site.host import check_host
from sandbox.files import open_own

logger = logging.getLogger(__name__)


def seal() -> tuple[BinaryIO, BinaryIO]:
    """Where the questions come from, and where the answers go.

    From now on file descriptor 0 is empty and 1 is standard error, for us and our children. What GRAM's job manager
    leaks, the descriptors from 3 on, is not ours to keep.
    """
    sys.stdout.flush()
    # dup takes the lowest free descriptor: the second is above the first.
    questions, answers = os.dup(0), os.dup(1)
    for low, high in ((3, questions), (questions + 1, answers), (answers + 1, 65536)):
        os.closerange(low, high)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(questions, "rb"), os.fdopen(answers, "wb")


_FUNCTIONS: Mapping[str, Callable[[Account, JobDescription], GramAnswer]] = {
    "submit": submit,
    "poll": poll,
    "cancel": cancel,
    "signal": signal,
    "stage_out": stage_out,
}
PATIENCE = 25.0
"""Seconds after which a question is answered, whatever hangs; GRAM 1.5 waits for 30."""
_FAILURES = {
    "submit": GramError.JOB_EXECUTION_FAILED,
    "cancel": GramError.JOB_CANCEL_FAILED,
    "signal": GramError.SIGNALLING_JOB,
}
_LARGEST_LOG = 5_000_000
"""Bytes; then the log becomes ``gram.log.1``, in place of the one before."""


class Reply:
    """Where the one answer of this process goes; whoever comes first gives it."""

    def __init__(self, sink: BinaryIO, render: Callable[[GramAnswer], str]) -> None:
        self._sink = sink
        self._render = render
        self._given = threading.Lock()

    def give(self, answer: GramAnswer) -> None:
        """Say it and end the process at once: no thread of a handler's can keep GRAM waiting, or add a word."""
        if self._given.acquire(blocking=False):
            self._sink.write(self._render(answer).encode(errors="replace"))
            self._sink.flush()
            os._exit(0)

    def give_after(self, seconds: float, answer: GramAnswer) -> None:
        """Give this answer if there is no other in time."""
        timer = threading.Timer(seconds, self.give, [answer])
        timer.daemon = True
        timer.start()


def main(argv: list[str]) -> int:
    """Read a description from stdin and answer one call; or serve, where a line is a call and its description.

    An answer on stdout ends with an empty line.
    """
    # Each call is over before there is anything to collect, and GRAM waits.
    gc.disable()
    # No argparse: GRAM waits while it is loaded, and only our Perl module writes this command line.
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
    """Answer until the questions end, each call in a process of its own that finds everything loaded."""
    for line in questions:
        command, _, text = line.partition(b" ")
        child = os.fork()
        if child == 0:
            try:
                _answer_question(command.decode(), state_dir, text, answers)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] != 0:
            # No answer: who asked may ask again, if it lives.
            with suppress(BrokenPipeError):
                answers.write(b"killed\n")
                answers.flush()
    return 0


def _answer_question(command: str, state_dir: str, text: bytes, answers: BinaryIO) -> None:
    """Answer one call and end the process."""
    reply = Reply(answers, lambda answer: f"{render_answer(_fit(command, answer))}\n")
    if command != "submit":
        # A submission may take its time; questions and wishes can be said again.
        reply.give_after(PATIENCE, find_failure(command, f"no answer within {PATIENCE:g} s"))
    try:
        description = read_description(text.decode("latin-1"))
    except BadDescription as error:
        reply.give(refuse(GramError.BAD_SCRIPT_ARG_FILE, str(error)))
    else:
        reply.give(answer_call(command, state_dir, description))


def answer_call(command: str, state_dir: str | None, description: JobDescription) -> GramAnswer:
    """The answer to a call, whatever happens meanwhile; standard output and error go to the account's log from then on.

    :param command: submit, poll, cancel or signal; state_dir: the state folder, None for the account's own.
    """
    started = time.monotonic()
    os.umask(0o077)
    log_to(logging.StreamHandler())
    try:
        # Only a request makes a state folder.
        account = open_account(state_dir, create=command == "submit")
        check_host(account.places)
        _log_into(account.places.root)
        answer = _FUNCTIONS[command](account, description)
    except (Exception, SystemExit) as error:  # whatever the disk does, or an experiment's handler
        logger.error("%s: %s", command, error, exc_info=None if isinstance(error, (UserError, OSError)) else error)
        answer = find_failure(command, " ".join(f"{error}".split()) or type(error).__name__)
    _log_call(command, description, answer, time.monotonic() - started)
    return answer


def find_failure(command: str, message: str) -> GramAnswer:
    """What GRAM is told where a call could not be served; of a poll nothing, so that the state stays."""
    return refuse(_FAILURES[command], message) if command in _FAILURES else NO_CHANGE


def _fit(command: str, answer: GramAnswer) -> GramAnswer:
    """GRAM fails a cancel or signal whose answer holds more than state and error."""
    return dataclasses.replace(answer, message="") if command in ("cancel", "signal") else answer


def _log_into(root: Path) -> None:
    """Make the account's log what descriptors 1 and 2 are."""
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
