"""What the integration tests share."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobmanager.database.database import Database
from jobmanager.database.documents import load_schema
from tests.conftest import end_processes_of
from tests.forked_samgrid import ForkedSamgrid
from tests.samgrid import Samgrid
from tests.waiting import Gate

HANDLERS = Path(__file__).with_name("handlers_of_tests.py")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Keeps local jobs waiting until the test opens it, without a process of theirs that looks again and again."""
    gate = Gate(tmp_path / "go")
    yield gate
    gate.close()


@pytest.fixture(scope="module")
def module_samgrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samgrid]:
    """The command line on a state folder that the tests of a module share."""
    with _shared_samgrid(tmp_path_factory) as samgrid:
        yield samgrid


@pytest.fixture(scope="session")
def shared_samgrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samgrid]:
    """The command line of a site with job types of ours, on a state folder of all tests that leave nothing at work.

    Each has grid jobs of its own there, and asks of no others.
    """
    with _shared_samgrid(tmp_path_factory, {"SAMGRID_HANDLERS_MODULES": str(HANDLERS)}) as samgrid:
        yield samgrid


@contextmanager
def _shared_samgrid(factory: pytest.TempPathFactory, settings: Mapping[str, str] = {}) -> Iterator[Samgrid]:
    folder = factory.mktemp("shared")
    (folder / "scratch").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
            patch.delenv(name)
        yield ForkedSamgrid(folder / "state", folder / "scratch", {"SAMGRID_FORK_SLOTS": "8", **settings})
    end_processes_of(folder / "state")
    database = Database(folder / "state" / "jobs.db")
    schema = load_schema()
    assert schema.validate(database.to_xml()), schema.error_log
    database.close()
