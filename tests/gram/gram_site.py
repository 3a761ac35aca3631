"""A real GRAM on this machine with our job manager beside GRAM's own, and an ordinary account's clients."""

import contextlib
import ctypes
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real.site import ACCOUNT, run_system
from tests.waiting import SECONDS, wait_until

OURS = "jobmanager-samgrid"
FORK = "jobmanager-samgrid-test-fork"
"""GRAM's own job manager, which tests/integration/systems/gram.sh installs under this name."""
OUR_PROGRAMS = (
    "samgrid-monitor",
    "samgrid-worker",
    "samgrid-scheduler-event-generator",
    "samgrid-fork",
    "samgrid-fork-starter",
)
CONFIGURATION = Path("/etc/samgrid/samgrid.toml")
_CLONE_NEWNS = 0x20000
"""Of unshare(2): mounts of its own; Python has it from 3.12 on only."""


@dataclass(frozen=True)
class Outcome:
    """What became of one command."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output without the line break at its end."""
        return self.stdout.decode(errors="surrogateescape").rstrip("\n")

    @property
    def words(self) -> str:
        """Standard error, where clients say what went wrong."""
        return self.stderr.decode(errors="replace")


def without_details(outcome: Outcome) -> str:
    """Standard error but for the details, where GRAM's own say nothing, and the state in which the job failed."""
    words = re.sub(r"^Details: .*\n", "", outcome.words, flags=re.MULTILINE)
    return words.replace("GRAM Job submission failed", "GRAM Job failed")


def quote(word: str) -> str:
    """One word as an RSL literal."""
    return '"' + word.replace('"', '""') + '"'


def sh(script: str, *arguments: str) -> str:
    """The RSL of a shell script and its arguments."""
    words = " ".join(quote(word) for word in ("-c", script, "sh", *arguments))
    return f"(executable=/bin/sh)(arguments={words})"


@dataclass(frozen=True)
class GramSite:
    """A gatekeeper, our programs, and the account's folder."""

    folder: Path
    programs: Path
    """Where ours are installed."""
    home: Path
    """A folder of the account's own."""

    @property
    def account_home(self) -> Path:
        """Where GRAM starts the account's jobs."""
        return Path(pwd.getpwnam(ACCOUNT).pw_dir)

    @property
    def state(self) -> Path:
        """The account's state folder."""
        return self.home / "state"

    def run_script(self, verb: str) -> None:
        """Bring GRAM up or down; pytest skips where it cannot be had."""
        run_system("gram", verb, self.folder)

    def register(self, *words: str) -> str:
        """What ``samgrid gram`` prints, run as root."""
        command = [str(self.programs / "samgrid"), "gram", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def environment(self) -> dict[str, str]:
        """What the account's commands get."""
        lines = (self.folder / "environment").read_text().splitlines()
        return {
            "HOME": str(self.account_home),
            "USER": ACCOUNT,
            "LOGNAME": ACCOUNT,
            "PATH": "/usr/bin:/bin",
            "SAMGRID_STATE": str(self.state),
            **dict(line.split("=", 1) for line in lines),
        }

    def contact(self, service: str) -> str:
        """Where clients find a service."""
        return f"{self.environment()['GATEKEEPER']}/{service}"

    def run(self, *command: str, stdin: bytes = b"") -> Outcome:
        """Run a command as the account."""
        with self.start(*command) as process:
            try:
                stdout, stderr = process.communicate(stdin, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
                pytest.fail(f"{shlex.join(command)}: not within {SECONDS:.0f} s: {stdout!r} {stderr!r}")
        return Outcome(process.returncode, stdout, stderr)

    @contextlib.contextmanager
    def start(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command as the account beside the block; what has not ended after it never will."""
        account = pwd.getpwnam(ACCOUNT)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.home,
            env=self.environment(), user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                process.kill()

    def globusrun(self, service: str, rsl: str) -> Outcome:
        """One job, its standard output and error with the client, its files served to the job."""
        return self.run("globusrun", "-s", "-w", "-r", self.contact(service), f"&{rsl}")

    def run_all(self, service: str, requests: Mapping[str, str]) -> dict[str, Outcome]:
        """Many jobs at once, by name; GRAM asks for each only every ten seconds."""
        with ThreadPoolExecutor(12) as pool:
            return dict(
                zip(requests, pool.map(lambda rsl: self.globusrun(service, rsl), requests.values()), strict=True)
            )

    def run_both(
        self, ours: Mapping[str, str], forks: Mapping[str, str]
    ) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
        """Many jobs under our job manager and, meanwhile, many under GRAM's own."""
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(self.run_all, OURS, ours), pool.submit(self.run_all, FORK, forks)
            return running[0].result(), running[1].result()

    def submit(self, service: str, rsl: str) -> str:
        """The contact of a job that nobody waits for."""
        done = self.run("globusrun", "-b", "-r", self.contact(service), f"&{rsl}")
        assert done.status == 0, done.words
        (contact,) = re.findall(r"^https://\S+", done.stdout.decode(), re.MULTILINE)
        return str(contact)

    def status(self, contact: str) -> str:
        """The job's state in a client's word."""
        return self.run("globusrun", "-status", contact).text

    def samgrid(self, *words: str) -> str:
        """What ``samgrid`` prints, run as the account."""
        done = self.run(str(self.programs / "samgrid"), *words)
        assert done.status == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.text

    def query(self, job: str, xpath: str) -> str:
        """The answer to a question about one grid job."""
        return self.samgrid("query", "--job", job, xpath).strip()

    def grid_job(self, contact: str) -> str:
        """The grid job that a GRAM job became; empty where it is none yet."""
        path = contact.rstrip("/").split("/", 3)[3]
        lines = [line for line in self.calls() if f"/{path}/" in line and "answer=JOB_ID:" in line]
        found = {line.split("answer=JOB_ID:")[1].split()[0].partition(".")[2] for line in lines}
        assert len(found) <= 1, lines
        return "".join(found)

    def calls(self) -> list[str]:
        """The account's log of GRAM's calls."""
        log = self.state / "gram.log"
        return log.read_text(errors="replace").splitlines() if log.exists() else []

    def make_folder(self, name: str) -> Path:
        """A new folder of the account's."""
        folder = self.home / name
        folder.mkdir()
        shutil.chown(folder, ACCOUNT, ACCOUNT)
        return folder

    def write(self, name: str, content: bytes, mode: int = 0o600) -> Path:
        """A file of the account's."""
        file = self.home / name
        file.write_bytes(content)
        file.chmod(mode)
        shutil.chown(file, ACCOUNT, ACCOUNT)
        return file

    def kill_job_managers(self) -> int:
        """Kill GRAM's job managers of ours, as a power cut would; how many there were."""
        pids = [pid for pid, command in _list_processes() if _is_manager(command)]
        kill_all(pids)
        return len(pids)

    def end_job_managers(self) -> None:
        """End GRAM's job managers, their interpreters and what these have started: whoever comes next starts anew.

        Without that a test may take the processes of an earlier request for those of its own.
        """

        def are_gone() -> bool:
            kill_all(pid for pid, command in _list_processes() if _serves_jobs(command))
            return not self.kill_job_managers() and not self.kill_ours("samgrid-gram")

        wait_until(are_gone, "GRAM's job managers end")

    def find_ours(self, *programs: str) -> list[tuple[int, Sequence[str]]]:
        """Pids and command lines of programs of ours that work for the account's state folder."""
        return [
            (pid, command)
            for pid, command in _list_processes()
            if any(str(self.state) in word for word in command) and any(program in command for program in programs)
        ]

    def count_ours(self, *programs: str) -> int:
        """How many of these run."""
        return len(self.find_ours(*programs))

    def kill_ours(self, *programs: str) -> int:
        """Kill them; how many there were."""
        found = self.find_ours(*programs)
        kill_all(pid for pid, _ in found)
        return len(found)

    def kill_jobs(self, word: str) -> None:
        """Kill processes of the account in whose command line a word is."""
        kill_all(pid for pid, command in _list_processes() if any(word in argument for argument in command))


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes, some of which may have ended by themselves."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def own_configuration() -> Iterator[None]:
    """Have this process, and what it starts, see an empty ``/etc/samgrid`` that nobody else sees."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        pytest.skip("this machine makes no namespaces: what is configured for GRAM would be so for all")
    has_folder = CONFIGURATION.parent.exists()
    CONFIGURATION.parent.mkdir(exist_ok=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(CONFIGURATION.parent)], check=True)
    CONFIGURATION.touch()
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(CONFIGURATION.parent)], check=True)
        if not has_folder:
            CONFIGURATION.parent.rmdir()


@contextlib.contextmanager
def configured(gram: GramSite, text: str) -> Iterator[None]:
    """Have a site's configuration for a while, then the one before; in a file: GRAM hands on no variables of ours."""
    before = CONFIGURATION.read_text()
    gram.kill_ours(*OUR_PROGRAMS)
    try:
        CONFIGURATION.write_text(text)
        yield
    finally:
        CONFIGURATION.write_text(before)
        gram.kill_ours(*OUR_PROGRAMS)


def _list_processes() -> Iterator[tuple[int, Sequence[str]]]:
    uid = pwd.getpwnam(ACCOUNT).pw_uid
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue


def _serves_jobs(command: Sequence[str]) -> bool:
    return any("globus-job-manager-script" in word for word in command) and "samgrid" in command


def _is_manager(command: Sequence[str]) -> bool:
    is_manager = command[0].endswith("globus-job-manager")
    return is_manager and command[command.index("-type") + 1 :][:1] == ["samgrid"]
