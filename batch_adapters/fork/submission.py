"""One submission: an array of local jobs that run the same command, and the start request of each of them."""

import dataclasses
import json
import sqlite3
import time
from dataclasses import dataclass

from batch_adapters.fork.protocol import StartRequest
from batch_adapters.fork.spool import Spool

# How long after SIGXCPU, in seconds of cpu time, a program that goes on gets SIGKILL.
CPU_GRACE_SECONDS = 5
KEEP_SECONDS = 30 * 86400
"""How long after its end a submission is known. Its name is taken as long."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What the jobs of one token run; a limit of 0 is none, texts are as `protocol.read_wire` makes them."""

    command: tuple[str, ...]
    directory: str
    environment: tuple[tuple[str, str], ...]
    stdout: str = "/dev/null"
    stderr: str = "/dev/null"
    wall_minutes: int = 0
    cpu_minutes: int = 0
    memory_mb: int = 0


def render_submission(submission: Submission) -> str:
    """The submission as JSON; pure ASCII, so that any byte of an argument survives."""
    return json.dumps(dataclasses.asdict(submission))


def read_submission(text: str) -> Submission:
    """The submission that `render_submission` wrote; raises ValueError where the text is none."""
    try:
        fields = json.loads(text)
        environment = tuple((name, value) for name, value in fields.pop("environment"))
        return Submission(command=tuple(fields.pop("command")), environment=environment, **fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it does not describe a submission: {error}") from error


def write_submission(spool: Spool, token: str, array: tuple[int, int], submission: Submission) -> tuple[int, int]:
    """Store a submission; where its token is taken nothing changes. The result: the first and last index stored."""
    with spool.transaction() as database:
        known = "SELECT first, last FROM submission WHERE token = ?"
        stored: tuple[int, int] | None = database.execute(known, (token,)).fetchone()
        if stored is not None:
            return stored
        text = render_submission(submission)
        columns = "INSERT INTO submission (token, first, last, text) VALUES (?, ?, ?, ?)"
        number = database.execute(columns, (token, *array, text)).lastrowid
        jobs = ((number, index) for index in range(array[0], array[1] + 1))
        database.executemany("INSERT INTO job (submission, job) VALUES (?, ?)", jobs)
    return array


def forget_old(spool: Spool) -> None:
    """Let go of what ended long ago."""
    with spool.transaction() as database:
        old = "SELECT number FROM submission WHERE ended < ?"
        _forget(database, database.execute(old, (int(time.time()) - KEEP_SECONDS,)).fetchall())


def forget_prefix(spool: Spool, prefix: str) -> None:
    """Let go of the submissions whose tokens begin so, of which all has ended and was told."""
    ended = "token GLOB ? AND ended IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job WHERE submission = number AND cancel)"
    with spool.transaction() as database:
        _forget(database, database.execute(f"SELECT number FROM submission WHERE {ended}", (f"{prefix}*",)).fetchall())


def _forget(database: sqlite3.Connection, numbers: list[tuple[int]]) -> None:
    database.executemany("DELETE FROM job WHERE submission = ?", numbers)
    database.executemany("DELETE FROM submission WHERE number = ?", numbers)


def render_local_id(token: str, index: int) -> str:
    """The local id of one job of a submission: TOKEN.INDEX."""
    return f"{token}.{index}"


def render_job(submission: Submission, token: str, index: int) -> StartRequest:
    """What the fork starter is asked, to start one local job of the submission."""
    local_id = render_local_id(token, index)
    executable, *arguments = _render_limited(submission)
    own = (("SAMGRID_FORK_ID", local_id), ("SAMGRID_FORK_INDEX", str(index)))
    return StartRequest(
        tag=local_id,
        executable=executable,
        arguments=tuple(arguments),
        directory=submission.directory,
        environment=(*submission.environment, *own),
        stdout=(submission.stdout.replace("%i", str(index)),),
        stderr=(submission.stderr.replace("%i", str(index)),),
    )


def _render_limited(submission: Submission) -> tuple[str, ...]:
    limits = []
    if submission.cpu_minutes:
        seconds = submission.cpu_minutes * 60
        limits += [f"ulimit -S -t {seconds}", f"ulimit -H -t {seconds + CPU_GRACE_SECONDS}"]
    if submission.memory_mb:
        limits += [f"ulimit -v {submission.memory_mb * 1024}"]
    if not limits:
        return submission.command
    # The shell sets the limits and becomes the program: same pid, and a limit it cannot set is its error message.
    return ("/bin/sh", "-c", " && ".join([*limits, 'exec "$@"']), "sh", *submission.command)
