"""What the ``samgrid`` commands do that ask batch systems; heavy modules are loaded by the commands that need them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jobmanager import UserError
from jobmanager.commands.arguments import (
    AddCommand,
    account_of,
    argument,
    open_account_of,
    read_name,
    read_seconds,
)

if TYPE_CHECKING:
    from jobmanager.site.account import Account
    from jobmanager.states.reconciliation import Orphan

CANNOT_GO_ON = 3

EXPLAIN_HELP = """\
Prints what is known of it, the evidence (what was seen, when, where, and what that changed), its driver's record, what
the batch system answers now, and the verdict.
If a batch system has used an id several times, all local jobs with that id are shown, the newest first."""

ORPHANS_HELP = """\
These are jobs in the batch system that this software submitted, but that no grid job needs any more. The monitor
cancels them itself while a grid job runs in that batch system.
Beware: "no grid job X in this job database" may belong to another state folder of this account. Look at the list before
--reap, and name the TOKENs to cancel.
Exit status: 0 none are left, 1 some are, 3 a batch system does not answer."""

DOCTOR_HELP = """\
Checks the batch system (commands, daemon, event log, history, array limit), the job database and the folders.
Each line is ok, warning or FAULT, followed by what to do. Exit status: 0 no fault, 1 faults."""


def add_commands(add: AddCommand) -> None:
    """Make the commands known to the command line."""
    which = "the batch system's id, or grid job and number from 1"
    local_job = argument("job", metavar="LOCALID|ID/NUMBER", type=read_name, help=which)
    no_ask = argument("--no-ask", dest="ask", action="store_false", help="run no command of the batch system")
    add("explain", explain, "Explain a local job's state, with the evidence for it.", EXPLAIN_HELP, local_job, no_ask)
    tokens = argument("tokens", metavar="TOKEN", nargs="*", help="only those of this submission")
    reap = argument("--reap", action="store_true", help="cancel those that are listed")
    doc = "List our jobs in the batch system that belong to no grid job."
    add("orphans", orphans, doc, ORPHANS_HELP, tokens, reap)
    add("doctor", doctor, "Look for what is wrong with batch systems and folders.", DOCTOR_HELP, _declare_doctor)


def _declare_doctor(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("batch_system", metavar="BATCH_SYSTEM", nargs="?", help="default: the configured one")
    which.add_argument("--all", action="store_true", help="every batch system that there is an adapter for")
    command.add_argument("--probe", action="store_true", help="submit one tiny job, which writes into the spool folder")
    command.add_argument(
        "--probe-time", metavar="SECONDS", type=read_seconds, default=120.0, help="how long it may take (default: 120)"
    )


def explain(options: argparse.Namespace) -> int:
    """Print evidence and verdict of a local job."""
    from jobmanager.views.explaining import explain as render

    print(render(account_of(options), options.job, options.ask))
    return 0


def orphans(options: argparse.Namespace) -> int:
    """List orphans, and cancel them if that is wanted."""
    # Opened, where a question otherwise makes nothing: how much a batch system is asked is kept in the state folder.
    account = open_account_of(options, to_change=options.reap)
    names = {account.configuration.site.batch_system, *account.database.grid_jobs.batch_systems()}
    found = {name: _find_orphans(account, name, options.tokens) for name in sorted(names)}
    some = {name: orphans for name, orphans in found.items() if orphans}
    is_silent = None in found.values()
    if some:
        print(_render_orphans(some))
    elif not is_silent:
        print("no orphans" + (f" of {' '.join(options.tokens)}" if options.tokens else ""))
    if options.reap:
        reaped = [_reap(account, name, orphans) for name, orphans in some.items()]
        is_silent = is_silent or not all(reaped)
    return CANNOT_GO_ON if is_silent else int(bool(some) and not options.reap)


def _find_orphans(account: "Account", name: str, tokens: Sequence[str]) -> "list[Orphan] | None":
    """The orphans in one batch system, of these tokens if there are any; None where it does not answer."""
    from contextlib import closing
    from dataclasses import replace

    from batch_adapters.adapter import BatchError
    from batch_adapters.registry import UnknownBatchSystem
    from jobmanager.site.account import find_batch_system
    from jobmanager.states.reconciliation import find_orphans

    try:
        system = find_batch_system(account, name)
        statuses = system.query()
        # Opened anew: a copy of what another host writes must be younger than the answer.
        with closing(replace(account).database) as database:
            found = list(find_orphans(database, system, statuses))
    except (BatchError, UnknownBatchSystem) as error:
        print(f"samgrid orphans: {name} cannot be asked: {_one_line(error)}", file=sys.stderr)
        return None
    return [orphan for orphan in found if not tokens or orphan.token in tokens]


def _reap(account: "Account", name: str, orphans: "Sequence[Orphan]") -> bool:
    """Cancel orphans; False where the batch system does not do so now."""
    from batch_adapters.adapter import BatchError
    from jobmanager.site.account import find_batch_system

    try:
        system = find_batch_system(account, name)
        system.cancel((orphan.local_id for orphan in orphans), *(orphan.token for orphan in orphans))
    except BatchError as error:
        print(f"samgrid orphans: {name} did not cancel them: {_one_line(error)}", file=sys.stderr)
        return False
    print(f"{name}: {len(orphans):,} cancelled")
    return True


def _render_orphans(found: "Mapping[str, Sequence[Orphan]]") -> str:
    from jobmanager.views.text import printable, render_listing

    heading = ("BATCH SYSTEM", "LOCAL ID", "TOKEN", "STATE", "WHY")
    rows = [
        (name, printable(o.local_id), printable(o.token), printable(o.native_state), o.reason)
        for name, orphans in found.items()
        for o in orphans
    ]
    return render_listing(heading, rows)


def _one_line(error: Exception) -> str:
    from jobmanager.views.text import render_line

    return render_line(str(error))


def doctor(options: argparse.Namespace) -> int:
    from batch_adapters.registry import UnknownBatchSystem
    from batch_adapters.running.diagnosis import Level
    from jobmanager.checks.doctor import choose_batch_systems, examine, render_finding

    account = open_account_of(options, to_change=options.probe)
    try:
        names = choose_batch_systems(account, options.batch_system, options.all)
    except UnknownBatchSystem as error:
        raise UserError(str(error)) from error
    faults = 0
    for finding in examine(account, names, options.probe_time if options.probe else None):
        print(render_finding(finding), flush=True)
        faults += finding.level is Level.FAULT
    return int(bool(faults))
