"""The requests in examples/ say what their job types understand."""

from pathlib import Path

import pytest

from jobmanager.requests.attributes import Given, read_request, read_type
from jobmanager.requests.files import drop_meaningless, is_job_description, read_job_description
from jobmanager.requests.job_types import find_job_type
from jobmanager.requests.rsl import read_rsl

FOLDER = Path(__file__).parents[4] / "examples"
EXAMPLES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".rsl", ".jdf"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_request_without_a_fault(path: Path) -> None:
    text = path.read_text()
    assert is_job_description(text) is (path.suffix == ".jdf")
    relations = read_job_description(text) if path.suffix == ".jdf" else read_rsl(text)
    given: Given = [(relation.name, relation.values) for relation in relations]
    handler = find_job_type(read_type(given), ())
    kept, ignored = drop_meaningless(given, handler)
    assert read_request(kept, handler, FOLDER)[1] == []
    assert all(f"{name} " in text and text.count("ignored") == len(ignored) for name in ignored)
