"""The table of all files that are installed for a gatekeeper and GRAM's job managers, with their content."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from adapters import Attribute, JobAdapter, Kind, canonical_name
from jobmanager import UserError
from jobmanager.requests.attributes import COMMON_ATTRIBUTES

SERVICES = PurePosixPath("/etc/grid-services")
MODULE = PurePosixPath("/usr/share/perl5/Globus/GRAM/JobManager/samgrid.pm")
RVF = PurePosixPath("/usr/share/globus/globus_gram_job_manager/samgrid.rvf")
CONFIGURATION = PurePosixPath("/etc/globus/globus-samgrid.conf")
EVENT_FOLDER = PurePosixPath("/var/lib/globus/globus-seg-samgrid")
"""Where GRAM's job manager reads the events of ``-seg-module samgrid``; the path is built into it."""
GRAM_CONFIGURATION = PurePosixPath("/etc/globus/globus-gram-job-manager.conf")
GRAM_PROGRAM = PurePosixPath("/usr/sbin/globus-job-manager")
UNITS = PurePosixPath("/etc/systemd/system")
COLLECTOR_UNIT = UNITS / "samgrid-event-collector.service"
COLLECTOR_ACCOUNT = "samgrid-collector"
"""Used for nothing else: this account can report any state of any job to GRAM."""

DEFAULT_STATE = "$(HOME)/.local/state/samgrid"
MODULE_SOURCE = Path(__file__).parents[1] / "perl" / "samgrid.pm"

_TEMPLATES = Path(__file__).with_name("templates")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STATE = re.compile(r'(?:/|\$\(HOME\)/)(?:[^\s"$]|\$\((?:HOME|LOGNAME)\))+')


class InstallError(UserError):
    """Installing or removing failed; the message says why, and the way out."""


@dataclass(frozen=True)
class Registration:
    """How the job manager type samgrid is known to a gatekeeper."""

    services: tuple[str, ...] = ()
    """Names of services; a contact is ``HOST/jobmanager-NAME``."""
    uses_events: bool = False
    """True: GRAM reads events; False: it polls. The same for all services, which share their job managers."""
    state: str = DEFAULT_STATE
    """The state folder of each account; may contain ``$(HOME)`` and ``$(LOGNAME)``."""
    has_collector: bool = False
    """True: the collector, a systemd service, writes the events."""


Table = Mapping[PurePosixPath, bytes | str | None]
"""By path: the content of a file (mode 0644), the target of a link, or None for a folder (0755)."""


@dataclass(frozen=True)
class Root:
    """The file system to install into: the machine's own, or a folder that becomes a package."""

    folder: Path

    @property
    def is_machine(self) -> bool:
        """True for the file system of this machine."""
        return self.folder == Path("/")

    def place(self, path: PurePosixPath) -> Path:
        """The present path of a file that will be at ``path``."""
        return self.folder / path.relative_to("/")

    def seen(self, path: Path) -> str:
        """The future path of a file that is at ``path`` now."""
        inside = not self.is_machine and path.is_relative_to(self.folder)
        return f"/{path.relative_to(self.folder)}" if inside else str(path)


def check_service(text: str) -> str:
    """The name of a service; raises InstallError: it is none."""
    if not _SERVICE.fullmatch(text):
        raise InstallError(f"{text!r} is no service's name: letters, digits, dots, dashes and underscores")
    return text


def check_state(text: str) -> str:
    """The place of an account's state folder; raises InstallError: it is none."""
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
    """All files of a registration.

    :param python, launch: future paths of the interpreter, and of the file that starts our programs.
    :raises InstallError: the configuration file cannot hold a path.
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
"""Not declared by us: GRAM's own file makes them valid at other times than submit, which a declaration would end."""
_STAGE_OUT = """
# An event has no place for an error: GRAM hears of it where it has something to bring back, were it nothing.
Attribute: file_stage_out
Default: "(/dev/null file:///dev/null)"
DefaultWhen: GLOBUS_GRAM_JOB_SUBMIT
"""
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:+-]+", re.ASCII)


def render_rvf(job_types: Mapping[str, type[JobAdapter]]) -> str:
    """GRAM's RSL validation file, which declares each attribute of the job types once.

    The syntax is that of GRAM's own parser (rvf_parser.y of the Grid Community Toolkit), with its oddities:
    ``Values`` as a record's last aspect is lost, and a single ``true`` there is a boolean that ends the job manager.
    There is no ``Default`` and no ``RequiredWhen``: both would bind requests of every type.
    """
    handlers: list[tuple[str, tuple[Attribute, ...]]] = [("every job type", COMMON_ATTRIBUTES)]
    handlers += [(job_type, tuple(handler.attributes)) for job_type, handler in sorted(job_types.items())]
    records: dict[str, dict[str, Attribute]] = {}
    for owner, attributes in handlers:
        for attribute in attributes:
            records.setdefault(canonical_name(attribute.name), {})[owner] = attribute
    names = [name for name in sorted(job_types) if _PLAIN_WORD.fullmatch(name)]
    known = " ".join(["single", "multiple", "mpi", "condor", *names])
    blocks = [(_TEMPLATES / "samgrid.rvf").read_text().format(types=", ".join(sorted(job_types)), values=known)]
    blocks += [_render_record(name, found) for name, found in records.items() if name not in _NOT_OURS]
    return "\n".join(blocks)


def _render_record(name: str, declared: Mapping[str, Attribute]) -> str:
    """The record of an attribute; ``declared``: its declaration in each job type."""
    texts = [f"{owner}: {attribute.doc} ({attribute.describe()})" for owner, attribute in declared.items()]
    lines = [f"Attribute: {name}", f'Description: "{_render_text("; ".join(texts))}"']
    if choices := _merge_choices(declared.values()):
        lines.append(f"Values: {' '.join(choices)}")
    return "\n".join([*lines, "ValidWhen: GLOBUS_GRAM_JOB_SUBMIT", ""])


def _merge_choices(attributes: Iterable[Attribute]) -> list[str]:
    """The values that GRAM may check: those of all job types; none if one of them permits any value."""
    words: dict[str, None] = {}
    for attribute in attributes:
        is_checkable = attribute.kind is Kind.TEXT and attribute.choices
        if not is_checkable or not all(map(_PLAIN_WORD.fullmatch, attribute.choices)):
            return []
        words.update(dict.fromkeys(attribute.choices))
    # A single one could be "true".
    return list(words) if len(words) > 1 else []


def _render_text(text: str) -> str:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return line.replace('"', "'")
