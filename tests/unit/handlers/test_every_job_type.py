"""What is true of the declared attributes of every job type of ours."""

from pathlib import Path

import pytest

from adapters import Attribute, JobAdapter, Site
from jobmanager.requests.attributes import BadRequest, read_request, read_site_values
from jobmanager.requests.job_types import HandlerError, load_job_types
from jobmanager.requests.request_handler import check_errors


@pytest.mark.parametrize("kind", load_job_types(()).values(), ids=lambda kind: kind.jobType)
def test_every_attribute_is_documented_once_and_its_default_is_allowed(kind: type[JobAdapter]) -> None:
    declared: list[Attribute] = [*kind.attributes, *kind.siteAttributes]
    assert len({attribute.name for attribute in declared}) == len(declared)
    for attribute in declared:
        assert attribute.doc.endswith(".")
        if isinstance(attribute.default, str | int | float):
            assert attribute.read([str(attribute.default)]) == attribute.default


@pytest.mark.parametrize("kind", load_job_types(()).values(), ids=lambda kind: kind.jobType)
def test_a_person_who_names_a_directory_that_is_not_used_is_told(kind: type[JobAdapter], tmp_path: Path) -> None:
    request, _ = read_request([("directory", ("/usr/share",))], kind, tmp_path)
    fault = f"directory does not go with {kind.jobType}: its programs run in the scratch folder"
    faults: list[str] = []
    try:
        check_errors(kind(request, Site(values=read_site_values(kind, {}))))
    except (BadRequest, HandlerError) as error:
        faults = getattr(error, "faults", [])
    assert (fault in faults) is not kind.usesDirectory
