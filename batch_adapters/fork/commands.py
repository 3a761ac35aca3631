"""The commands of the embedded batch system, from submit to serve (the queue process itself), and their arguments."""

import argparse
import contextlib
import os
import pwd
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from batch_adapters.fork.processes import is_alive, is_stopped, run_signal_group
from batch_adapters.fork.protocol import read_wire
from batch_adapters.fork.spool import (
    MAX_INDEX,
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
    options, command = read_options(argv)
    try:
        with contextlib.closing(open_spool(options.spool.absolute())) as spool:
            _run_command(spool, options, command)
    except SpoolError as error:
        print(f"samgrid-fork: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"samgrid-fork: {error.filename or options.spool.absolute()}: {error.strerror}", file=sys.stderr)
        return 1
    except sqlite3.Error as error:
        print(f"samgrid-fork: cannot use {options.spool.absolute() / 'spool.db'}: {error}", file=sys.stderr)
        return 1
    return 0


def _run_command(spool: Spool, options: argparse.Namespace, command: tuple[str, ...]) -> None:
    match options.command:
        case "submit":
            run_submit(spool, options, command)
        case "query":
            run_query(spool, options)
        case "cancel":
            run_cancel(spool, options)
        case "suspend":
            run_signal(spool, options.ids, signal.SIGSTOP, State.SUSPENDED)
        case "resume":
            run_signal(spool, options.ids, signal.SIGCONT, State.ACTIVE)
        case "forget":
            for prefix in options.prefixes:
                forget_prefix(spool, prefix)
        case "serve":
            run_serve(spool, options.slots, options.grace)


def read_options(argv: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, and the command of a submission (all after `--`); exits with a message if they are wrong."""
    # Cut here and not by argparse, whose treatment of `--` differs between versions.
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = _make_parser()
    options = parser.parse_args(argv[:cut])
    command = tuple(read_word(word) for word in argv[cut + 1 :])
    if options.command == "submit" and not command:
        parser.error("submit needs the program to run, after --")
    slots = options.slots or len(os.sched_getaffinity(0))
    if options.command == "submit" and options.cores > slots:
        parser.error(f"a job wants {options.cores} cores, and there are {slots} slots")
    if options.command != "submit" and cut < len(argv):
        parser.error(f"{options.command} takes no program")
    return options, command


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samgrid-fork", description=__doc__, allow_abbrev=False)
    parser.add_argument("--spool", type=Path, required=True, help="the folder of this batch system")
    parser.add_argument("--slots", type=read_slots, default=0, help="jobs that run at a time (0: one per processor)")
    parser.add_argument("--grace", type=read_grace, default=10.0, help="seconds between SIGTERM and SIGKILL")
    commands = parser.add_subparsers(dest="command", required=True)
    submit = commands.add_parser("submit", help="submit an array of jobs", allow_abbrev=False)
    submit.add_argument("--token", type=read_token, required=True, help="the name of this submission")
    submit.add_argument("--array", type=read_array, required=True, metavar="FIRST-LAST", help="indices of the jobs")
    submit.add_argument("--directory", type=read_word, help="where they run (default: the home directory)")
    submit.add_argument("--stdout", type=read_word, default=os.devnull, help="%%i becomes the index, %%%% a %%")
    submit.add_argument("--stderr", type=read_word, default=os.devnull, help="%%i becomes the index, %%%% a %%")
    submit.add_argument("--wall-time", type=read_limit, default=0, metavar="MINUTES", help="SIGTERM after this time")
    submit.add_argument("--cores", type=read_slots, default=1, help="slots that each job takes")
    query = commands.add_parser("query", help="list jobs: ID NATIVE CODE", allow_abbrev=False)
    query.add_argument("--token", type=read_token, help="the jobs of one submission")
    query.add_argument("ids", nargs="*", metavar="ID")
    cancel = commands.add_parser("cancel", help="cancel jobs: ID cancelled|signalled|ended|unknown", allow_abbrev=False)
    cancel.add_argument("ids", nargs="+", metavar="ID", help="or - to read them from standard input")
    suspend = commands.add_parser("suspend", help="stop running jobs: ID signalled|not-running", allow_abbrev=False)
    resume = commands.add_parser("resume", help="let stopped jobs go on", allow_abbrev=False)
    for command in (suspend, resume):
        command.add_argument("ids", nargs="+", metavar="ID")
    forget = commands.add_parser("forget", help="let go of what has ended", allow_abbrev=False)
    forget.add_argument("prefixes", nargs="+", type=read_token, metavar="PREFIX", help="of tokens")
    commands.add_parser("serve", help="be the queue process (started by the other commands)")
    return parser


def run_submit(spool: Spool, options: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Store the submission, unless its token is taken, and make sure that a queue process runs."""
    environment = render_environment()
    submission = StoredSubmission(
        command=command,
        directory=options.directory or environment["HOME"],
        environment=tuple(environment.items()),
        stdout=options.stdout,
        stderr=options.stderr,
        wall_minutes=options.wall_time,
        cores=options.cores,
    )
    first, last = write_submission(spool, options.token, options.array, submission)
    run_queue_if_none(spool, options.slots, options.grace)
    print(f"{options.token} {first}-{last}")


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
    ids = sys.stdin.read().split() if options.ids == ["-"] else options.ids
    with spool.transaction():
        answers = [f"{local_id} {_cancel_job(spool, local_id)}\n" for local_id in ids]
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


def run_serve(spool: Spool, slots: int, grace: float) -> None:
    """Run the keeper of the spool's queue process until nothing is left to do; standard input is its lock."""
    # Imported late: the short-lived commands do not need these.
    import logging

    from batch_adapters.fork.keeper import run_keeper

    if not os.path.samestat(os.fstat(0), spool.queue_lock.stat()):
        raise SpoolError("serve is for the other commands to start")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run_keeper(spool, slots or len(os.sched_getaffinity(0)), grace)


def run_signal(spool: Spool, ids: Iterable[str], number: signal.Signals, state: State) -> None:
    """Stop all processes of running jobs, or let them go on, and print what became of each.

    Nothing is stored: a job is suspended if its process is stopped.
    """
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


def read_array(text: str) -> tuple[int, int]:
    """First and last index."""
    first, dash, last = text.partition("-")
    if not (dash and _is_number(first) and _is_number(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST-LAST, as in 1-250")
    if not 1 <= int(first) <= int(last) <= MAX_INDEX or int(last) - int(first) >= MAX_ARRAY:
        raise argparse.ArgumentTypeError(f"{text}: it must rise, begin at 1 or later and have at most {MAX_ARRAY} jobs")
    return int(first), int(last)


def read_slots(text: str) -> int:
    """How many jobs run at a time."""
    return _read_number(text, MAX_SLOTS)


def read_limit(text: str) -> int:
    """Minutes."""
    return _read_number(text, 10_000_000)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _read_number(text: str, largest: int) -> int:
    if not _is_number(text) or int(text) > largest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {largest}")
    return int(text)


def read_grace(text: str) -> float:
    """Seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return seconds
