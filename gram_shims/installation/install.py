"""``samgrid gram install|uninstall|status``: registers the job manager type samgrid with a Globus gatekeeper."""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from batch_adapters.launch import LAUNCH
from gram_shims.installation.checks import (
    Check,
    check_rvf,
    examine,
    examine_collector,
    forget,
    has_account,
    has_service,
    list_setup,
    run_setup,
    stop,
)
from gram_shims.installation.installation import (
    MANIFEST,
    NOTHING_YET,
    Found,
    Manifest,
    Removal,
    compare,
    find_missing_folders,
    make_manifest,
    plan_removal,
    put_in_place,
    read_manifest,
    remove,
    render_manifest,
)
from gram_shims.installation.table import (
    COLLECTOR_ACCOUNT,
    DEFAULT_STATE,
    MODULE_SOURCE,
    RVF,
    SERVICES,
    InstallError,
    Registration,
    Root,
    Table,
    check_service,
    check_state,
    make_table,
)
from jobmanager.commands.cli import run_command
from jobmanager.requests.job_types import load_job_types
from jobmanager.site.configuration import read_configuration

_DESCRIPTION = """\
Register the job manager type samgrid with a Globus gatekeeper: see docs/gram.md.

  samgrid gram install                    as jobmanager-samgrid, which GRAM polls
  samgrid gram install --dry-run          what that would write, byte for byte
  samgrid gram install --seg              the same, but GRAM reads events
  samgrid gram install --seg --collector  and a service writes them, for all accounts
  samgrid gram status                     what is installed, and whether it can work
  samgrid gram uninstall                  removes what install wrote
"""


def main(argv: list[str]) -> int:
    """Run one command; what is wrong is one clear line each and exit status 1."""
    parser = _make_parser()
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        os.environ["_ARGCOMPLETE"] = "2"  # the word at which our name on the line ends
        autocomplete(parser)
    options = parser.parse_args(argv)
    return run_command(f"samgrid gram {options.command}", partial(options.run, Root(options.root.resolve()), options))


def install(root: Root, options: argparse.Namespace) -> int:
    """Install everything, or say what prevents it; a second time changes nothing."""
    old = read_manifest(root) or NOTHING_YET
    registration = _choose_registration(old.registration, options)
    table = _make_table(root, registration)
    found = compare(root, old, table)
    _refuse_foreign(root, found)
    _refuse_bad_rvf(table[RVF])
    new = make_manifest(root, old, registration, table)
    if options.dry_run:
        _print_plan(root, table, found, new)
        for command in list_setup(root) if registration.has_collector else ():
            print(f"run {shlex.join(command)}")
        return 0
    _need_permission(root)
    put_in_place(root, old, new, table, found)
    for path, state in found.items():
        print(f"{'unchanged' if state is Found.CURRENT else 'installed'}  {root.place(path)}")
    if registration.has_collector:
        _set_up_collector(root)
    for check in _examine(root, registration):
        if check.fault:
            print(f"samgrid gram install: warning: {check.name}: {check.fault}", file=sys.stderr)
    return 0


def uninstall(root: Root, options: argparse.Namespace) -> int:
    """Print what is removed and what stays, then remove it; files that were changed since stay."""
    manifest = read_manifest(root)
    if manifest is None:
        print("nothing is installed")
        return 0
    if not options.dry_run:
        _need_permission(root)
    removal, has_collector = plan_removal(root, manifest), manifest.registration.has_collector
    _announce(root, removal, has_collector)
    if not options.dry_run:
        if has_collector:
            stop(root)
        remove(root, manifest, removal)
        if has_collector:
            forget(root)
        print("uninstalled")
    return 1 if removal.changed else 0


def _announce(root: Root, removal: Removal, has_collector: bool) -> None:
    if has_collector and has_service(root):
        print("stopping  samgrid-event-collector", flush=True)
    for place in removal.going:
        print(f"removing  {place}", flush=True)
    for place in removal.day_files:
        print(f"keeping  {place}: it has events", flush=True)
    if has_collector and has_account(root):
        print(f'keeping  account {COLLECTOR_ACCOUNT}: "userdel {COLLECTOR_ACCOUNT}" removes it', flush=True)
    for place in removal.changed:
        print(f"samgrid gram uninstall: left, because it was changed: {place}", file=sys.stderr, flush=True)


def status(root: Root, options: argparse.Namespace) -> int:
    """Print what is installed, what was changed, and which checks fail; exit status 0 if all is well."""
    manifest = read_manifest(root)
    if manifest is None:
        print('nothing is installed: say "samgrid gram install"')
        return 1
    registration = manifest.registration
    table = _make_table(root, registration)
    found = compare(root, manifest, table)
    for path in [path for path, entry in table.items() if path.parent == SERVICES and isinstance(entry, str)]:
        enabled = "enabled" if found[path] is Found.CURRENT else "not enabled"
        print(f"{path.name}: {enabled}, GRAM {'reads events' if registration.uses_events else 'polls'}")
    for path, state in found.items():
        hint = "" if state is Found.CURRENT else f": {'move it away, then ' * (state is Found.FOREIGN)}install again"
        print(f"{state.value}  {root.place(path)}{hint}")
    checks = list(_examine(root, registration))
    for check in checks:
        print(f"check  {check.name}: {check.fault or check.note or 'ok'}")
    is_well = all(state is Found.CURRENT for state in found.values()) and not any(check.fault for check in checks)
    return 0 if is_well else 1


def _choose_registration(known: Registration, options: argparse.Namespace) -> Registration:
    """The registration of the last installation, changed by the options."""
    said = () if options.service is None else (check_service(options.service),)
    services = {*known.services, *said} or {"samgrid"}
    uses_events = known.uses_events if options.uses_events is None else options.uses_events
    state = known.state if options.state is None else check_state(options.state)
    has_collector = known.has_collector or options.has_collector
    if options.has_collector and not uses_events:
        raise InstallError("--collector is for a GRAM that reads events: say --seg --collector")
    return Registration(tuple(sorted(services)), uses_events, state, has_collector)


def _set_up_collector(root: Root) -> None:
    for command in list_setup(root):
        if root.is_machine:
            run_setup(command)
        done = "done" if root.is_machine else "to be run where the package is installed"
        print(f"{done}  {shlex.join(command)}", flush=True)


def _examine(root: Root, registration: Registration) -> Iterator[Check]:
    settings = read_configuration(os.environ).gram
    yield from examine(root, registration, settings)
    if registration.has_collector:
        yield from examine_collector(root, settings.event_collector)


def _make_table(root: Root, registration: Registration) -> Table:
    if not MODULE_SOURCE.is_file():
        raise InstallError(f"{MODULE_SOURCE} is missing: install samgrid-jobmanager again")
    job_types = load_job_types(read_configuration(os.environ).handlers.modules)
    python, launch = root.seen(Path(sys.executable)), root.seen(LAUNCH)
    return make_table(registration, python, launch, MODULE_SOURCE.read_bytes(), job_types)


def _refuse_foreign(root: Root, found: Mapping[PurePosixPath, Found]) -> None:
    places = {root.place(path): state for path, state in found.items()}
    faults = [
        f"{place} lies behind a link that leads out of {root.folder}: remove that"
        for place in (*places, root.place(MANIFEST))
        if not place.parent.resolve().is_relative_to(root.folder)
    ]
    faults += [
        f"{place} is not ours, or was changed since it was installed: move it away, then install again"
        for place, state in places.items()
        if state is Found.FOREIGN
    ]
    if faults:
        raise InstallError("\n".join(faults))


def _refuse_bad_rvf(rvf: Any) -> None:
    with tempfile.NamedTemporaryFile(suffix=".rvf") as file:
        file.write(rvf)
        file.flush()
        fault = check_rvf(Path(file.name))
    if fault:
        raise InstallError(f"GRAM would not take the attributes that the job types declare: {fault}")


def _need_permission(root: Root) -> None:
    if root.is_machine and os.geteuid() != 0:
        raise InstallError("this changes /etc and /usr: run it as root, or for a package name a folder with --root")


def _print_plan(root: Root, table: Table, found: Mapping[PurePosixPath, Found], new: Manifest) -> None:
    """Print what would be written, byte for byte."""
    for folder in find_missing_folders(root, table):
        print(f"folder {root.place(folder)} (mode 0755)")
    for path, entry in (*table.items(), (MANIFEST, render_manifest(new))):
        place = root.place(path)
        if isinstance(entry, str):
            print(f"link {place} -> {entry}{' (unchanged)' if found[path] is Found.CURRENT else ''}")
        elif entry is not None and place.is_file() and place.read_bytes() == entry:
            print(f"file {place} (unchanged)")
        elif entry is not None:
            print(f"file {place} (mode 0644, {len(entry)} bytes)", flush=True)
            sys.stdout.buffer.write(entry)
            sys.stdout.buffer.flush()


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="samgrid gram", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Root, argparse.Namespace], int], doc: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=doc, description=doc)
        command.add_argument(
            "--root",
            metavar="DIR",
            type=Path,
            default=Path("/"),
            help="everything lies below DIR, as for a package; paths inside the files are as without it",
        )
        command.set_defaults(run=run)
        return command

    _add_choices(add("install", install, "Put everything in its place; a second time changes nothing."))
    command = add("uninstall", uninstall, "Remove what was installed; what was changed since is left, and named.")
    command.add_argument("--dry-run", action="store_true", help="print what would go and what would stay")
    add("status", status, "Say what is installed, what was changed, and which checks fail.")
    return parser


def _add_choices(command: argparse.ArgumentParser) -> None:
    command.add_argument("--service", metavar="NAME", help="a service jobmanager-NAME, beside others (first: samgrid)")
    mode = command.add_mutually_exclusive_group()
    mode.add_argument("--poll", dest="uses_events", action="store_false", help="GRAM polls (the default at first)")
    mode.add_argument("--seg", dest="uses_events", action="store_true", help="GRAM reads events")
    command.add_argument(
        "--collector", dest="has_collector", action="store_true",
        help="with --seg: a service under an account of its own writes the events; it stays until uninstall",
    )  # fmt: skip
    command.add_argument(
        "--state", metavar="DIR", help=f"state folder of each account (default at first: {DEFAULT_STATE})"
    )
    command.add_argument("--dry-run", action="store_true", help="print what would be written, byte for byte")
    # None of the two: the last installation's choice stays.
    command.set_defaults(uses_events=None)
