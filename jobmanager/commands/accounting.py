"""The commands that account for grid jobs that have ended, and remove them."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import render_number
from jobmanager.commands.arguments import (
    AddCommand,
    account_of,
    declare_choice,
    find_grid_jobs,
    open_account_of,
    read_choice,
    read_time,
)

if TYPE_CHECKING:
    from jobmanager.site.account import Account

USAGE_HELP = """\
Counts all attempts of local jobs that have ended, by the time of their end. CPU/WALL is CPU time divided by the time
from start to end, where both are known. In reasons of failures, words with digits are written #, so that the same
failure on many hosts is one line. Removed grid jobs still count, but only by the day.
Times are UTC: 2026-11-22, 2026-11-22T08:30, or 36h and 7d ago. Formats json and csv give durations in seconds."""

ACCOUNTING_HELP = """\
Each attempt at a local job that ran is in one record once its grid job has ended, also when that was removed since.
Files appear in FOLDER whole; whoever sends them removes them. With nothing new, nothing is written. Summaries are of
whole months, and take the place of those sent before. docs/accounting.md says what is in them and who sends them."""

REMOVE_HELP = """\
Removes everything of them, also the output tar: copy what you need before. Steps are removed with their parent.
"samgrid usage" still counts them.
Refused if a grid job has not ended, if GRAM has known its end for less than a day, or if another grid job needs it.
Options such as --ended-before skip these grid jobs, and ask before removing the others when on a terminal.
Times are as in "samgrid usage"."""

_WRONG_USAGE = 2


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    doc = "Sum up local jobs, CPU and wall time by user, type and batch system."
    add("usage", usage, doc, USAGE_HELP, _declare_usage)
    doc = "Write usage records for APEL or AUDITOR."
    add("accounting", write_accounts, doc, ACCOUNTING_HELP, _declare_accounting)
    doc = "Remove grid jobs that have ended, with all files."
    add("remove", remove, doc, REMOVE_HELP, _declare_remove)


def _declare_usage(command: argparse.ArgumentParser) -> None:
    from jobmanager.database.usage import GROUPINGS

    command.add_argument("--since", metavar="TIME", type=read_time, default=-math.inf, help="from this time on")
    command.add_argument("--until", metavar="TIME", type=read_time, default=math.inf, help="before this time")
    command.add_argument(
        "--by",
        metavar="LIST",
        type=_read_groupings,
        default=GROUPINGS,
        help=f"some of {','.join(GROUPINGS)} (default: all)",
    )
    command.add_argument(
        "--format", choices=("table", "json", "csv"), default="table", help="what to print (default: table)"
    )


def _declare_accounting(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="FOLDER", type=Path, help="where the files are put: it must be there")
    command.add_argument(
        "--format",
        choices=("apel", "apel-summary", "auditor"),
        required=True,
        help="individual job records or monthly summaries for APEL, or records for AUDITOR",
    )
    command.add_argument(
        "--again",
        metavar="TIME",
        type=read_time,
        help="write the files again, too, with what ended since this time: the same records, which count once",
    )


def _declare_remove(command: argparse.ArgumentParser) -> None:
    declare_choice(command)
    command.add_argument("--ended-before", metavar="TIME", type=read_time, help="all that ended before this time")
    command.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    command.add_argument("--yes", action="store_true", help="do not ask, on a terminal")


def _read_groupings(text: str) -> tuple[str, ...]:
    from jobmanager.database.usage import GROUPINGS

    names = tuple(text.split(","))
    if not set(names) <= set(GROUPINGS) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(GROUPINGS)} with commas, each once")
    return names


def usage(options: argparse.Namespace) -> int:
    from jobmanager.views.usage import render_usage, render_usage_csv, render_usage_json, sum_usage

    lines = sum_usage(account_of(options).database, options.by, options.since, options.until)
    render = {"table": render_usage, "json": render_usage_json, "csv": render_usage_csv}[options.format]
    print(render(lines, options.by))
    return 0


def write_accounts(options: argparse.Namespace) -> int:
    from jobmanager.control.accounting import RecordFormat, write_records

    form = RecordFormat(options.format)
    written = write_records(open_account_of(options), options.folder, form, options.again, time.time())
    what = "summaries" if form is RecordFormat.APEL_SUMMARY else "records"
    print(f"{what} written: {written.entries:,}, in files: {written.files:,}")
    return 0


def remove(options: argparse.Namespace) -> int:
    """Remove grid jobs; 1 where one that was named could not be removed."""
    from jobmanager.control.removal import find_ended_before, sweep

    is_chosen = bool(options.id) or not read_choice(options).is_empty
    if is_chosen == (options.ended_before is not None):
        print(
            "samgrid remove: say which: ids, names or options such as --state, or --ended-before TIME", file=sys.stderr
        )
        return _WRONG_USAGE
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
