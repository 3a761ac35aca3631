"""What the tests of batch adapters share."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def utc() -> Iterator[None]:
    """The zone of this process is UTC, in which the recordings were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()
