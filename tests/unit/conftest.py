"""What the unit tests of the job manager share."""

from pathlib import Path

import pytest

from jobmanager.site.account import Account
from tests.forked_samgrid import run_forked
from tests.unit.toy_system import ToySystem


@pytest.fixture
def toy(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToySystem:
    """A batch system that says what it is told to, and a job manager that lives in its time."""
    return ToySystem(account, tmp_path / "toy", monkeypatch)


@pytest.fixture
def forked_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query's process is forked, with everything loaded: what it answers is the same."""
    monkeypatch.setattr("jobmanager.views.query.query._run_watched", run_forked)
