"""What is true of the declared attributes of every job type of ours."""

import pytest

from adapters import Attribute, JobAdapter
from jobmanager.requests.job_types import load_job_types


@pytest.mark.parametrize("kind", load_job_types(()).values(), ids=lambda kind: kind.jobType)
def test_every_attribute_is_documented_once_and_its_default_is_allowed(kind: type[JobAdapter]) -> None:
    declared: list[Attribute] = [*kind.attributes, *kind.siteAttributes]
    assert len({attribute.name for attribute in declared}) == len(declared)
    for attribute in declared:
        assert attribute.doc.endswith(".")
        if isinstance(attribute.default, str | int | float):
            assert attribute.read([str(attribute.default)]) == attribute.default
