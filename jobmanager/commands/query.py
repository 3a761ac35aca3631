"""The commands that ask the whole job database, or write it out; heavy modules are loaded by those that need them."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from jobmanager import render_number
from jobmanager.commands.arguments import JOB_HELP, AddCommand, account_of, argument, read_name, read_seconds

QUERY_HELP = """\
The root element is <jobs>, with a <grid-job> per grid job and a <local-job> per local job inside. A local job's number
is its @index; how a job ended is its @outcome, and why its @cause. Examples:
  samgrid query 'count(//local-job[@state="active"])'
  samgrid query --job k3f '//local-job[@exit-code!="0"]/@id'
  samgrid query --format table '//local-job[re:test(@host, "^wn1[0-9]")]'
  samgrid query --xquery 'for $job in //grid-job order by $job/@ended return string($job/@id)'
Formats: text has a line per item, table a row per item with its attributes as columns, xml a document <result>.
EXPRESSION is XPath 1.0, with regular expressions (EXSLT, prefix re). docs/questions.md has twenty examples.
Exit status: 0 there is an answer, perhaps empty; 1 the expression is wrong, or took too much time or memory."""

EXPORT_HELP = """\
DIR gets a document ID.xml per grid job with its local jobs, an index.xml, the schema and the stylesheet, and the same
as web pages: open DIR/index.html. A DIR that is not empty is refused. To validate:
  xmllint --noout --relaxng DIR/schema.rng DIR/*.xml
A grid job with a document that cannot be read is left out; standard error says so, and the exit status is 1."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    add("query", query, "Ask the job database a question in XPath.", QUERY_HELP, _declare_query)
    folder = argument("folder", metavar="DIR", help="a new folder, or an empty one")
    add("export", export, "Write the job database as XML files.", EXPORT_HELP, folder)


def _declare_query(command: argparse.ArgumentParser) -> None:
    command.add_argument("expression", metavar="EXPRESSION")
    command.add_argument("--job", metavar="ID", type=read_name, help=f"look only at {JOB_HELP}")
    command.add_argument("--xquery", action="store_true", help="EXPRESSION is XQuery 3.1, or XPath 3.1: needs saxonche")
    formats = ("text", "table", "xml")
    command.add_argument("--format", choices=formats, default="text", help="what to print (default: text)")
    command.add_argument(
        "--timeout", metavar="SECONDS", type=read_seconds, default=60.0, help="how long it may take (default: 60)"
    )


def query(options: argparse.Namespace) -> int:
    from jobmanager.views.query.query import RENDERERS, Language, QueryLimits, check_names, run_limited

    account = account_of(options)
    job_id = account.database.grid_jobs.find(options.job) if options.job is not None else None
    language = Language.XQUERY if options.xquery else Language.XPATH
    result = run_limited(account, job_id, options.expression, language, QueryLimits(seconds=options.timeout))
    sys.stdout.writelines(f"{line}\n" for line in RENDERERS[options.format](result))
    for hint in check_names(options.expression, result.items):
        print(f"samgrid query: {hint}", file=sys.stderr)
    _tell_left_out("query", result.left_out)
    return 0


def export(options: argparse.Namespace) -> int:
    from jobmanager.views.export import export as write

    count, damages = write(account_of(options).database, Path(options.folder))
    print(f"{render_number(count, 'grid job')} in {options.folder}")
    _tell_left_out("export", map(str, damages))
    return int(bool(damages))


def _tell_left_out(command: str, damages: Iterable[str]) -> None:
    from jobmanager.views.text import render_line

    for damage in damages:
        print(f"samgrid {command}: left out: {render_line(damage)}", file=sys.stderr)
