"""The commands that change what has been submitted: cancel, repeat, remove."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobmanager import render_number
from jobmanager.commands.arguments import (
    AddCommand,
    account_of,
    argument,
    declare_choice,
    find_grid_jobs,
    read_choice,
    read_time,
)
from jobmanager.commands.grid_jobs import wake_for

if TYPE_CHECKING:
    from jobmanager.control.resubmission import Recovery
    from jobmanager.database.grid_job import GridJob
    from jobmanager.site.account import Account

CANCEL_HELP = "Its local jobs are ended, their outputs so far are gathered, and the grid job ends as cancelled."

RESUBMIT_HELP = """\
Submits the same request as a new grid job and prints its id.
--failed: only the local jobs that did not succeed, with the same numbers, events and seeds; of a grid job with steps,
the steps that are not done. What an earlier repetition has made is not made again; while one runs, this is refused."""

RECOVER_HELP = """\
Finds all grid jobs of a request by the experiment's own id, with their repetitions, and submits what none of them has
made. Does nothing while one of them runs, or when nothing is missing."""

REMOVE_HELP = """\
Removes everything of them, also the output tar: copy what you need before. Steps are removed with their parent.
"samgrid usage" still counts them.
Refused if a grid job has not ended, if GRAM has known its end for less than a day, or if another grid job needs it.
Options such as --ended-before skip these grid jobs, and ask before removing the others when on a terminal.
Times are as in "samgrid usage"."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    add("cancel", cancel, "Cancel a grid job.", CANCEL_HELP, declare_choice)
    failed = argument("--failed", action="store_true", help="only what did not succeed")
    add("resubmit", resubmit, "Submit a grid job again that has ended.", RESUBMIT_HELP, declare_choice, failed)
    request = argument("--request", metavar="ID", required=True, help="the experiment's own id of the request")
    add("recover", recover, "Submit again what is missing of a request.", RECOVER_HELP, request)
    add("remove", remove, "Remove grid jobs that have ended, with all files.", REMOVE_HELP, _declare_remove)


def _declare_remove(command: argparse.ArgumentParser) -> None:
    declare_choice(command)
    command.add_argument("--ended-before", metavar="TIME", type=read_time, help="all that ended before this time")
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    command.add_argument("--yes", action="store_true", help="do not ask, on a terminal")


def cancel(options: argparse.Namespace) -> int:
    """Request the end of grid jobs; the monitor does the rest. 1 where one of them cannot be cancelled."""
    import getpass

    from jobmanager.control.cancel_requests import request_cancel
    from jobmanager.database.database import DamagedDocument, UnknownJob
    from jobmanager.monitor.client import wake_monitor
    from jobmanager.views.text import printable

    account = account_of(options)
    job_ids = find_grid_jobs(options, account.database)
    reason = f"cancelled by {getpass.getuser()}"
    is_cancelled, status = dict[str, bool](), 0
    for job_id in job_ids:
        try:
            is_cancelled[job_id] = request_cancel(account.database, job_id, reason)
        except (DamagedDocument, UnknownJob) as error:  # the others are cancelled nevertheless
            print(f"samgrid cancel: {printable(str(error))}", file=sys.stderr)
            status = 1
    if any(is_cancelled.values()):
        wake_monitor(account)
    for job_id, is_under_way in is_cancelled.items():
        print(f"grid job {job_id} " + ("is being cancelled" if is_under_way else "has ended already"))
    return status


def resubmit(options: argparse.Namespace) -> int:
    """Print the id of each repetition; 1 where one of several cannot be repeated."""
    from jobmanager.control.resubmission import NotRepeatable
    from jobmanager.database.database import DamagedDocument

    account = account_of(options)
    status = 0
    for job_id in find_grid_jobs(options, account.database):
        try:
            print(repeat(account, job_id, options.failed), flush=True)
        except (NotRepeatable, DamagedDocument) as error:
            print(f"samgrid resubmit: {error}", file=sys.stderr)
            status = 1
    return status


def repeat(account: "Account", job_id: str, only_failed: bool) -> str:
    """Repeat a grid job and wake the monitor; the new id. See `repeat_grid_job`."""
    from jobmanager.control.resubmission import repeat_grid_job
    from jobmanager.monitor.client import end_other_monitor

    end_other_monitor(account)
    new_id = repeat_grid_job(account, job_id, only_failed).job_id
    wake_for(account, new_id)
    return new_id


def recover(options: argparse.Namespace) -> int:
    """Print what was missing, and which new grid jobs make it."""
    from jobmanager.views.text import printable

    found, jobs = recover_missing(account_of(options), options.request)
    name = f"request {printable(options.request)}"
    if found.running:
        print(f"{name}: nothing is submitted before these have ended: {', '.join(found.running)}")
    elif not jobs and not found.unknown:
        print(f"{name}: nothing is missing")
    for gap, job in zip(found.gaps, jobs, strict=False):
        what = render_number(len(gap.indexes), "local job") if gap.indexes else "the last steps"
        print(f"{name}: {job.job_id} makes {what} of {gap.grid_job} again")
    for job_id in found.unknown:
        print(
            f"samgrid recover: grid job {job_id} cannot be read, so nothing is submitted that it may have made:"
            f' try "samgrid repair", or else "samgrid remove {job_id}", and recover again',
            file=sys.stderr,
        )
    return 1 if found.unknown else 0


def recover_missing(account: "Account", request: str) -> "tuple[Recovery, list[GridJob]]":
    """Submit what is missing of a request and wake the monitor; see `recover_request`."""
    from jobmanager.control.resubmission import recover_request
    from jobmanager.monitor.client import end_other_monitor

    end_other_monitor(account)
    found, jobs = recover_request(account, request)
    for job in jobs[:1]:
        wake_for(account, job.job_id)
    return found, jobs


def remove(options: argparse.Namespace) -> int:
    """Remove grid jobs; 1 where one that was named could not be removed."""
    from jobmanager.control.removal import find_ended_before, sweep

    is_chosen = bool(options.id) or not read_choice(options).is_empty
    if is_chosen == (options.ended_before is not None):
        options.refuse("say which grid jobs: ids, names or options such as --state, or else --ended-before TIME")
    account = account_of(options)
    if is_chosen:
        # Steps are removed with their parent.
        job_ids = account.database.grid_jobs.without_steps(find_grid_jobs(options, account.database))
    else:
        job_ids = find_ended_before(account.database, options.ended_before)
    is_asked = not (options.dry_run or options.id or options.yes) and sys.stdin.isatty()
    if is_asked and not _agrees(len(job_ids)):
        print("samgrid remove: nothing was removed", file=sys.stderr)
        return 1
    freed = 0 if options.dry_run else sweep(account)
    sizes = _remove(account, job_ids, options.dry_run)
    if options.dry_run:
        print(f"grid jobs that would be removed: {len(sizes):,}, bytes: {sum(sizes):,}")
    else:
        print(f"grid jobs removed: {len(sizes):,}, bytes freed: {freed + sum(sizes):,}")
    return 1 if options.id and len(sizes) < len(job_ids) else 0


def _agrees(count: int) -> bool:
    try:
        answer = input(f"Remove {render_number(count, 'grid job')} at most, with all outputs? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _remove(account: "Account", job_ids: Sequence[str], only_says: bool) -> list[int]:
    """Remove grid jobs, or only say what that would remove; the sizes of these. Reasons go to standard error."""
    from jobmanager.control.removal import NotRemovable, check_removable, measure_grid_job, remove_grid_job
    from jobmanager.database.database import UnknownJob

    sizes = []
    for job_id in job_ids:
        try:
            if only_says:
                check_removable(account.database, job_id)
                sizes.append(measure_grid_job(account, job_id))
                print(f"{job_id}  {sizes[-1]:,} bytes")
            else:
                sizes.append(remove_grid_job(account, job_id))
        except (NotRemovable, UnknownJob) as error:
            print(f"samgrid remove: {error}", file=sys.stderr)
    return sizes
