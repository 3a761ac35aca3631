"""What a gatekeeper and its job managers need of us: which file lies where, and what is in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from adapters import JobAdapter
from gram_shims.installation.rvf import render_rvf

SERVICES = PurePosixPath("/etc/grid-services")
MODULE = PurePosixPath("/usr/share/perl5/Globus/GRAM/JobManager/samgrid.pm")
RVF = PurePosixPath("/usr/share/globus/globus_gram_job_manager/samgrid.rvf")
CONFIGURATION = PurePosixPath("/etc/globus/globus-samgrid.conf")
EVENT_FOLDER = PurePosixPath("/var/lib/globus/globus-seg-samgrid")
"""Where the GRAM job manager reads the events of ``-seg-module samgrid``; the place is built into it."""
GRAM_CONFIGURATION = PurePosixPath("/etc/globus/globus-gram-job-manager.conf")
GRAM_PROGRAM = PurePosixPath("/usr/sbin/globus-job-manager")

DEFAULT_STATE = "$(HOME)/.local/state/samgrid"
MODULE_SOURCE = Path(__file__).parents[1] / "perl" / "samgrid.pm"

_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_STATE = re.compile(r'(?:/|\$\(HOME\)/)(?:[^\s"$]|\$\((?:HOME|LOGNAME)\))+')

_CONFIGURATION_TEXT = """\
# How the Perl module Globus::GRAM::JobManager::samgrid finds the job manager.
# Written by "samgrid gram install": say there what shall be different, and nothing here.
python="{python}"
launch="{launch}"
state="{state}"
"""


class InstallError(Exception):
    """Nothing can be installed, or removed; the sentence says why, and the way out."""


@dataclass(frozen=True)
class Registration:
    """How the job manager type samgrid is known to a gatekeeper."""

    services: tuple[str, ...]
    """Names of services; the contact of one is ``HOST/jobmanager-NAME``."""
    uses_events: bool
    """True where GRAM reads events; False where it polls. One for all services: they share their job managers."""
    state: str
    """The state folder of each account, with ``$(HOME)`` and ``$(LOGNAME)`` in it."""


@dataclass(frozen=True)
class Wanted:
    """What there should be."""

    files: Mapping[PurePosixPath, bytes]
    links: Mapping[PurePosixPath, str]
    folders: tuple[PurePosixPath, ...]
    """Folders that are to be there, empty; those above all of these come of themselves."""


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


def service_link(service: str) -> PurePosixPath:
    """The link that enables a service."""
    return SERVICES / f"jobmanager-{service}"


def find_wanted(
    registration: Registration, python: str, launch: str, module: bytes, job_types: Mapping[str, type[JobAdapter]]
) -> Wanted:
    """Everything that belongs to a registration.

    :param python, launch: the interpreter, and the file with our programs, as the accounts see them.
    :raises InstallError: a path that the configuration file cannot hold.
    """
    for path in (python, launch):
        if re.search(r'[\n"]', path):
            raise InstallError(f"{path!r} has characters that {CONFIGURATION} cannot hold: install in another folder")
    line = _render_service(registration.uses_events).encode()
    configuration = _CONFIGURATION_TEXT.format(python=python, launch=launch, state=registration.state)
    files = {
        MODULE: module,
        RVF: render_rvf(job_types).encode(),
        CONFIGURATION: configuration.encode(errors="surrogateescape"),
    }
    files |= {service_file(service): line for service in registration.services}
    # As globus-gatekeeper-admin makes it.
    links = {service_link(service): f"available/{service_file(service).name}" for service in registration.services}
    return Wanted(files, links, (EVENT_FOLDER,) if registration.uses_events else ())


def _render_service(uses_events: bool) -> str:
    events = " -seg-module samgrid" if uses_events else ""
    return (
        f"stderr_log,local_cred - {GRAM_PROGRAM} globus-job-manager -conf {GRAM_CONFIGURATION} -type samgrid{events}\n"
    )
