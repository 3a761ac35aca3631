"""What lies where for a gatekeeper and its job managers: the table that install, uninstall and status read."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from adapters import Attribute, JobAdapter, Kind, canonical_name
from jobmanager.commands.arguments import CommandError
from jobmanager.requests.attributes import COMMON_ATTRIBUTES

SERVICES = PurePosixPath("/etc/grid-services")
MODULE = PurePosixPath("/usr/share/perl5/Globus/GRAM/JobManager/samgrid.pm")
RVF = PurePosixPath("/usr/share/globus/globus_gram_job_manager/samgrid.rvf")
CONFIGURATION = PurePosixPath("/etc/globus/globus-samgrid.conf")
EVENT_FOLDER = PurePosixPath("/var/lib/globus/globus-seg-samgrid")
"""Where the GRAM job manager reads the events of ``-seg-module samgrid``; the place is built into it."""
GRAM_CONFIGURATION = PurePosixPath("/etc/globus/globus-gram-job-manager.conf")
GRAM_PROGRAM = PurePosixPath("/usr/sbin/globus-job-manager")
UNITS = PurePosixPath("/etc/systemd/system")
COLLECTOR_UNIT = UNITS / "samgrid-event-collector.service"
COLLECTOR_ACCOUNT = "samgrid-collector"
"""It has no other use: whoever has it can tell GRAM of any job."""

DEFAULT_STATE = "$(HOME)/.local/state/samgrid"
MODULE_SOURCE = Path(__file__).parents[1] / "perl" / "samgrid.pm"

_TEMPLATES = Path(__file__).with_name("templates")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STATE = re.compile(r'(?:/|\$\(HOME\)/)(?:[^\s"$]|\$\((?:HOME|LOGNAME)\))+')


class InstallError(CommandError):
    """Nothing can be installed, or removed; the sentence says why, and the way out."""


@dataclass(frozen=True)
class Registration:
    """How the job manager type samgrid is known to a gatekeeper."""

    services: tuple[str, ...] = ()
    """Names of services; the contact of one is ``HOST/jobmanager-NAME``."""
    uses_events: bool = False
    """True where GRAM reads events; False where it polls. One for all services: they share their job managers."""
    state: str = DEFAULT_STATE
    """The state folder of each account, with ``$(HOME)`` and ``$(LOGNAME)`` in it."""
    has_collector: bool = False
    """True where events go by way of the collector, as a service of systemd's."""


Table = Mapping[PurePosixPath, bytes | str | None]
"""What there should be: files (mode 0644) by content, links by target, and folders (0755), by None."""


@dataclass(frozen=True)
class Root:
    """The file system that we install into: the machine's own, or one in a folder, which will be a package's."""

    folder: Path

    @property
    def is_machine(self) -> bool:
        """True for the file system of this machine."""
        return self.folder == Path("/")

    def place(self, path: PurePosixPath) -> Path:
        """Where a file is now that will be seen as ``path``."""
        return self.folder / path.relative_to("/")

    def seen(self, path: Path) -> str:
        """The name under which a file that is ``path`` now will be seen."""
        inside = not self.is_machine and path.is_relative_to(self.folder)
        return f"/{path.relative_to(self.folder)}" if inside else str(path)


def check_service(text: str) -> str:
    """The name of a service.

    :raises InstallError: it is none.
    """
    if not _SERVICE.fullmatch(text):
        raise InstallError(f"{text!r} is no service's name: letters, digits, dots, dashes and underscores")
    return text


def check_state(text: str) -> str:
    """The place of an account's state folder.

    :raises InstallError: it is none.
    """
    if not _STATE.fullmatch(text) or ".." in PurePosixPath(text).parts:
        raise InstallError(
            f"{text!r} is no absolute path: it begins with / or $(HOME)/, and has no variables but these and $(LOGNAME)"
        )
    return text


def service_file(service: str) -> PurePosixPath:
    """The file that describes a service to the gatekeeper."""
    return SERVICES / "available" / f"jobmanager-{service}"


def make_table(
    registration: Registration, python: str, launch: str, module: bytes, job_types: Mapping[str, type[JobAdapter]]
) -> Table:
    """Everything that belongs to a registration.

    :param python, launch: the interpreter, and the file with our programs, as the accounts see them.
    :raises InstallError: a path that the configuration file cannot hold.
    """
    for path in (python, launch):
        if re.search(r'[\n"]', path):
            raise InstallError(f"{path!r} has characters that {CONFIGURATION} cannot hold: install in another folder")
    events = " -seg-module samgrid" if registration.uses_events else ""
    line = _fill_in("service.conf", program=GRAM_PROGRAM, configuration=GRAM_CONFIGURATION, events=events)
    table: dict[PurePosixPath, bytes | str | None] = {
        MODULE: module,
        RVF: (render_rvf(job_types) + (_STAGE_OUT if registration.uses_events else "")).encode(),
        CONFIGURATION: _fill_in("globus-samgrid.conf", python=python, launch=launch, state=registration.state),
    }
    for service in registration.services:
        file = service_file(service)
        # The link is as globus-gatekeeper-admin makes it.
        table |= {file: line, SERVICES / file.name: f"available/{file.name}"}
    words = {"python": _quote_for_systemd(python), "launch": _quote_for_systemd(launch)}
    if registration.uses_events:
        table[UNITS / "samgrid-monitor@.service"] = _fill_in("samgrid-monitor@.service", **words)
    if registration.has_collector:
        table[COLLECTOR_UNIT] = _fill_in(COLLECTOR_UNIT.name, **words, account=COLLECTOR_ACCOUNT, folder=EVENT_FOLDER)
        # As "systemctl enable" makes it.
        table[UNITS / "multi-user.target.wants" / COLLECTOR_UNIT.name] = str(COLLECTOR_UNIT)
    if registration.uses_events or registration.has_collector:
        table[EVENT_FOLDER] = None
    return table


def _quote_for_systemd(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$") + '"'


def _fill_in(template: str, **values: object) -> bytes:
    return (_TEMPLATES / template).read_text().format(**values).encode(errors="surrogateescape")


_NOT_OURS = frozenset(
    (
        "executable", "filestageout", "jobtype", "proxytimeout", "remoteiourl", "restart", "restartcontacts",
        "rslsubstitution", "stderr", "stderrposition", "stdout", "stdoutposition",
    )
)  # fmt: skip
"""Said elsewhere, or valid in GRAM's base file at other times than a submit: no job type's declaration may end it."""
_STAGE_OUT = """
# An event has no place for an error: GRAM hears of it where it has something to bring back, were it nothing.
Attribute: file_stage_out
Default: "(/dev/null file:///dev/null)"
DefaultWhen: GLOBUS_GRAM_JOB_SUBMIT
"""
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:+-]+", re.ASCII)


@dataclass(frozen=True)
class _Declared:
    """An attribute, and whose it is: a job type's, or "every job type"'s."""

    attribute: Attribute
    owner: str


def render_rvf(job_types: Mapping[str, type[JobAdapter]]) -> str:
    """GRAM's RSL validation file: each attribute once, whatever the number of job types (by name) that declare it.

    The syntax is that of GRAM's own parser (rvf_parser.y of the Grid Community Toolkit), with its oddities:
    ``Values`` as a record's last aspect is lost, and a single ``true`` there is a boolean that ends the job manager.
    There is no ``Default`` and no ``RequiredWhen``: both would bind requests of every type.
    """
    records: dict[str, list[_Declared]] = {}
    for declared in _find_declared(job_types):
        records.setdefault(canonical_name(declared.attribute.name), []).append(declared)
    names = [name for name in sorted(job_types) if _PLAIN_WORD.fullmatch(name)]
    known = " ".join(["single", "multiple", "mpi", "condor", *names])
    blocks = [(_TEMPLATES / "samgrid.rvf").read_text().format(types=", ".join(sorted(job_types)), values=known)]
    blocks += [_render_record(name, found) for name, found in records.items() if name not in _NOT_OURS]
    return "\n".join(blocks)


def _find_declared(job_types: Mapping[str, type[JobAdapter]]) -> Iterable[_Declared]:
    for attribute in COMMON_ATTRIBUTES:
        yield _Declared(attribute, "every job type")
    for job_type, handler in sorted(job_types.items()):
        for attribute in handler.attributes:
            yield _Declared(attribute, job_type)


def _render_record(name: str, declared: Iterable[_Declared]) -> str:
    texts = [f"{one.owner}: {one.attribute.doc} ({one.attribute.describe()})" for one in declared]
    lines = [f"Attribute: {name}", f'Description: "{_render_text("; ".join(texts))}"']
    choices = _find_choices([one.attribute for one in declared])
    if choices:
        lines.append(f"Values: {' '.join(choices)}")
    return "\n".join([*lines, "ValidWhen: GLOBUS_GRAM_JOB_SUBMIT", ""])


def _find_choices(attributes: Iterable[Attribute]) -> list[str]:
    """What GRAM may check: every value that any of the types takes, nothing where one of them takes more."""
    words: dict[str, None] = {}
    for attribute in attributes:
        if attribute.kind is not Kind.TEXT or not all(map(_PLAIN_WORD.fullmatch, attribute.choices)):
            return []
        if not attribute.choices:
            return []
        words.update(dict.fromkeys(attribute.choices))
    # One choice alone could be "true".
    return list(words) if len(words) > 1 else []


def _render_text(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line.replace('"', "'")
