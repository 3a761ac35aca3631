"""A site for the tests: a real batch system on this machine, our package, and an ordinary account to use both."""

import fcntl
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox.files import kept_open
from tests.waiting import SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ROOT / "tests" / "integration" / "systems"
ACCOUNT = "griduser"
SKIP = 77
"""Exit code of a script that cannot bring its batch system up here; its last words say why."""
PYTHON = "/usr/bin/python3"
"""The system's own: the account must be able to run it, and so must its jobs."""


@contextmanager
def open_ground(name: str) -> Iterator[Path]:
    """A folder that every account can enter, for a while; pytest's own are for the caller alone."""
    if os.geteuid() != 0:
        pytest.skip("real systems are installed and started by root")
    folder = Path("/var/tmp") / f"{name}.{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[int]:
    """A lock of flock(2) on a folder, which ends with the block; yields its descriptor."""
    with kept_open(os.open(folder, os.O_RDONLY)) as descriptor:
        fcntl.flock(descriptor, kind)
        yield descriptor


@contextmanager
def installed_package(run: str) -> Iterator[Path]:
    """The folder of our programs, which the workers of one run of pytest share; the last to leave removes it."""
    folder = Path("/var/tmp") / f"samgrid-programs.{run}"
    with ExitStack() as stack:
        with _locked(ROOT, fcntl.LOCK_EX):
            folder.mkdir(mode=0o755, exist_ok=True)
            users = stack.enter_context(_locked(folder, fcntl.LOCK_SH))
            if not (folder / "venv" / "bin" / "samgrid").exists():
                install_package(folder)
        yield folder / "venv" / "bin"
        with _locked(ROOT, fcntl.LOCK_EX), suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def install_package(folder: Path) -> None:
    """Install this project as a site would, where every account can run it."""
    virtual = folder / "venv"
    source = folder / "source"
    subprocess.run([PYTHON, "-m", "venv", str(virtual)], check=True)
    # A build writes beside the sources, and other workers into the folders of bytecode.
    left_out = shutil.ignore_patterns(".venv", ".git", ".*_cache", ".hypothesis", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=left_out, dirs_exist_ok=True)
    install = ("install", "--quiet", "--disable-pip-version-check", "--only-binary", "pythia8mc")
    subprocess.run([str(virtual / "bin" / "pip"), *install, f"{source}[pythia]"], check=True)


def run_system(script: str, verb: str, folder: Path) -> None:
    """Run the program that brings a system up or down in a folder; pytest skips where it cannot be had."""
    # Output into a file: what stays running would keep a pipe open.
    log = folder.with_name(f"{script}-{verb}.log")
    with open(log, "wb") as sink:
        done = subprocess.run(
            ["bash", str(SYSTEMS / f"{script}.sh"), verb, str(folder)],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False,
        )  # fmt: skip
    words = log.read_text(errors="replace").strip().splitlines()[-3:]
    if done.returncode == SKIP:
        pytest.skip(" ".join(words))
    assert done.returncode == 0, words


@dataclass(frozen=True)
class Site:
    """One batch system, one account, one state folder."""

    name: str
    """Of the batch adapter."""
    script: str
    """Of the program that brings the batch system up."""
    folder: Path
    programs: Path
    settings: Mapping[str, str]

    def run_script(self, verb: str) -> None:
        """Bring the batch system up or down, halt or resume its central daemon, or rotate its log."""
        run_system(self.script, verb, self.folder)

    @property
    def home(self) -> Path:
        """A folder of the account's own for requests, marks and state."""
        return self.folder.parent / f"home-{self.name}"

    def make_home(self) -> None:
        """Make it."""
        self.home.mkdir(exist_ok=True)
        shutil.chown(self.home, ACCOUNT, ACCOUNT)

    def environment(self) -> dict[str, str]:
        """What the account's commands get."""
        own = {
            "HOME": str(self.home),
            "USER": ACCOUNT,
            "LOGNAME": ACCOUNT,
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "SAMGRID_STATE": str(self.home / "state"),
            "SAMGRID_SITE_BATCH_SYSTEM": self.name,
            **self.settings,
        }
        for line in (self.folder / "environment").read_text().splitlines():
            name, _, value = line.partition("=")
            own[name] = f"{self.programs}:{value}" if name == "PATH" else value
        return own

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as the account."""
        account = pwd.getpwnam(ACCOUNT)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=self.home,
            env=self.environment(), user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        )  # fmt: skip

    def samgrid(self, *words: str, stdin: str = "") -> str:
        """What ``samgrid`` prints, run as the account."""
        done = self.run("samgrid", *words, stdin=stdin)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def submit(self, script: str, count: int, *more: str) -> str:
        """The id of a new grid job whose local jobs run a shell script."""
        quoted = script.replace('"', '""')
        words = f'&(samgrid_type=command)(executable=/bin/sh)(arguments=-c "{quoted}")(count={count})' + "".join(more)
        return self.samgrid("submit", "-", stdin=words).strip()

    def query(self, job: str, xpath: str) -> str:
        """The answer to a question about one grid job."""
        return self.samgrid("query", "--job", job, xpath).strip()

    def _status(self, job: str) -> dict[str, Any]:
        """What is said of one grid job; a query takes twice as long."""
        (status,) = json.loads(self.samgrid("status", "--format", "json", job))
        return dict(status)

    def state(self, job: str) -> str:
        """The grid job's state."""
        return str(self._status(job)["state"])

    def count(self, job: str, state: str) -> int:
        """How many of its local jobs are in a state."""
        return int(self.query(job, f'count(//local-job[@state="{state}"])'))

    def wait_for(self, job: str, *states: str) -> None:
        """Wait for one of the states of the grid job."""
        wait_until(lambda: self.state(job) in states, f"{self.name}: grid job {job} {states}")

    def wait_for_local_jobs(self, job: str, state: str, count: int) -> None:
        """Wait until that many local jobs are in a state in which none has ended."""
        wait_until(
            lambda: self._status(job)["counts"].get(state, 0) >= count, f"{self.name}: {count} local jobs {state}"
        )

    def local_ids(self, job: str) -> list[str]:
        """The batch system's ids of a grid job's local jobs, in order."""
        return self.query(job, "//local-job/@id").split()

    def kill_monitor(self) -> None:
        """Kill the account's monitor and its generators, as a power cut would."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry, "samgrid-monitor", "samgrid-scheduler-event-generator"):
                os.kill(int(entry.name), 9)

    def end_processes(self) -> None:
        """End whatever of ours still works for this state folder."""
        self.kill_monitor()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry, "samgrid-worker"):
                os.kill(int(entry.name), 9)

    def _is_ours(self, entry: Path, *programs: str) -> bool:
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            uses = f"SAMGRID_STATE={self.home}/state\0" in (entry / "environ").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return uses and any(program in command for program in programs)
