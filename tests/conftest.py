"""What all tests share: accounts in temporary folders, whose databases are checked against the schema afterwards."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobmanager.account import Account
from jobmanager.configuration import Configuration, read_configuration
from jobmanager.database import Database
from jobmanager.documents import load_schema
from jobmanager.places import StatePlaces, make_state_folder
from tests.samgrid import Samgrid

# Under nohup it is ignored, and so it would be by every process that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the account, the configuration or the job of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@pytest.fixture(autouse=True)
def _every_database_is_valid(tmp_path: Path) -> Iterator[None]:
    """Whatever a test did: the documents it leaves behind validate against the published schema."""
    yield
    for path in tmp_path.rglob("jobs.db"):
        database = Database(path)
        schema = load_schema()
        assert schema.validate(database.to_xml()), schema.error_log
        database.close()


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    """An account of its own; its monitor, generators and jobs are ended after the test."""
    root = tmp_path / "state"
    make_state_folder(root)
    configuration = read_configuration(
        {"SAMGRID_SANDBOX_SCRATCH_FOLDER": str(tmp_path)}, site_file=Path("/nonexistent")
    )
    assert isinstance(configuration, Configuration)
    yield Account(StatePlaces(root), configuration)
    end_processes_of(root)


@pytest.fixture
def samgrid(tmp_path: Path) -> Iterator[Samgrid]:
    """The command line on a state folder of its own; whatever works for it is ended after the test."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield Samgrid(tmp_path / "state", scratch, {})
    end_processes_of(tmp_path / "state")


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nothing else writes to."""
    return tmp_path_factory.mktemp("room")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """What a full disk is to the writer: it takes so many bytes and no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def processes_of(folder: Path, *words: str) -> list[int]:
    """Pids of the processes of ours whose command line names this folder and all of the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command and all(word in command for word in words) and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def end_processes_of(folder: Path) -> None:
    """Kill everything that works for the state folder: the monitor first, so that it starts nothing new."""
    for words in (["samgrid-monitor"], ["samgrid-fork", "serve"], []):
        for pid in processes_of(folder, *words):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
