"""The commands of the embedded batch system: submit, query, cancel, and serve (the queue process itself)."""

import argparse
import os
import pwd
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from batch_adapters.causes import Cause
from batch_adapters.fork.arguments import (
    read_array,
    read_grace,
    read_limit,
    read_slots,
    read_token,
    read_variable,
    read_word,
)
from batch_adapters.fork.processes import is_stopped
from batch_adapters.fork.records import (
    Record,
    read_local_id,
    read_record_file,
    record_path,
    render_cancelled,
    write_claim,
)
from batch_adapters.fork.spool import (
    Spool,
    SpoolError,
    has_ended_long_ago,
    has_work,
    lock_file,
    make_spool,
    read_claimed,
    read_stored_submission,
    read_tokens,
    run_queue_if_none,
    run_wake,
    write_marker,
    write_submission,
)
from batch_adapters.fork.submission import Submission, render_local_id
from batch_adapters.fork.suspension import run_resume, run_suspend
from batch_adapters.states import State

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def main(argv: Sequence[str]) -> int:
    """Run one command; exit status 0, 1 (the spool cannot be used: no answer) or 2 (wrong arguments)."""
    options, command = read_options(argv)
    try:
        spool = make_spool(options.spool.absolute())
        match options.command:
            case "submit":
                run_submit(spool, options, command)
            case "query":
                run_query(spool, options)
            case "cancel":
                run_cancel(spool, options)
            case "suspend":
                run_suspend(spool, options.ids)
            case "resume":
                run_resume(spool, options.ids)
            case "serve":
                run_serve(spool, options.slots, options.grace)
    except (SpoolError, OSError) as error:
        print(f"samgrid-fork: {error}", file=sys.stderr)
        return 1
    return 0


def read_options(argv: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The options, and the command of a submission (all after `--`); exits with a message where they are wrong."""
    # Cut here and not by argparse, whose treatment of `--` differs between versions.
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = _make_parser()
    options = parser.parse_args(argv[:cut])
    command = tuple(read_word(word) for word in argv[cut + 1 :])
    if options.command == "submit" and not command:
        parser.error("submit needs the program to run, after --")
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
    submit.add_argument("--stdout", type=read_word, default=os.devnull, help="%%i becomes the index")
    submit.add_argument("--stderr", type=read_word, default=os.devnull, help="%%i becomes the index")
    submit.add_argument("--wall-time", type=read_limit, default=0, metavar="MINUTES", help="SIGTERM after this time")
    submit.add_argument("--cpu-time", type=read_limit, default=0, metavar="MINUTES", help="ulimit -t")
    submit.add_argument("--memory", type=read_limit, default=0, metavar="MB", help="ulimit -v")
    submit.add_argument("--environment", type=read_variable, action="append", default=[], metavar="NAME=VALUE")
    query = commands.add_parser("query", help="list jobs: ID NATIVE CODE", allow_abbrev=False)
    query.add_argument("--token", type=read_token, help="the jobs of one submission")
    query.add_argument("ids", nargs="*", metavar="ID")
    cancel = commands.add_parser("cancel", help="cancel jobs: ID cancelled|signalled|ended|unknown", allow_abbrev=False)
    cancel.add_argument("ids", nargs="+", metavar="ID", help="or - to read them from standard input")
    suspend = commands.add_parser("suspend", help="stop running jobs: ID signalled|not-running", allow_abbrev=False)
    resume = commands.add_parser("resume", help="let stopped jobs go on", allow_abbrev=False)
    for command in (suspend, resume):
        command.add_argument("ids", nargs="+", metavar="ID")
    commands.add_parser("serve", help="be the queue process (started by the other commands)")
    return parser


def run_submit(spool: Spool, options: argparse.Namespace, command: tuple[str, ...]) -> None:
    """Store the submission, unless its token is taken, and see that it is served."""
    environment = render_environment() | dict(options.environment)
    first, last = options.array
    submission = Submission(
        token=options.token,
        first=first,
        last=last,
        submitted=time.time_ns(),
        command=command,
        directory=options.directory or environment["HOME"],
        environment=tuple(environment.items()),
        stdout=options.stdout,
        stderr=options.stderr,
        wall_minutes=options.wall_time,
        cpu_minutes=options.cpu_time,
        memory_mb=options.memory,
    )
    stored = write_submission(spool, submission)
    run_queue_if_none(spool, options.slots, options.grace)
    print(f"{stored.token} {stored.first}-{stored.last}")


def render_environment() -> dict[str, str]:
    """What a job gets of its submitter's environment."""
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
    """Print one line for each job that is known."""
    lines: list[str] = []
    if options.ids:
        places = [place for place in map(read_local_id, options.ids) if place is not None]
        known = read_submissions(spool, {token for token, _ in places})
        wanted = [(known[token], index) for token, index in places if token in known]
        lines = [_query_job(spool, found, index) for found, index in wanted if index in found.indices]
    else:
        tokens = {options.token} if options.token else _read_late_tokens(spool)
        for submission in sorted(read_submissions(spool, tokens).values(), key=lambda found: found.submitted):
            lines += _query_array(spool, submission)
    if has_work(spool):
        run_queue_if_none(spool, options.slots, options.grace)
    sys.stdout.writelines(lines)


def _read_late_tokens(spool: Spool) -> set[str]:
    now = time.time()
    return {token for token in read_tokens(spool) if not has_ended_long_ago(spool, token, now)}


def read_submissions(spool: Spool, tokens: Iterable[str]) -> dict[str, Submission]:
    """The submissions of those tokens that there are; raises SpoolError."""
    found = ((token, read_stored_submission(spool, token)) for token in tokens)
    return {token: submission for token, submission in found if submission is not None}


def _query_array(spool: Spool, submission: Submission) -> list[str]:
    claimed = read_claimed(spool, submission.token)
    return [
        _query_job(spool, submission, index)
        if index in claimed
        else render_answer(render_local_id(submission.token, index), None)
        for index in submission.indices
    ]


def _query_job(spool: Spool, submission: Submission, index: int) -> str:
    record = read_record_file(record_path(spool.jobs, submission.token, index))
    return render_answer(render_local_id(submission.token, index), record)


def render_answer(local_id: str, record: Record | None) -> str:
    """One line of a query: ID, queued|running|suspended|ended|killed|cancelled (unstarted)|lost, exit code or `-`.

    Of a job that the queue ended there follows why, and whose: the spool has one account, so that is its own.
    """
    if record is None:
        return f"{local_id} queued -\n"
    if record.cancelled:
        return f"{local_id} cancelled -{_render_cause(Cause.CANCELLED_OUTSIDE)}\n"
    if record.end is None:
        word = "suspended" if record.process is not None and is_stopped(record.process) else "running"
        return f"{local_id} {word} -\n"
    if record.end.lost:
        return f"{local_id} lost -{_render_cause(record.stopped)}\n"
    word = "ended" if record.end.state is State.DONE else "killed"
    return f"{local_id} {word} {record.end.exit_code}{_render_cause(record.stopped)}\n"


def _render_cause(stopped: Cause | None) -> str:
    if stopped is None:
        return ""
    return f" {stopped.value} by {os.geteuid()}" if stopped.is_cancellation else f" {stopped.value}"


def run_cancel(spool: Spool, options: argparse.Namespace) -> None:
    """Cancel jobs, and print what became of each."""
    ids = sys.stdin.read().split() if options.ids == ["-"] else options.ids
    places = {local_id: read_local_id(local_id) for local_id in ids}
    known = read_submissions(spool, {place[0] for place in places.values() if place is not None})
    for local_id, place in places.items():
        if place is None or place[0] not in known or place[1] not in known[place[0]].indices:
            print(f"{local_id} unknown")
        else:
            print(f"{local_id} {_cancel_job(spool, local_id, *place)}")
    sys.stdout.flush()
    if has_work(spool):
        run_queue_if_none(spool, options.slots, options.grace)


def _cancel_job(spool: Spool, local_id: str, token: str, index: int) -> str:
    path = record_path(spool.jobs, token, index)
    write_claim(path, render_cancelled(int(time.time())), durable=False)
    # Whose claim it is decides: ours, an earlier cancel's, or the job's own.
    record = read_record_file(path)
    if record is not None and record.end is not None:
        return "cancelled" if record.cancelled else "ended"
    # The queue process ends it, whichever it is; should we be killed before this line, it finds our claim by itself.
    write_marker(spool.cancel / local_id)
    return "cancelled" if record is not None and record.cancelled else "signalled"


def run_serve(spool: Spool, slots: int, grace: float) -> None:
    """Be the queue process of the spool until nothing is left to do, unless there is one."""
    # Here, so that the short-lived commands do not load what the queue process alone needs.
    import logging

    from batch_adapters.fork.queue import Queue

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    unreadable: frozenset[str] = frozenset()
    while has_work(spool, unreadable):
        with lock_file(spool.lock, wait=False) as is_ours:
            if not is_ours:
                run_wake(spool)
                return
            queue = Queue(spool, slots or len(os.sched_getaffinity(0)), grace)
            queue.run()
            unreadable = queue.unreadable
        # What came after it had stopped to listen saw the lock held, or starts a process that finds ours: look again.
