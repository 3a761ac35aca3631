"""What all tests share: accounts in temporary folders, whose databases are checked against the schema afterwards."""

import functools
import gc
import itertools
import logging
import logging.handlers
import os
import re
import resource
import signal
import sqlite3
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from jobmanager.database.database import Database
from jobmanager.database.documents import load_schema
from jobmanager.database.sqlite import Store
from jobmanager.requests import time_limit
from jobmanager.site.account import Account
from jobmanager.site.configuration import Configuration, read_configuration
from jobmanager.site.places import StatePlaces, make_state_folder
from tests.forked_samgrid import ForkedSamgrid
from tests.samgrid import Samgrid
from tests.waiting import is_gone, wait_until

# Under nohup, or in a script's background, they are ignored, and so they would be by every process that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# The one profile of all property tests. How long an example takes says how busy the machine is, so that never counts.
# Derandomized, because a suite that is repeated must not be red by chance, and few examples, as they are the same each
# time: whoever changes a parser looks for new ones with --hypothesis-profile=search, and writes those that fail down as
# tests of their own.
settings.register_profile(
    "samgrid",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("search", settings.get_profile("samgrid"), derandomize=False, max_examples=5000)
settings.load_profile("samgrid")

_numbers = itertools.count()


def _make_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A new folder: what pytest's own are, without its search for a free number among thousands."""
    short = re.sub(r"\W", "_", name)[:30]
    folder = factory.getbasetemp() / f"{next(_numbers)}-{short}"
    folder.mkdir(mode=0o700)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for most of a minute comes first, so that others run meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("waits_long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: what is made stays, and to look takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Let pytest remove what earlier runs have left, in a call for each level: a tree too deep for it is no failure."""
    sys.setrecursionlimit(100_000)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own for each test."""
    return _make_folder(tmp_path_factory, request.node.name)


# One for all of it: pytest takes longer for a fixture than many a test for what it does.
@pytest.fixture(autouse=True)
def _own_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees who runs it, or what an earlier one has changed; what it leaves in databases is valid."""
    tmp_path: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    root = logging.getLogger()
    level = root.level
    # A program of ours that a test runs in its own process sets another, in which the next tests' files are closed.
    umask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch:
        _part_from_machine(patch, _make_folder(tmp_path_factory, "home"))
        yield
    os.umask(umask)
    root.setLevel(level)
    # What a test has a program of ours log to, no later test has its output in.
    for handler in [*root.handlers]:
        if type(handler) in (logging.StreamHandler, logging.FileHandler, logging.handlers.RotatingFileHandler):
            root.removeHandler(handler)
    if tmp_path:
        _check_databases(tmp_path)


def _part_from_machine(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Hide the account, the configuration and the job of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
        patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("XDG_STATE_HOME", str(home / "state"))
    # The machine's own site file, too; programs that a test starts are told by the environment instead.
    patch.setattr(read_configuration, "__defaults__", (Path("/nonexistent"),))
    # A program that goes elsewhere, as a fork starter does, leaves the next test where it was.
    patch.chdir(Path.cwd())
    # Code that is told to give up may need long to hear of it on a busy machine, and would end the tests' process.
    patch.setattr(time_limit, "_GRACE", 600.0)


def _check_databases(folder: Path) -> None:
    """Whatever a test did: the documents it leaves behind validate against the published schema."""
    for place, _, files in os.walk(folder):
        if "jobs.db" in files:
            database = Database(Path(place, "jobs.db"))
            schema = load_schema()
            assert schema.validate(database.to_xml(leave_out=lambda _: None)), schema.error_log
            database.close()


_make_tables = Store.make


@functools.cache
def _empty_database(schema: str, layout: int) -> sqlite3.Connection:
    store, copy = Store(None), sqlite3.connect(":memory:", check_same_thread=False)
    _make_tables(store, schema, layout)
    store._connection.backup(copy)
    return copy


def _copy_tables(store: Store, schema: str, layout: int) -> None:
    """What `Store.make` does, in a third of the time."""
    with store._translated():
        _empty_database(schema, layout).backup(store._connection)


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account of its own; its monitor, generators and jobs are ended after the test."""
    root = tmp_path / "state"
    make_state_folder(root)
    monkeypatch.setattr(Store, "make", _copy_tables)
    start = Moment()
    configuration = read_configuration(
        {"SAMGRID_SANDBOX_SCRATCH_FOLDER": str(tmp_path)}, site_file=Path("/nonexistent")
    )
    assert isinstance(configuration, Configuration)
    yield Account(StatePlaces(root), configuration)
    end_processes_of(root, start)


@pytest.fixture
def samgrid(tmp_path: Path) -> Iterator[Samgrid]:
    """The command line on a state folder of its own; whatever works for it is ended after the test."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    start = Moment()
    yield ForkedSamgrid(tmp_path / "state", scratch, {})
    end_processes_of(tmp_path / "state", start)


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that nothing else writes to; processes that name it are ended after the test."""
    folder, start = _make_folder(tmp_path_factory, "room"), Moment()
    yield folder
    end_processes_of(folder, start)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """What a full disk is to the writer: it takes so many bytes and no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


_ALL_PIDS = range(1, 1 << 22)


class Moment:
    """Now; whoever is started later has a higher pid, until pids begin anew, after 32,768 forks at the earliest."""

    def __init__(self) -> None:
        self._pid = int(Path("/proc/loadavg").read_text().split()[-1])
        self._forks = int(Path("/proc/stat").read_text().rpartition("\nprocesses ")[2].split()[0])

    def pids_since(self) -> range:
        """What processes that were started since may have, where that is known; else all."""
        now = Moment()
        is_known = self._pid <= now._pid and now._forks - self._forks < 16384
        return range(self._pid + 1, now._pid + 1) if is_known else _ALL_PIDS


def processes_of(folder: Path, *words: str, since: Moment | None = None) -> list[int]:
    """Pids of the processes of ours whose command line names this folder and all of the words.

    ``since``: when there was none. To look at each process takes a millisecond for 40 of them.
    """
    among = since.pids_since() if since else _ALL_PIDS
    wanted = [os.fsencode(word) for word in (str(folder), *words)]
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path for each process takes most of the time
        if not name.isdigit() or int(name) not in among or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb", buffering=0) as file:
                command = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if all(word in command for word in wanted):
            found.append(int(name))
    return found


def find_monitor(folder: Path) -> int:
    """The pid of the state folder's monitor.

    For a moment there may be another that finds it there, or a child that has its command line until the exec.
    """
    found: list[int] = []

    def is_alone() -> bool:
        found[:] = processes_of(folder, "samgrid-monitor")
        return len(found) == 1

    wait_until(is_alone)
    return found[0]


def end_processes_of(folder: Path, since: Moment | None = None) -> None:
    """Kill everything that works for the state folder: the monitor first, so that it starts nothing new."""
    # After most tests there is nothing.
    if not processes_of(folder, since=since):
        return
    for words in (["samgrid-monitor"], ["samgrid-fork", "serve"], []):
        # One that was started between two looks is seen by the next.
        while pids := processes_of(folder, *words, since=since):
            for pid in pids:
                with suppress(ProcessLookupError):
                    # What a driver runs does not name the folder, but is of the driver's session.
                    (os.killpg if os.getsid(pid) == pid else os.kill)(pid, signal.SIGKILL)
            wait_until(lambda pids=pids: all(map(is_gone, pids)))  # type: ignore[misc]
