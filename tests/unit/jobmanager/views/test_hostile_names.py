"""Whatever stands in a document, a log or an output: what people look with shows it harmlessly."""

import json
from pathlib import Path

import jsonschema
import pytest
from lxml import etree

from adapters import Slice
from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import Evidence, LocalJob
from jobmanager.site.account import Account
from jobmanager.views.grid_jobs import STATUS_SCHEMA
from sandbox.status import PhaseStatus
from tests.extras import need
from tests.unit.grid_jobs import put

HOSTILE = {
    "markup": "<script>alert(1)</script>&amp;<![CDATA[ ]]>-->",
    "quotes": "'\"`$(touch /tmp/x);",
    "line breaks": "one\ntwo\r\nthree\tfour\x0b\x85\u2028five",
    "long": "x" * 10_240,
    "no UTF-8": b"a\xff\xc3b".decode(errors="surrogateescape"),
    "terminal commands": "\x1b]0;title\x07\x1b[2J\x9b2J\x90q\x7f\x08",
    "directions": "\u202egnp.exe\u2066\u200f",
}
JOBS = [letter * 8 for letter in "abcdefg"]
EACH = "each grid job"
COMMANDS = [
    ["status", "--format", "table"],
    ["status", "--format", "json"],
    ["status", "--format", "xml"],
    ["status", EACH],
    ["query", "//grid-job"],
    ["query", "//@* | //text()"],
    ["query", f"string(//grid-job[@id='{EACH}']/@owner)"],
    ["query", "--format", "table", "//*"],
    ["query", "--format", "table", "//@*"],
    ["query", "--format", "xml", "//grid-job"],
    ["query", "--format", "xml", "//@* | //text()"],
    ["query", "--xquery", "--format", "xml", "//@*, //text(), //grid-job"],
    ["query", "--xquery", "--format", "text", "//@*, //text(), //grid-job"],
    ["log", EACH],
    ["log", f"{EACH}/1"],
]


def put_hostile(account: Account, text: str, job_id: str = JOBS[0]) -> None:
    """One grid job with this text wherever a document may have any, and in the log and an output."""
    job = GridJob.new(job_id, "command", text, "fork", 1000)
    job.put_origin(GramOrigin(text, text, text, text, is_plain=False))
    job.put_request([("arguments", (text, (text,)))], Path("/") / text.replace("/", ""))
    job.put_slices(1, 1, 1)
    job.put_summary({text: text})
    job.reason = job.name = text
    job.end(State.FAILED, 2000)
    job.put_problem(text, 2000)
    put(account.database, job, [make_local_job(text, f"{job_id}-77")])
    account.places.results(job_id).mkdir(parents=True)
    for path in (account.places.log(job_id), account.places.results(job_id) / f"{job_id}.{job_id}-77.stdout"):
        path.write_bytes(text.encode(errors="surrogateescape"))


def make_local_job(text: str, local_id: str) -> LocalJob:
    local_job = LocalJob.new(1, "fork", Slice(1, 1, 1))
    local_job.register(local_id, text, 1000)
    local_job.state, local_job.reason, local_job.wait_reason = State.FAILED, text, text
    local_job.driver, local_job.host, local_job.cpu_seconds, local_job.signal = "ended", text, 1, text
    local_job.put_evidence(Evidence("log", text, 2000, text))
    local_job.put_phases([PhaseStatus("name", 1, 1, "unit")], 2000)
    card = etree.SubElement(local_job.element, "{urn:d0}card", {"{urn:d0}file": clean(text)})
    card.text = clean(text)
    return local_job


def clean(text: str) -> str:
    """What of it XML can hold."""
    return "".join(letter for letter in text if letter >= " " and not "\ud800" <= letter <= "\udfff")


@pytest.mark.usefixtures("forked_queries")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_hostile_text_is_printed_harmlessly(
    account: Account, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    if "--xquery" in words:
        need("saxonche")
    for text, job_id in zip(HOSTILE.values(), JOBS, strict=True):
        put_hostile(account, text, job_id)
    for job_id in JOBS if any(EACH in word for word in words) else JOBS[:1]:
        arguments = [word.replace(EACH, job_id) for word in words[1:]]
        assert cli.main([words[0], "--state-dir", str(account.places.root), *arguments]) == 0
        printed = capsys.readouterr()
        assert printed.out
        # XML is for programs: it may have tabs.
        lines = (printed.out.replace("\t", "") if "xml" in words else printed.out).split("\n")
        assert [line for line in lines if not line.isprintable()] == []
        if "xml" in words:
            etree.fromstring(printed.out)
        if "json" in words:
            jsonschema.validate(json.loads(printed.out), json.loads(STATUS_SCHEMA.read_text()))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_exported_as_text(account: Account, tmp_path: Path, text: str) -> None:
    put_hostile(account, text)
    folder = tmp_path / "export"
    assert cli.main(["export", "--state-dir", str(account.places.root), str(folder)]) == 0
    schema = etree.RelaxNG(etree.parse(str(folder / "schema.rng")))
    for name in ("index", JOBS[0]):
        schema.assertValid(etree.parse(str(folder / f"{name}.xml")))
        page = etree.HTML((folder / f"{name}.html").read_bytes())
        assert list(page.iter("script")) == []
        assert {attribute for element in page.iter() for attribute in element.attrib} <= {
            *("href", "lang", "name", "content", "http-equiv")
        }
