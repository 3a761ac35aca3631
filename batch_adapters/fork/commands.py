"""The commands of the embedded batch system, from submit to serve (the queue process itself), and their arguments."""

import argparse
import contextlib
import os
import pwd
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from batch_adapters.fork.processes import is_alive, is_stopped, run_signal_group
from batch_adapters.fork.protocol import read_wire
from batch_adapters.fork.spool import (
    Spool,
    SpoolError,
    StoredSubmission,
    forget_prefix,
    has_work,
    is_token,
    open_spool,
    read_local_id,
    read_run_file,
    render_local_id,
    run_queue_if_none,
    write_events,
    write_submission,
)
from batch_adapters.states import Cause, Event, State

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
HISTORY_SECONDS = 7 * 86400
"""How long a query without token and ids shows ended jobs; one that names them shows them longer."""


def main(argv: Sequence[str]) -> int:
    """Run one command; exit status 0, 1 (the spool cannot be used: no answer) or 2 (wrong arguments)."""
    options = read_options(argv)
    try:
        with contextlib.closing(open_spool(options.spool.absolute())) as spool:
            options.run(spool, options)
    except SpoolError as error:
        print(f"samgrid-fork: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"samgrid-fork: {error.filename or options.spool.absolute()}: {error.strerror}", file=sys.stderr)
        return 1
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote a damaged file
        print(f"samgrid-fork: cannot use {options.spool.absolute() / 'spool.db'}: {error}", file=sys.stderr)
        return 1
    return 0


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The options; ``program`` is what a submission runs (all after `--`). Exits with a message if they are wrong."""
    # Cut here and not by argparse, whose treatment of `--` differs between versions.
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = _make_parser()
    options = parser.parse_args(argv[:cut])
    options.program = tuple(read_word(word) for word in argv[cut + 1 :])
    if options.command == "submit" and not options.program:
        parser.error("submit needs the program to run, after --")
    slots = options.slots or len(os.sched_getaffinity(0))
    if options.command == "submit" and options.cores > slots:
        parser.error(f"a job wants {options.cores} cores, and there are {slots} slots")
    if options.command != "submit" and cut < len(argv):
        parser.error(f"{options.command} takes no program")
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samgrid-fork", description=__doc__, allow_abbrev=False)
    parser.add_argument("--spool", type=Path, required=True, help="the folder of this batch system")
    parser.add_argument("--slots", type=read_slots, default=0, help="jobs that run at a time (0: one per processor)")
    parser.add_argument("--grace", type=read_grace, default=10.0, help="seconds between SIGTERM and SIGKILL")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable[[Spool, argparse.Namespace], None], words: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    submit = add("submit", run_submit, "submit an array of jobs")
    submit.add_argument("--token", type=read_token, required=True, help="the name of this submission")
    submit.add_argument("--count", type=read_count, required=True, help="how many jobs; their indices begin at 1")
    submit.add_argument("--directory", type=read_word, help="where they run (default: the home directory)")
    submit.add_argument("--stdout", type=read_word, default=os.devnull, help="%%i becomes the index, %%%% a %%")
    submit.add_argument("--stderr", type=read_word, default=os.devnull, help="%%i becomes the index, %%%% a %%")
    submit.add_argument("--wall-time", type=read_limit, default=0, metavar="MINUTES", help="SIGTERM after this time")
    submit.add_argument("--cores", type=read_slots, default=1, help="slots that each job takes")
    query = add("query", run_query, "list jobs: ID NATIVE CODE")
    query.add_argument("--token", type=read_token, help="the jobs of one submission")
    query.add_argument("ids", nargs="*", metavar="ID")
    cancel = add("cancel", run_cancel, "cancel jobs: ID cancelled|signalled|ended|unknown")
    suspend = add("suspend", run_suspend, "stop running jobs: ID signalled|not-running")
    resume = add("resume", run_resume, "let stopped jobs go on")
    for command in (cancel, suspend, resume):
        command.add_argument("ids", nargs="+", metavar="ID")
    forget = add("forget", run_forget, "let go of what has ended")
    forget.add_argument("prefixes", nargs="+", type=read_token, metavar="PREFIX", help="of tokens")
    add("serve", run_serve, "be the queue process (started by the other commands)")
    return parser


def run_submit(spool: Spool, options: argparse.Namespace) -> None:
    """Store the submission, unless its token is taken, and make sure that a queue process runs."""
    environment = render_environment()
    submission = StoredSubmission(
        command=options.program,
        directory=options.directory or environment["HOME"],
        environment=tuple(environment.items()),
        stdout=options.stdout,
        stderr=options.stderr,
        wall_minutes=options.wall_time,
        cores=options.cores,
    )
    count = write_submission(spool, options.token, options.count, submission)
    run_queue_if_none(spool, options.slots, options.grace)
    print(f"{options.token} 1-{count}")


def render_environment() -> dict[str, str]:
    """The part of the submitter's environment that a job gets."""
    user = pwd.getpwuid(os.geteuid())
    own = {
        "HOME": os.environ.get("HOME") or user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "PATH": os.environ.get("PATH") or DEFAULT_PATH,
        "LANG": os.environ.get("LANG") or "C.UTF-8",
    }
    return {name: read_word(value) for name, value in own.items()}


def run_query(spool: Spool, options: argparse.Namespace) -> None:
    """Print one line for each job."""
    query = f"SELECT {_COLUMNS} FROM job JOIN submission ON number = submission WHERE"
    if options.ids:
        places = [place for place in map(read_local_id, options.ids) if place is not None]
        found = [spool.database.execute(f"{query} token = ? AND job = ?", place).fetchone() for place in places]
    elif options.token:
        found = spool.database.execute(f"{query} token = ? ORDER BY job", (options.token,)).fetchall()
    else:
        # CROSS JOIN: the few submissions first, not all jobs that ever ran.
        recent = (
            f"SELECT {_COLUMNS} FROM submission CROSS JOIN job ON number = submission"
            " WHERE ended IS NULL OR ended > ? ORDER BY submission, job"
        )
        found = spool.database.execute(recent, (int(time.time()) - HISTORY_SECONDS,)).fetchall()
    lines = [render_answer(spool, *row) for row in found if row is not None]
    if has_work(spool):
        run_queue_if_none(spool, options.slots, options.grace)
    sys.stdout.writelines(lines)


_COLUMNS = "token, job, state, exit_code, cause"


def render_answer(spool: Spool, token: str, index: int, state: str, exit_code: int | None, cause: str | None) -> str:
    """One line of a query: ID, queued|running|suspended|ended|killed|cancelled (unstarted)|lost, exit code or `-`.

    For a job that the queue ended, the cause and the user follow: the spool's only account.
    """
    local_id = render_local_id(token, index)
    if state in ("queued", "running"):
        run = read_run_file(spool.run / local_id) if state == "running" else None
        word = "suspended" if run and run.process and is_stopped(run.process) else state
        return f"{local_id} {word} -\n"
    code = exit_code if state in ("ended", "killed") else "-"
    by = f" by {os.geteuid()}" if cause is not None and Cause(cause).is_cancellation else ""
    return f"{local_id} {state} {code}{f' {cause}' if cause else ''}{by}\n"


def run_cancel(spool: Spool, options: argparse.Namespace) -> None:
    """Cancel jobs, and print what became of each."""
    with spool.transaction():
        answers = [f"{local_id} {_cancel_job(spool, local_id)}\n" for local_id in options.ids]
    sys.stdout.writelines(answers)
    sys.stdout.flush()
    if has_work(spool):
        run_queue_if_none(spool, options.slots, options.grace)


def _cancel_job(spool: Spool, local_id: str) -> str:
    """Mark a job as to be cancelled, and give the word for the answer; the queue process does the rest."""
    find = "SELECT number, job, state FROM job JOIN submission ON number = submission WHERE token = ? AND job = ?"
    found = spool.database.execute(find, read_local_id(local_id) or ("", 0)).fetchone()
    if found is None:
        return "unknown"
    number, index, state = found
    if state not in ("queued", "running"):
        return "cancelled" if state == "cancelled" else "ended"
    cause = Cause.CANCELLED_OUTSIDE.value
    if state == "queued":
        change = "UPDATE job SET cancel = 1, state = 'cancelled', cause = ? WHERE submission = ? AND job = ?"
        spool.database.execute(change, (cause, number, index))
        return "cancelled"
    spool.database.execute("UPDATE job SET cancel = 1 WHERE submission = ? AND job = ?", (number, index))
    return "signalled"


def run_forget(spool: Spool, options: argparse.Namespace) -> None:
    """Delete what has ended."""
    for prefix in options.prefixes:
        forget_prefix(spool, prefix)


def run_serve(spool: Spool, options: argparse.Namespace) -> None:
    """Run the keeper of the spool's queue process until nothing is left to do; standard input is its lock."""
    # Imported late: the short-lived commands do not need these.
    import logging

    from batch_adapters.fork.keeper import run_keeper

    if not os.path.samestat(os.fstat(0), spool.queue_lock.stat()):
        raise SpoolError("serve is for the other commands to start")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run_keeper(spool, options.slots or len(os.sched_getaffinity(0)), options.grace)


def run_suspend(spool: Spool, options: argparse.Namespace) -> None:
    """Stop all processes of running jobs, and print what became of each.

    Nothing is stored: a job is suspended if its process is stopped.
    """
    _run_signal(spool, options.ids, signal.SIGSTOP, State.SUSPENDED)


def run_resume(spool: Spool, options: argparse.Namespace) -> None:
    """Let the processes of stopped jobs go on, and print what became of each job."""
    _run_signal(spool, options.ids, signal.SIGCONT, State.ACTIVE)


def _run_signal(spool: Spool, ids: Iterable[str], number: signal.Signals, state: State) -> None:
    for local_id in ids:
        is_done = read_local_id(local_id) is not None and _signal_job(spool, local_id, number)
        if is_done:
            write_events(spool.events, [Event(int(time.time()), local_id, state)])
        print(f"{local_id} {'signalled' if is_done else 'not-running'}")


def _signal_job(spool: Spool, local_id: str, number: signal.Signals) -> bool:
    """True if the job's processes got a signal that changes something."""
    run = read_run_file(spool.run / local_id)
    if run is None or run.end is not None or run.process is None or not is_alive(run.process):
        return False
    if is_stopped(run.process) == (number is signal.SIGSTOP):
        return False
    run_signal_group(run.process.pid, number)
    return True


# --- words of the command line: each reader raises ArgumentTypeError, or returns what its name says

# Each running job costs the queue process one descriptor, of which it has 1024 by default.
MAX_SLOTS = 900
MAX_ARRAY = 1_000_000
_MOST_DIGITS = 18


def read_word(text: str) -> str:
    """The bytes as they were given to us, in the one form that the spool and the protocol use."""
    return read_wire(os.fsencode(text))


def read_token(text: str) -> str:
    """A submission's name."""
    if not is_token(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no token: at most 15 characters [a-z][a-z0-9-]*")
    return text


def _read_number(text: str, smallest: int, largest: int) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not smallest <= int(text) <= largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {smallest} to {largest}")
    return int(text)


read_count = partial(_read_number, smallest=1, largest=MAX_ARRAY)
read_slots = partial(_read_number, smallest=0, largest=MAX_SLOTS)
read_limit = partial(_read_number, smallest=0, largest=10_000_000)
"""Minutes."""


def read_grace(text: str) -> float:
    """Seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return seconds
