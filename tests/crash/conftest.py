"""What the tests share that kill workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobmanager.site.account import Account
from tests.crash.grounds import Fork, make_fork


@pytest.fixture
def fork(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fork]:
    """The embedded batch system, with room for all local jobs at once."""
    ground = make_fork(account, tmp_path, monkeypatch, "[fork]\nslots = 9\n")
    yield ground
    ground.close()
