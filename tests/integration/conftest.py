"""What the integration tests share."""

import os
from collections.abc import Iterator

import pytest

from tests.conftest import end_processes_of
from tests.samgrid import Samgrid


@pytest.fixture(scope="module")
def shared_samgrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samgrid]:
    """The command line on a state folder that the tests of a module share; what works for it is ended after them."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "scratch").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
            patch.delenv(name)
        yield Samgrid(folder / "state", folder / "scratch", {})
    end_processes_of(folder / "state")
