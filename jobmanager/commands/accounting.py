"""The commands that account for what local jobs used."""

import argparse
import math
import time
from pathlib import Path

from jobmanager.commands.arguments import AddCommand, account_of, open_account_of, read_time

USAGE_HELP = """\
Counts all attempts of local jobs that have ended, by the time of their end. CPU/WALL is CPU time divided by the time
from start to end, where both are known. In reasons of failures, words with digits are written #, so that the same
failure on many hosts is one line. Removed grid jobs still count, but only by the day.
Times are UTC: 2026-11-22, 2026-11-22T08:30, or 36h and 7d ago. Formats json and csv give durations in seconds."""

ACCOUNTING_HELP = """\
Each attempt at a local job that ran is in one record once its grid job has ended, also when that was removed since.
Files appear in FOLDER whole; whoever sends them removes them. With nothing new, nothing is written. Summaries are of
whole months, and take the place of those sent before. docs/accounting.md says what is in them and who sends them."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    doc = "Sum up local jobs, CPU and wall time by user, type and batch system."
    add("usage", usage, doc, USAGE_HELP, _declare_usage)
    doc = "Write usage records for APEL or AUDITOR."
    add("accounting", write_accounts, doc, ACCOUNTING_HELP, _declare_accounting)


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
