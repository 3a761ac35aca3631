"""The commands about what a site runs: job types and their checks, the configuration, and the monitor."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import UserError
from jobmanager.commands.arguments import (
    JOB_HELP,
    AddCommand,
    account_of,
    argument,
    open_account_of,
    read_name,
    read_seconds,
)

if TYPE_CHECKING:
    from adapters import Attribute, JobAdapter

CHECK_HELP = """\
Loads the module, checks its declarations, cuts a sample request into local jobs, packs the sandbox twice, and runs one
local job here. The account's state is neither read nor changed. Without --request, a sample is made from the
declarations. Each line is ok, warning or FAULT, followed by what to do.
Exit status: 0 no fault, 1 faults."""


def _declare_check(command: argparse.ArgumentParser) -> None:
    command.add_argument("module", metavar="MODULE", help="a .py file, or a dotted module name")
    command.add_argument(
        "--request", metavar="FILE", action="append", default=[], help="a sample request; may be repeated"
    )
    command.add_argument("--no-run", dest="runs_one", action="store_false", help="run no local job")
    command.add_argument(
        "--run-time", metavar="SECONDS", type=read_seconds, default=600.0, help="how long it may take (default: 600)"
    )


def types(options: argparse.Namespace) -> int:
    """List job types, or the declared attributes of one."""
    from jobmanager.requests.attributes import COMMON_ATTRIBUTES, suggest
    from jobmanager.requests.job_types import read_job_types
    from jobmanager.site.configuration import read_configuration
    from jobmanager.views.text import render_columns

    known, faults = read_job_types(read_configuration(os.environ).handlers.modules)
    for fault in dict.fromkeys(map(str, faults.values())):
        print(f"samgrid: left out: {fault}", file=sys.stderr)
    if options.type is None:
        print(render_columns([(name, _first_line(known[name])) for name in sorted(known)]))
        return 0
    if options.type not in known:
        raise UserError(
            f'unknown job type "{options.type}"{suggest(options.type, known)}: known are {", ".join(sorted(known))}'
        )
    print(_render_type(known[options.type], COMMON_ATTRIBUTES))
    return 0


def _render_type(handler: "type[JobAdapter]", common: "Sequence[Attribute]") -> str:
    """A job type's attributes: its own, the site's, and those of every type."""
    parts = [f"{handler.jobType}: {_first_line(handler)}", "", "attributes:", _render_attributes(handler.attributes)]
    parts += ["", "attributes of every job type:", _render_attributes(common)]
    if handler.siteAttributes:
        parts += ["", f"configuration [type.{handler.jobType}]:", _render_attributes(handler.siteAttributes)]
    return "\n".join(parts)


def _render_attributes(attributes: "Iterable[Attribute]") -> str:
    from jobmanager.views.text import render_listing

    rows = [(a.name, a.describe(), "required" if a.required else _default(a), a.doc) for a in attributes]
    return render_listing(("NAME", "VALUE", "DEFAULT", "MEANING"), rows) if rows else "none"


def _default(attribute: "Attribute") -> str:
    shown = attribute.default
    if isinstance(shown, bool):
        return "yes" if shown else "no"
    if isinstance(shown, tuple) and all(isinstance(word, str) for word in shown):
        return " ".join(word if word.isalnum() else f'"{word}"' for word in shown)
    return "" if shown is None or shown in ("", ()) else str(shown)


def _first_line(handler: "type[JobAdapter]") -> str:
    return (handler.__doc__ or "").strip().splitlines()[0] if handler.__doc__ else ""


def check_handler(options: argparse.Namespace) -> int:
    from batch_adapters.running.diagnosis import Level
    from jobmanager.checks.doctor import render_finding
    from jobmanager.checks.handler_check import Sample, check_module
    from jobmanager.requests.files import read_request_file
    from jobmanager.site.configuration import read_configuration

    configuration = read_configuration(os.environ)
    module = str(Path(options.module).absolute()) if options.module.endswith(".py") else options.module
    modules = (*configuration.handlers.modules, module)
    samples = [Sample(file, *read_request_file(file, modules)) for file in options.request]
    run_time = options.run_time if options.runs_one else None
    faults = 0
    for finding in check_module(configuration, module, samples, run_time):
        print(render_finding(finding, hint=""), flush=True)
        faults += finding.level is Level.FAULT
    print(f"faults: {faults}" if faults else "no faults")
    return int(bool(faults))


CONFIG_HELP = """\
Later ones win: defaults, /etc/samgrid/samgrid.toml, the file $SAMGRID_CONFIG, variables SAMGRID_SECTION_KEY."""

MONITOR_HELP = "Not needed by hand: every command starts a monitor when there is work. As a service, use --stay."

REPAIR_HELP = """\
Use it for faults that "samgrid doctor" finds. The job database is copied first. Then columns are derived again from the
documents. A local job's document that cannot be read is made again from its columns and its driver's record; its
evidence, phases and earlier attempts are lost. A grid job's document is made again from its columns and the readable
part of its text. If its request is lost, no more of it is submitted; what was submitted goes on.
Exit status: 0 no fault is left, 1 some are."""


BACKUP_HELP = """\
The file is written whole or not at all, replaces an older one, and only you can read it. A line is printed for each
thing that is left out. docs/administration.md says what is in it."""

RESTORE_HELP = """\
The state folder must be missing or empty; it is made whole or not at all. Jobs submitted after the backup are not in
it; "samgrid orphans" lists those that are still in the batch system. See docs/administration.md."""


def _declare_restore(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", type=Path, help="what samgrid backup wrote")
    of_open = command.add_mutually_exclusive_group()
    help_text = "leave out the grid jobs that had not ended when the backup was made"
    of_open.add_argument("--leave-out", action="store_true", help=help_text)
    help_text = "go on with them, in the same folder; nothing more is submitted or retried"
    of_open.add_argument("--follow", action="store_true", help=help_text)


TAKE_OVER_HELP = """\
One host at a time works with a state folder: the first one that did. Run this on another, when that one is down or its
monitor was ended, and this one is it. Refused while a monitor was at work there within the last minute.
docs/administration.md says what a shared file system needs, and what becomes of local jobs."""

_FENCED_HELP = "the other host can write nothing any more, whatever its last stamp says: you made sure of that"


NOTIFY_HELP = """\
The monitor runs this command when a grid job has ended or stalled (docs/notification.md). This runs it once as a test,
and is not recorded. Exit status: 0 the command ended with 0, 1 it did not."""


METRICS_HELP = """\
docs/metrics.md explains the metrics, and has alarms. With --textfile for node_exporter's textfile collector, which
reads *.prom: FILE is replaced atomically, and the umask decides who may read it. "samgrid web" has the same at
/metrics."""


ADVERTISE_HELP = """\
Prints job types, slots and health of this site for a broker; what is not known is left out. --pool sends it as a
ClassAd to an HTCondor collector, with condor_advertise. It expires after --lifetime, so run this from a timer.
See docs/advertise.md."""


def _declare_advertise(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--pool", metavar="HOST[:PORT]", help="send it to this HTCondor collector, and print nothing")
    where.add_argument("--output", metavar="FILE", type=Path, help="write FILE, whole or not at all, and print nothing")
    help_text = "as JSON (default), GLUE 2 in LDIF, or a ClassAd"
    command.add_argument("--format", choices=("json", "glue2", "classad"), help=help_text)
    help_text = "when it expires, unless it is sent again (default: 900)"
    command.add_argument("--lifetime", metavar="SECONDS", type=read_seconds, default=900.0, help=help_text)


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


def _read_textfile(text: str) -> str:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError("node_exporter reads files named *.prom only, such as samgrid.prom")
    return text


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    type_ = argument("type", metavar="TYPE", nargs="?", help="a job type")
    add("types", types, "List the job types, or the attributes of one.", "", type_)
    doc = "Check an experiment's handler before it is used."
    add("check-handler", check_handler, doc, CHECK_HELP, _declare_check)
    add("config", config, "Print every configuration value and where it came from.", CONFIG_HELP)
    doc = "Try the notification command on a grid job."
    add("notify", notify, doc, NOTIFY_HELP, argument("id", metavar="ID", type=read_name, help=JOB_HELP))
    add("repair", repair, "Repair a damaged job database, as far as possible.", REPAIR_HELP)
    file = argument("file", metavar="FILE", type=Path, help="the tar file to be written")
    add("backup", backup, "Write the account's state into one file, while everything runs.", BACKUP_HELP, file)
    add("restore", restore, "Make a state folder from a backup.", RESTORE_HELP, _declare_restore)
    fenced = argument("--fenced", action="store_true", help=_FENCED_HELP)
    add("take-over", take_over, "Make this host the one that works with the state folder.", TAKE_OVER_HELP, fenced)
    add("web", web, "Show grid jobs in a browser.", WEB_HELP, _declare_web)
    textfile = argument("--textfile", metavar="FILE", type=_read_textfile, help="write FILE, and print nothing")
    add("metrics", metrics, "Print metrics for Prometheus.", METRICS_HELP, textfile)
    add("advertise", advertise, "Tell the grid what this site offers.", ADVERTISE_HELP, _declare_advertise)
    stay = argument("--stay", action="store_true", help="do not end when there is nothing to do")
    add("monitor", monitor, "Run the job state monitor in the foreground.", MONITOR_HELP, stay)


def config(options: argparse.Namespace) -> int:
    from jobmanager.site.configuration import read_configuration, render_configuration

    print(render_configuration(read_configuration(os.environ)), end="")
    return 0


def notify(options: argparse.Namespace) -> int:
    """Send a notification about a grid job, as a test."""
    from jobmanager.views.notification import Notifier

    account = account_of(options)
    if not account.configuration.notification.command:
        raise UserError("the configuration names no [notification] command: docs/notification.md")
    problem = Notifier(account, time.time()).try_command(account.database.grid_jobs.find(options.id))
    if problem:
        raise UserError(problem)
    return 0


def repair(options: argparse.Namespace) -> int:
    """Repair the job database, and say what was done."""
    from jobmanager.control.repair import repair as run_repair
    from jobmanager.views.text import render_line

    result = run_repair(account_of(options), time.time())
    print(f"saved as {result.saved}")
    for heading, sentences in (("repaired", result.repaired), ("left", result.left)):
        for sentence in sentences:
            print(f"{heading}: {render_line(sentence)}")
    print(f"repaired: {len(result.repaired)}, left: {len(result.left)}")
    return int(bool(result.left))


def backup(options: argparse.Namespace) -> int:
    """Write a backup, and say what it does not hold."""
    from jobmanager.control.backup import write_backup
    from jobmanager.views.text import render_line

    left_out = write_backup(account_of(options), options.file.absolute())
    for sentence in left_out:
        print(f"left out: {render_line(sentence)}")
    print(f"written: {options.file}, {options.file.stat().st_size:,} bytes")
    return 0


def restore(options: argparse.Namespace) -> int:
    """Make the state folder, and say which grid jobs had not ended."""
    from jobmanager.control.restoring import OpenJobs, restore

    choice = OpenJobs.LEFT_OUT if options.leave_out else OpenJobs.FOLLOWED if options.follow else OpenJobs.REFUSED
    account = account_of(options)
    opened = restore(account, options.file.absolute(), choice)
    for job_id in opened:
        print(f"{choice.value}: {job_id}")
    print(f"restored: {account.places.root}")
    return 0


def take_over(options: argparse.Namespace) -> int:
    """Make this host active, and let it go on with open grid jobs."""
    from jobmanager.monitor.client import wake_monitor
    from jobmanager.site.host import take_over as make_active

    account = account_of(options)
    if not account.places.root.exists():
        raise UserError(f"there is no state folder {account.places.root}")
    before = make_active(account.places, options.fenced)
    if before is None:
        print("this host is the active one already")
        return 0
    print(f"taken over from {before.name}")
    if account.database.grid_jobs.list_open():
        wake_monitor(account)
    return 0


def web(options: argparse.Namespace) -> int:
    from importlib.util import find_spec

    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise UserError(f'this needs the Python package "{module}": pip install "samgrid-jobmanager[web]"')
    from jobmanager.web.access import read_token
    from jobmanager.web.serving import read_listen, serve

    try:
        listen = read_listen(options.listen)
    except ValueError as error:
        options.refuse(str(error))
    token = read_token(Path(options.token_file)) if options.token_file else None
    serve(account_of(options), listen, token)
    return 0


def metrics(options: argparse.Namespace) -> int:
    from jobmanager.checks.metrics import render_metrics, write_textfile

    account = account_of(options)
    text = render_metrics(account, account.database, time.time())
    if options.textfile is None:
        print(text, end="")
    else:
        write_textfile(Path(options.textfile), text)
    return 0


def advertise(options: argparse.Namespace) -> int:
    """Collect the offer once, and print, write or send it."""
    from batch_adapters.adapter import BatchError
    from batch_adapters.registry import UnknownBatchSystem
    from jobmanager.checks.metrics import write_textfile
    from jobmanager.checks.offer import collect_offer, render_classad, render_json, render_ldif, send_classad

    if options.pool is not None and options.format not in (None, "classad"):
        options.refuse(f"a collector takes ClassAds, not {options.format}: leave out --format")
    try:
        offer = collect_offer(open_account_of(options), time.time(), int(options.lifetime))
        if options.pool is not None:
            send_classad(options.pool, render_classad(offer))
            return 0
    except (BatchError, UnknownBatchSystem) as error:
        raise UserError(str(error)) from error
    text = {"glue2": render_ldif, "classad": render_classad}.get(options.format, render_json)(offer)
    if options.output is not None:
        write_textfile(options.output, text)
    else:
        print(text, end="")
    return 0


def monitor(options: argparse.Namespace) -> int:
    from jobmanager.monitor.monitor import main

    folder = ["--state-dir", options.state_dir] if options.state_dir else []
    return main([*folder, *(["--stay"] if options.stay else [])])
