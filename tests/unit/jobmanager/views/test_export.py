"""``samgrid export``: a folder that needs nothing of ours, whole or not at all."""

import errno
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from jobmanager.views import export as exporting
from sandbox.status import PhaseStatus
from tests.unit.grid_jobs import make_grid_job, put

JOBS = ("aaaaaaaa", "bbbbbbbb")


@pytest.fixture
def jobs(account: Account) -> Account:
    """Two grid jobs of two local jobs each, with something of everything that a page shows."""
    for job_id in JOBS:
        job = make_grid_job(job_id, 2, request=[("arguments", ("a & b", ("c",)))])
        job.put_summary({"events": "500"})
        job.element.set("{urn:d0}release", "p14.07.00")
        local_jobs = [LocalJob.new(index, "fork", None) for index in (1, 2)]
        local_jobs[1].state = State.FAILED
        local_jobs[1].reason = "killed by SIGXCPU"
        local_jobs[1].put_phases([PhaseStatus("d0gstar", 117, 250, "events")], 2000)
        put(account.database, job, local_jobs)
    return account


def export(account: Account, folder: Path) -> int:
    return cli.main(["export", "--state-dir", str(account.places.root), str(folder)])


def test_there_is_a_document_and_a_page_for_each_grid_job(jobs: Account, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    assert export(jobs, folder) == 0
    assert {path.name for path in folder.iterdir()} == {
        *("index.xml", "index.html", "schema.rng", "samgrid.xsl"),
        *(f"{name}.{suffix}" for name in JOBS for suffix in ("xml", "html")),
    }
    document = etree.parse(str(folder / "aaaaaaaa.xml")).getroot()
    assert etree.tostring(document) == etree.tostring(jobs.database.to_xml("aaaaaaaa")[0])


def test_the_schema_that_comes_along_allows_every_document(jobs: Account, tmp_path: Path) -> None:
    export(jobs, tmp_path / "export")
    schema = etree.RelaxNG(etree.parse(str(tmp_path / "export" / "schema.rng")))
    documents = sorted((tmp_path / "export").glob("*.xml"))
    assert len(documents) == 3
    for path in documents:
        schema.assertValid(etree.parse(str(path)))


@pytest.mark.skipif(shutil.which("xmllint") is None, reason="xmllint is not installed")
def test_xmllint_finds_every_document_valid(jobs: Account, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    export(jobs, folder)
    documents = [path.name for path in folder.glob("*.xml")]
    done = subprocess.run(
        ["xmllint", "--nonet", "--noout", "--relaxng", "schema.rng", *documents],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("validates") == len(documents)


@pytest.mark.parametrize("suffix", ["xml", "html"])
def test_the_stylesheet_that_a_document_names_makes_its_page(jobs: Account, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "export"
    export(jobs, folder)
    document = etree.parse(str(folder / "bbbbbbbb.xml"))
    assert 'href="samgrid.xsl"' in str(document.getroot().getprevious())
    render = etree.XSLT(etree.parse(str(folder / "samgrid.xsl")))
    pages = {"xml": bytes(render(document)), "html": (folder / "bbbbbbbb.html").read_bytes()}
    text = " ".join(map(str, etree.HTML(pages[suffix]).itertext()))
    for words in ("Grid job bbbbbbbb", "a & b", "physicist", "500", "killed by SIGXCPU", "d0gstar: 117 of 250 events"):
        assert words in text
    index = {"xml": bytes(render(etree.parse(str(folder / "index.xml")))), "html": (folder / "index.html").read_bytes()}
    links = [str(link.get("href")) for link in etree.HTML(index[suffix]).iter("a")]
    assert links == [f"{job_id}.{suffix}" for job_id in JOBS]


def test_nobody_else_can_read_it(jobs: Account, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir(mode=0o755)
    export(jobs, folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("kind", ["folder with something in it", "file", "link to a folder with something in it"])
def test_what_is_there_stays_as_it_is(
    jobs: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    target, precious = tmp_path / "target", tmp_path / "real" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    if kind.startswith("link"):
        target.symlink_to("real")
    elif kind == "file":
        target.write_text("precious")
    else:
        target = precious.parent
    before = sorted(tmp_path.rglob("*"))
    assert export(jobs, target) == 1
    assert "no empty folder" in capsys.readouterr().err
    assert precious.read_text() == "precious"
    assert [path for path in sorted(tmp_path.rglob("*")) if "state" not in path.parts] == [
        path for path in before if "state" not in path.parts
    ]


def test_on_a_full_disk_nothing_is_left(
    jobs: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = exporting._write

    def write_until_full(path: Path, content: bytes) -> None:
        if path.name == "aaaaaaaa.html":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(exporting, "_write", write_until_full)
    room = tmp_path / "room"
    room.mkdir()
    assert export(jobs, room / "export") == 1
    assert capsys.readouterr().err.endswith("room/export could not be written: No space left on device\n")
    assert list(room.iterdir()) == []


def test_a_folder_to_make_it_in_that_is_missing_is_named(
    jobs: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(jobs, tmp_path / "missing/export") == 1
    assert capsys.readouterr().err.endswith(f"missing/export cannot be made: there is no folder {tmp_path}/missing\n")


def test_the_folder_where_one_is_is_not_replaced(
    jobs: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export(jobs, Path()) == 1
    assert "name a new folder" in capsys.readouterr().err
