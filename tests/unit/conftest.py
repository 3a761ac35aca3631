"""What the unit tests of the job manager share."""

from pathlib import Path

import pytest

from jobmanager.site.account import Account
from tests.unit.toy_system import ToySystem


@pytest.fixture
def toy(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToySystem:
    """A batch system that says what it is told to, and a job manager that lives in its time."""
    return ToySystem(account, tmp_path / "toy", monkeypatch)
