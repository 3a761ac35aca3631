from pathlib import Path

import pytest

from adapters import Attribute, Kind
from handlers.command import CommandAdapter
from jobmanager.checks.handler_check import make_sample


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SEQUENCES], ids=lambda kind: kind.name)
def test_a_request_made_from_declarations_has_a_value_of_each_kind(tmp_path: Path, kind: Kind) -> None:
    thing = Attribute("thing", "A thing.", kind, required=True)
    handler = type("Sample", (CommandAdapter,), {"attributes": (thing,)})
    assert thing.read(dict(make_sample(handler, tmp_path))["thing"], tmp_path) is not None
