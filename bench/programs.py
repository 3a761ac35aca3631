"""The programs that are compared: ours, Globus' C program, HTCondor's own reader; and whether each can be run here."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "globus-scheduler-event-generator-progs",
    "globus-gram-job-manager-pbs-setup-seg",
    "globus-gram-job-manager-lsf-setup-seg",
    "globus-gram-job-manager-fork-setup-seg",
)
"""The Debian packages of the C program and its modules."""

# Compiled into the C program: its modules find their logs through files in this folder, and nowhere else.
_GLOBUS_CONFIGURATION = Path("/etc/globus")
_GLOBUS_PROGRAM = "globus-scheduler-event-generator"
_GLOBUS_SCHEDULERS = ("pbs", "lsf", "fork")
_BENCH = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Program:
    """A generator of events: what it is called in the tables, and how it is started."""

    name: str
    argv: tuple[str, ...]


class NotHere(Exception):
    """A program cannot be run; the message says why and what helps."""


def find_ours(scheduler: str, log: Path) -> Program:
    """Our generator, as the monitor starts it, on a log from its beginning."""
    launch = _BENCH.parent / "batch_adapters" / "launch.py"
    name = "samgrid-scheduler-event-generator"
    place = log.parent if scheduler == "pbs" else log
    return Program("ours", (sys.executable, str(launch), name, "-s", scheduler, "-t", "1", "-l", str(place)))


def find_other(scheduler: str, log: Path, follow: bool, configuration: Path) -> Program:
    """What ours is compared with, on the same log.

    :raises NotHere: it is not installed.
    """
    if scheduler == "condor":
        return _find_job_event_log(log, follow)
    return _find_globus(scheduler, log, configuration)


def _find_globus(scheduler: str, log: Path, configuration: Path) -> Program:
    program = shutil.which(_GLOBUS_PROGRAM, path=os.defpath + ":/usr/sbin")
    # Without the package of its module it ends at once.
    if program is None or not any(Path("/usr/lib").glob(f"*/libglobus_seg_{scheduler}.so")):
        raise NotHere(f"{_GLOBUS_PROGRAM} for {scheduler} is not installed (bench/run.py --install, as root)")
    if not _GLOBUS_CONFIGURATION.samefile(configuration):
        raise NotHere(f"{_GLOBUS_CONFIGURATION} cannot be replaced for this process: unshare(1) and mount(8) failed")
    place = log if scheduler == "fork" else log.parent
    (configuration / f"globus-{scheduler}.conf").write_text(f'log_path="{place}"\n')
    return Program("C program", (program, "-s", scheduler, "-t", "1"))


def _find_job_event_log(log: Path, follow: bool) -> Program:
    if importlib.util.find_spec("htcondor2") is None:
        raise NotHere("htcondor is not installed (pip install '.[bench]')")
    mode = "follow" if follow else "read"
    return Program("JobEventLog", (sys.executable, str(_BENCH / "job_event_log.py"), mode, str(log)))


def read_namespace() -> str:
    """What the kernel calls this process's mount namespace."""
    return str(Path("/proc/self/ns/mnt").readlink())


def enter_namespace(argv: list[str]) -> None:
    """Go on in a mount namespace of this process's own, where that is allowed; there nothing of the system changes."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", "--mount", *root, "--"]
    if subprocess.run([*unshare, "true"], stdin=subprocess.DEVNULL, check=False).returncode == 0:
        os.execvp("unshare", [*unshare, sys.executable, *argv])


def replace_globus_configuration(folder: Path) -> None:
    """Put a folder in the place of Globus' configuration; to be called in a mount namespace of one's own only."""
    if _GLOBUS_CONFIGURATION.is_dir():
        mount = ["mount", "--bind", str(folder), str(_GLOBUS_CONFIGURATION)]
        subprocess.run(mount, stdin=subprocess.DEVNULL, check=False)


def install_packages() -> None:
    """Install with apt-get, as root, what is compared, and what counts calls.

    :raises subprocess.CalledProcessError: apt-get failed.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES, "parallel", "strace"]):
        subprocess.run(["apt-get", *arguments], env=environment, stdin=subprocess.DEVNULL, check=True)


def read_versions() -> dict[str, str]:
    """Versions of what is compared, by name; without those that are not installed."""
    versions = {"Python": sys.version.split()[0]}
    query = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *PACKAGES]
    if shutil.which(query[0]):
        answer = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        shown = (line.partition(" ") for line in answer.stdout.splitlines())
        versions.update((package, version) for package, _, version in shown if version)
    if importlib.util.find_spec("htcondor2") is not None:
        versions["htcondor"] = importlib.metadata.version("htcondor")
    return versions
