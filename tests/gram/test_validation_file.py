"""The RSL validation file as GRAM's own parser reads it, and GRAM's own such file."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters import Attribute
from gram_shims.installation.checks import find_tool
from gram_shims.installation.table import render_rvf
from jobmanager.requests.job_types import load_job_types
from tests.unit.gram_shims.test_requests import request_of
from tests.unit.gram_shims.test_rvf import job_type, read_records

RVF = Path("/usr/share/globus/globus_gram_job_manager/globus-gram-job-manager.rvf")

pytestmark = pytest.mark.usefixtures("gram_packages")


def run_checker(text: str, folder: Path) -> str:
    """The file as GRAM's own parser understands it."""
    file = folder / "samgrid.rvf"
    file.write_text(text)
    done = subprocess.run([str(find_tool("globus-rvf-check")), "-d", str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_grams_parser_reads_the_same_attributes_and_values(tmp_path: Path) -> None:
    text = render_rvf(load_job_types(()))

    def in_short(records: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str | None, ...]]:
        aspects = ("Description", "Values", "ValidWhen", "RequiredWhen")
        return {
            name: tuple(record[aspect].strip(' "') if aspect in record else None for aspect in aspects)
            for name, record in records.items()
        }

    assert in_short(read_records(run_checker(text, tmp_path))) == in_short(read_records(text))


@given(doc=st.text(max_size=40), word=st.text(max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_description_and_no_choice_breaks_the_file(doc: str, word: str, tmp_path: Path) -> None:
    types = {"t": job_type(Attribute("x", doc, choices=(word, "second")), Attribute("y", "After it."))}
    text = run_checker(render_rvf(types), tmp_path)
    assert "Description: t: After it. (a text, quoted if it has spaces)" in text


@pytest.mark.parametrize("doc", ['"', '\\"', "\\", 'a "b" \\', "#", "a\n\nAttribute: evil\n", "\x00", "γ*/Z", "\ud800"])
def test_texts_that_have_a_meaning_for_the_parser_are_texts(doc: str, tmp_path: Path) -> None:
    types = {"t": job_type(Attribute("x", doc, unit=doc), Attribute("y", "After it."))}
    text = run_checker(render_rvf(types), tmp_path)
    assert "Description: t: After it. (a text, quoted if it has spaces)" in text
    assert "\nAttribute: evil" not in text


def test_every_attribute_of_grams_own_is_known() -> None:
    names = [line.split()[1].replace("_", "") for line in RVF.read_text().splitlines() if line.startswith("Attribute:")]
    assert len(names) > 20
    ours = {"arguments", "count", "directory", "environment", "executable", "project", "queue", "stdin"}
    limits = {"maxcputime", "maxmemory", "maxtime", "maxwalltime"}
    for name in set(names) - ours - limits:
        assert name not in request_of(**{name: ["x"]} if name != "jobtype" else {}), name
