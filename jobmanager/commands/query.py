"""What the ``samgrid`` commands do that only look; heavy modules are loaded by the commands that need them."""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager.commands.arguments import (
    JOB_HELP,
    AddCommand,
    CommandError,
    account_of,
    argument,
    declare_choice,
    find_grid_jobs,
    read_seconds,
)

if TYPE_CHECKING:
    from jobmanager.site.account import Account

_INTERVAL = 0.5
"""Seconds between two looks for what is to come."""

QUERY_HELP = """\
The root element is <jobs>, with a <grid-job> per grid job and a <local-job> per local job inside. Examples:
  samgrid query 'count(//local-job[@state="active"])'
  samgrid query --job k3f '//local-job[@exit-code!="0"]/@id'
  samgrid query --format table '//local-job[re:test(@host, "^wn1[0-9]")]'
  samgrid query --xquery 'for $job in //grid-job order by $job/@ended return string($job/@id)'
Formats: text has a line per item, table a row per item with its attributes as columns, xml a document <result>.
EXPRESSION is XPath 1.0, with regular expressions (EXSLT, prefix re). docs/questions.md has twenty examples.
Exit status: 0 there is an answer, perhaps empty; 1 the expression is wrong, or took too much time or memory."""

LOG_HELP = """\
ID: what the job manager did for this grid job.
ID/NUMBER or ID/FIRST-LAST: the last lines of these local jobs' standard output and standard error, of at most 20.
--failed ID: the same for local jobs that did not succeed.
--follow ID/NUMBER: what this local job prints, as it comes, until it ends. If it runs on another host, the first lines
may take half a minute, and of a program that prints very much, parts are left out."""

EXPORT_HELP = """\
DIR gets a document ID.xml per grid job with its local jobs, an index.xml, the schema and the stylesheet, and the same
as web pages: open DIR/index.html. A DIR that is not empty is refused. To validate:
  xmllint --noout --relaxng DIR/schema.rng DIR/*.xml
A grid job with a document that cannot be read is left out; standard error says so, and the exit status is 1."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    add("query", query, "Ask the job database a question in XPath.", QUERY_HELP, _declare_query)
    add("log", log, "Show the log of a grid job, or what a local job printed.", LOG_HELP, _declare_log)
    folder = argument("folder", metavar="DIR", help="a new folder, or an empty one")
    add("export", export, "Write the job database as XML files.", EXPORT_HELP, folder)
    add("web", web, "Show grid jobs in a browser.", WEB_HELP, _declare_web)


def _declare_query(command: argparse.ArgumentParser) -> None:
    command.add_argument("expression", metavar="EXPRESSION")
    command.add_argument("--job", metavar="ID", help=f"look only at {JOB_HELP}")
    command.add_argument("--xquery", action="store_true", help="EXPRESSION is XQuery 3.1, or XPath 3.1: needs saxonche")
    formats = ("text", "table", "xml")
    command.add_argument("--format", choices=formats, default="text", help="what to print (default: text)")
    command.add_argument(
        "--timeout", metavar="SECONDS", type=read_seconds, default=60.0, help="how long it may take (default: 60)"
    )


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


def query(options: argparse.Namespace) -> int:
    from jobmanager.views.query import RENDERERS, Language, QueryLimits, run_limited

    account = account_of(options)
    job_id = account.database.grid_jobs.find(options.job) if options.job is not None else None
    language = Language.XQUERY if options.xquery else Language.XPATH
    result = run_limited(account, job_id, options.expression, language, QueryLimits(seconds=options.timeout))
    sys.stdout.writelines(f"{line}\n" for line in RENDERERS[options.format](result))
    _tell_left_out("query", result.left_out)
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
        raise CommandError("one local job can be followed: say ID/NUMBER")
    ((grid_job, job),) = jobs
    for line in follow_local_job(account, grid_job, job.index):
        yield line
        sys.stdout.flush()


def export(options: argparse.Namespace) -> int:
    from jobmanager.views.export import export as write

    count, damages = write(account_of(options).database, Path(options.folder))
    print(f"{count:,} grid jobs in {options.folder}")
    _tell_left_out("export", map(str, damages))
    return int(bool(damages))


def _tell_left_out(command: str, damages: Iterable[str]) -> None:
    from jobmanager.views.text import render_line

    for damage in damages:
        print(f"samgrid {command}: left out: {render_line(damage)}", file=sys.stderr)


_DEFAULT_ADDRESS = "127.0.0.1:8642"

WEB_HELP = """\
Open the address that it prints. Whoever has the token in this address can see everything; the page changes nothing.
Ends on control-C. For a permanent token, put one into a file that only you can read:
  umask 077; openssl rand -hex 32 >FILE
See docs/web.md."""


def _declare_web(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        default=_DEFAULT_ADDRESS,
        help="address to listen on (default: %(default)s; port 0: any free port)",
    )
    command.add_argument("--token-file", metavar="FILE", help="use the token in FILE, not a new one")


def web(options: argparse.Namespace) -> int:
    from importlib.util import find_spec

    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise CommandError(f'this needs the Python package "{module}": pip install "samgrid-jobmanager[web]"')
    from jobmanager.web.access import read_token
    from jobmanager.web.serving import read_listen, serve

    listen = read_listen(options.listen)
    token = read_token(Path(options.token_file)) if options.token_file else None
    serve(account_of(options), listen, token)
    return 0
