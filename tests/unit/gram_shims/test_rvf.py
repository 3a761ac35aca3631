"""The RSL validation file: what the job types declare, in words that GRAM's own parser understands."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters import Attribute, JobAdapter, Kind, PlannedJob, canonical_name
from gram_shims.installation.table import render_rvf
from jobmanager.requests.attributes import COMMON_ATTRIBUTES
from jobmanager.requests.job_types import load_job_types


def job_type(*declared: Attribute) -> type[JobAdapter]:
    """A job type with these attributes."""

    class Handler(JobAdapter):
        jobType = "any"
        attributes = declared

        def prepareWorkArea(self, workArea: Path) -> None:
            """Nothing is needed."""

        def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
            """Nothing is run."""
            return ["true"]

    return Handler


def read_records(text: str) -> dict[str, dict[str, str]]:
    """The aspects of each attribute, as far as we write them: one line each."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    blocks = [block for block in re.split(r"\n\n+", lines.strip("\n")) if block]
    records = [dict(re.findall(r"^(\w+):[ ]?(.*)$", block, re.MULTILINE)) for block in blocks]
    by_name = {canonical_name(record["Attribute"]): record for record in records}
    assert len(by_name) == len(records), "an attribute has two records"
    return by_name


def test_every_declared_attribute_is_there_and_valid_when_a_job_is_submitted() -> None:
    types = load_job_types(())
    records = read_records(render_rvf(types))
    for attribute in (*COMMON_ATTRIBUTES, *(one for handler in types.values() for one in handler.attributes)):
        name = canonical_name(attribute.name)
        if name != "executable":
            assert records[name]["ValidWhen"] == "GLOBUS_GRAM_JOB_SUBMIT", name
            assert attribute.describe() in records[name]["Description"], name


def test_a_request_with_a_samgrid_type_needs_no_executable() -> None:
    assert read_records(render_rvf({}))["executable"] == {"Attribute": "executable", "RequiredWhen": ""}


def test_nothing_is_required_of_every_type_and_nothing_has_a_default() -> None:
    text = render_rvf(load_job_types(()))
    assert not re.search("^(DefaultWhen|Default|RequiredWhen):.", text, re.MULTILINE)


def test_job_types_that_the_job_manager_refuses_with_a_better_number_reach_it() -> None:
    assert read_records(render_rvf({}))["jobtype"]["Values"] == "single multiple mpi condor"


def test_job_types_of_ours_are_let_through_where_old_requests_name_them() -> None:
    records = read_records(render_rvf({"b": job_type(), "a": job_type(), "no word": job_type()}))
    assert records["jobtype"]["Values"] == "single multiple mpi condor a b"


CHOICES = {
    "one type's": ([("a", "b")], "a b"),
    "two types' are joined": ([("a", "b"), ("b", "c")], "a b c"),
    "a type without any takes everything": ([("a", "b"), ()], None),
    "a choice of one, which the parser may take for a boolean": ([("true",)], None),
    "with a blank": ([("a b", "c")], None),
    "with a quotation mark": ([('a"', "c")], None),
    "with a hash sign": ([("a#", "c")], None),
}


@pytest.mark.parametrize(("choices", "expected"), CHOICES.values(), ids=CHOICES)
def test_choices_are_values_where_gram_can_check_them(choices: list[tuple[str, ...]], expected: str | None) -> None:
    types = {f"t{number}": job_type(Attribute("x", "One.", choices=words)) for number, words in enumerate(choices)}
    assert read_records(render_rvf(types))["x"].get("Values") == expected


def test_a_list_has_no_values_because_gram_would_refuse_every_list() -> None:
    types = {"t": job_type(Attribute("x", "Some.", Kind.WORDS, choices=("a", "b")))}
    assert "Values" not in read_records(render_rvf(types))["x"]


def test_values_are_never_the_last_aspect_because_the_parser_loses_them_there() -> None:
    text = render_rvf({"t": job_type(Attribute("x", "One.", choices=("a", "b")))})
    assert not re.search(r"^Values:.*\n(\n|\Z)", text, re.MULTILINE)


def test_two_spellings_of_a_name_are_one_attribute() -> None:
    types = {"a": job_type(Attribute("Data_Set", "Here.")), "b": job_type(Attribute("dataset", "There."))}
    described = read_records(render_rvf(types))["dataset"]["Description"]
    assert "a: Here." in described
    assert "b: There." in described


@pytest.mark.parametrize("name", ["stdout", "remote_io_url", "restart", "rsl_substitution"])
def test_what_gram_takes_at_other_times_than_a_submit_stays_its_own(name: str) -> None:
    types = {"t": job_type(Attribute(name, "Mine."))}
    assert canonical_name(name) not in read_records(render_rvf(types))
