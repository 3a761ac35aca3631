"""What the conformance tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.fakes.site import SYSTEMS, Site, has_dialect


@pytest.fixture(params=[name for name in SYSTEMS if has_dialect(name)])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(request.param, tmp_path, monkeypatch)
    yield site
    site.check()
