"""The commands that submit grid jobs and show what becomes of them."""

import argparse
import errno
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import UserError
from jobmanager.commands.arguments import (
    AddCommand,
    account_of,
    argument,
    declare_choice,
    find_grid_jobs,
    open_account_of,
    read_choice,
    read_name,
)

if TYPE_CHECKING:
    from jobmanager.requests.attributes import Given
    from jobmanager.site.account import Account

_INTERVAL = 0.5
"""Seconds between two looks for what is to come."""

SUBMIT_HELP = """\
The request is checked first. A bad one is refused with a list of all its faults, and leaves nothing behind.
File names in the request are relative to the folder of FILE (for standard input: to the current folder).
"samgrid types" lists the job types, "samgrid types TYPE" the attributes of one."""

RUN_HELP = """\
Exit status: 0 the grid job is done, 1 it failed, 3 it cannot go on now; it is submitted, and nothing is lost."""

WATCH_HELP = """\
Shows a bar per phase on a terminal, elsewhere a line for each change.
Exit status: 0 the grid job is done, 1 it failed, 3 it cannot go on now (the disk is full, the batch system is silent).
After 3 nothing is lost; say "samgrid watch ID" again."""

STATUS_HELP = """\
A table with a line per grid job: its state, and how many local jobs are in each state. With one ID, that grid job with
its phases and problems; with one ID and --state, its local jobs in that state, with cause and reason.
--name, --type, --state, --user and --since select grid jobs; all that are given must fit.

Below the table stand batch systems that do not answer, and since when; no state changes until they do. In quarantine
are grid jobs with a document that cannot be read; all others go on.
JSON contains all of this; "--format json-schema" prints its schema.
Times are UTC: 2026-11-22, 2026-11-22T08:30, or 36h and 7d ago."""

OUTPUT_HELP = "Prints the path of the tar, what is in it, what is missing, and the job type's own summary."

LOG_HELP = """\
ID: what the job manager did for this grid job.
ID/NUMBER or ID/FIRST-LAST: the last lines of these local jobs' standard output and standard error, of at most 20.
--failed ID: the same for local jobs that did not succeed.
--follow ID/NUMBER: what this local job prints, as it comes, until it ends. If it runs on another host, the first lines
may take half a minute, and of a program that prints very much, parts are left out."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    file = (
        argument(
            "file", metavar="FILE", help='request in RSL, or an old job description file; "-" reads standard input'
        ),
        argument("--name", metavar="NAME", type=read_name, help="name of the grid job, in place of the request's name"),
    )
    dry_run = argument("--dry-run", action="store_true", help="only show the local jobs' command lines")
    add("submit", submit, "Submit a grid job and print its id.", SUBMIT_HELP, *file, dry_run)
    add("run", run, "Submit a grid job, watch it, and show its output.", RUN_HELP, *file)
    add("watch", watch, "Show a grid job's progress until it ends.", WATCH_HELP, declare_choice)
    what, formats = "what to print (default: table)", ("table", "json", "xml", "json-schema")
    form = argument("--format", choices=formats, default="table", help=what)
    add("status", status, "List grid jobs.", STATUS_HELP, declare_choice, form)
    where = "unpack it into a new folder DIR; with several grid jobs, into folders DIR/ID"
    folder = argument("--extract", metavar="DIR", help=where)
    add("output", output, "Show a grid job's output tar.", OUTPUT_HELP, declare_choice, folder)
    add("log", log, "Show the log of a grid job, or what a local job printed.", LOG_HELP, _declare_log)


def _declare_log(command: argparse.ArgumentParser) -> None:
    declare_choice(command)
    command.add_argument("--failed", action="store_true", help="what the local jobs printed that did not succeed")
    command.add_argument("-f", "--follow", action="store_true", help="show what one local job prints as it comes")
    command.add_argument(
        "--lines",
        metavar="N",
        type=_read_count,
        help="the last N lines (default: the whole log, 100 of what a local job printed)",
    )


def _read_count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,6}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of lines from 1 to 9999999")
    return int(text)


def submit(options: argparse.Namespace) -> int:
    """Accept a request and print the grid job's id; the rest happens in the background."""
    if options.dry_run:
        return _show_command_lines(account_of(options), options.file, options.name)
    job_id = _submit(open_account_of(options), options.file, options.name)
    try:
        print(job_id, flush=True)
    except OSError as error:  # an error must not make anybody submit it again
        raise UserError(f"{job_id} is accepted, but its id could not be printed: {error.strerror}") from error
    return 0


def _show_command_lines(account: "Account", file: str, name: str | None) -> int:
    """Print what each local job would run, with its own variables."""
    from jobmanager.run_grid_job import find_command_lines
    from jobmanager.views.text import printable

    given, folder = _read_request(account, file, name)
    sys.stdout.writelines(f"{printable(line)}\n" for line in find_command_lines(account, given, folder))
    return 0


def run(options: argparse.Namespace) -> int:
    """Submit, watch and show the output; the exit status is the grid job's."""
    from jobmanager.views.watching import watch_grid_job

    account = open_account_of(options)
    job_id = _submit(account, options.file, options.name)
    print(f"grid job {job_id} submitted", flush=True)
    try:
        status = watch_grid_job(account, job_id)
    except KeyboardInterrupt:
        print(f"\ngrid job {job_id} goes on: samgrid watch {job_id}, samgrid cancel {job_id}", file=sys.stderr)
        raise
    if status in (0, 1):
        _show_output(account, job_id)
    return status


def watch(options: argparse.Namespace) -> int:
    """Show progress until the grid job has ended, of several one after another; the worst of their exit statuses."""
    from jobmanager.views.watching import watch_grid_job

    account = account_of(options)
    return max([watch_grid_job(account, job_id) for job_id in find_grid_jobs(options, account.database)])


def status(options: argparse.Namespace) -> int:
    """List grid jobs, and wake the monitor if there is anything left to do."""
    from dataclasses import replace

    from jobmanager.views.grid_jobs import (
        STATUS_SCHEMA,
        find_details,
        read_grid_jobs,
        render_delays,
        render_details,
        render_json,
        render_local_jobs,
        render_table,
    )

    if options.format == "json-schema":
        print(STATUS_SCHEMA.read_text(), end="")
        return 0
    account = account_of(options)
    choice = read_choice(options)
    now = time.time()
    if len(options.id) == 1:
        choice = replace(choice, state=None)
    if options.id:
        choice = replace(choice, ids=tuple(account.database.grid_jobs.choose(options.id, choice)))
    chosen = read_grid_jobs(account, choice)
    job_id = chosen.rows[0].id if len(options.id) == 1 else None
    if options.format == "json":
        print(render_json(account.database, chosen, find_details(account, job_id, now) if job_id else {}))
    elif options.format == "xml":
        from jobmanager.views.export import render_xml

        print(render_xml(chosen))
    else:
        folder = account.places.root if choice.is_empty else None
        print(render_details(account, chosen.rows[0], now) if job_id else render_table(chosen.rows, folder))
        if job_id and options.state:
            print(render_local_jobs(account.database.local_jobs.lines(job_id), options.state))
        sys.stdout.writelines(f"{line}\n" for line in render_delays(chosen, now))
    _wake_if_needed(account)
    return 0


def output(options: argparse.Namespace) -> int:
    """Show the output tar of a grid job that has ended, or unpack it."""
    from jobmanager.views.outputs import unpack_output

    account = account_of(options)
    job_ids = find_grid_jobs(options, account.database)
    folder = None if options.extract is None else Path(options.extract)
    if folder and len(job_ids) > 1:
        folder.mkdir(mode=0o700)
    for job_id in job_ids:
        _show_output(account, job_id)
        if folder:
            own = folder / job_id if len(job_ids) > 1 else folder
            unpack_output(account, job_id, own)
            print(f"unpacked into {own}")
    return 0


def log(options: argparse.Namespace) -> int:
    """Print the logs of grid jobs, or what local jobs printed."""
    sys.stdout.writelines(f"{line}\n" for line in _find_log(options))
    return 0


def _find_log(options: argparse.Namespace) -> Iterator[str]:
    from jobmanager.views import logs

    account = account_of(options)
    database = account.database
    words = [word for word in options.id if logs.is_of_local_jobs(database, word)]
    if options.failed and words:
        options.refuse(f"--failed takes whole grid jobs: leave it out, or say ID instead of {words[0]}")
    if options.follow:
        yield from _follow(account, options, words)
        return
    jobs = [job for word in words for job in logs.find_meant(database, word)]
    yield from logs.render_local_logs(account, jobs, options.lines)
    options.id = [word for word in options.id if word not in words]
    job_ids = find_grid_jobs(options, database) if options.id or not words else []
    for job_id in job_ids:
        if options.failed:
            failed = logs.find_failed(database, job_id)
            yield from logs.render_local_logs(account, failed, options.lines)
            if not failed:
                yield f"no local job of {job_id} has failed"
            continue
        if len(job_ids) > 1:
            yield f"grid job {job_id}:"
        yield from logs.render_log(account, database, job_id, options.lines)


def _follow(account: "Account", options: argparse.Namespace, words: Sequence[str]) -> Iterator[str]:
    from jobmanager.views.following import follow_local_job
    from jobmanager.views.logs import find_meant, is_to_come

    if len(words) == 1:
        while is_to_come(account.database, words[0]):
            time.sleep(_INTERVAL)
    jobs = [job for word in words for job in find_meant(account.database, word)]
    if len(options.id) != 1 or len(jobs) != 1:
        options.refuse("one local job can be followed: say ID/NUMBER")
    ((grid_job, job),) = jobs
    for line in follow_local_job(account, grid_job, job.index):
        yield line
        sys.stdout.flush()


def _submit(account: "Account", file: str, name: str | None = None) -> str:
    return submit_request(account, *_read_request(account, file, name))


def _read_request(account: "Account", file: str, name: str | None) -> "tuple[Given, Path]":
    from jobmanager.requests.files import read_request_file

    given, folder = read_request_file(file, account.configuration.handlers.modules)
    return name_request(given, name), folder


def name_request(given: "Given", name: str | None) -> "Given":
    """A request under another name, if one is given."""
    from adapters import canonical_name

    if name is None:
        return given
    return [*((word, values) for word, values in given if canonical_name(word) != "name"), ("name", (name,))]


def submit_request(account: "Account", given: "Given", folder: Path) -> str:
    """Accept a request and wake the monitor; see `accept_grid_job`."""
    from jobmanager.monitor.client import end_other_monitor
    from jobmanager.requests.acceptance import accept_grid_job

    end_other_monitor(account)
    job_id = accept_grid_job(account, given, folder)
    wake_for(account, job_id)
    return job_id


def wake_for(account: "Account", job_id: str) -> None:
    """Wake the monitor for a new grid job; a failure is only a warning, because the grid job is accepted."""
    from jobmanager.monitor.client import wake_monitor

    try:
        wake_monitor(account)
    except OSError as error:
        print(f"samgrid: {job_id} is accepted, but waits: no monitor can be started: {error}", file=sys.stderr)


def _show_output(account: "Account", job_id: str) -> None:
    from jobmanager.views.outputs import find_tar, render_output

    tar = find_tar(account, job_id)
    print(render_output(account.database.grid_jobs.get(job_id), tar))


def _wake_if_needed(account: "Account") -> None:
    # Also if the end of a grid job has not been reported to GRAM, or to people.
    if not (account.database.grid_jobs.list_open() or account.database.grid_jobs.list_unreported()):
        if not account.configuration.notification.command:
            return
        from jobmanager.completion.notified import has_unsent

        if not has_unsent(account, time.time()):
            return
    from jobmanager.monitor.client import OF_ALL, ask_monitor
    from jobmanager.site.host import OtherHost
    from jobmanager.views.text import printable

    try:
        for problem in ask_monitor(account).splitlines():
            if problem.startswith(OF_ALL):
                print(f"samgrid status: {printable(problem)}", file=sys.stderr)
    except OtherHost as error:
        print(f"samgrid status: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        print("samgrid status: no monitor can be started: the state folder can only be read", file=sys.stderr)
