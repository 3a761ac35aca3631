"""The job database as a folder of XML files that need nothing of ours: with their schema, stylesheet and pages."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lxml import etree

from jobmanager import UserError
from jobmanager.database.database import DamagedDocument, Database, Overview, Quarantined
from jobmanager.database.documents import SCHEMA_FILE, read_xml, render_text
from jobmanager.database.times import render_time
from jobmanager.views.text import render_markup

_SCHEMA = "schema.rng"
_STYLESHEET = "samgrid.xsl"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_HEAD = f"""\
<?xml version="1.0" encoding="UTF-8"?>
<?xml-model href="{_SCHEMA}"?>
<?xml-stylesheet type="text/xsl" href="{_STYLESHEET}"?>
"""


def export(database: Database, folder: Path) -> tuple[int, list[DamagedDocument]]:
    """Make the folder (0700, its files 0600), whole or not at all: how many grid jobs are in it, and what is not.

    :raises UserError: there is something in it already, or it cannot be written.
    """
    rows, damages = database.grid_jobs.overview(), []
    with _make_folder(folder.resolve()) as aside:
        for file in (SCHEMA_FILE, SCHEMA_FILE.with_name(_STYLESHEET)):
            _write(aside / file.name, file.read_bytes())
        render_page = etree.XSLT(read_xml((aside / _STYLESHEET).read_bytes()))
        # Pages, too: browsers read no stylesheet of a file:// address, and do away with XSLT.
        written = []
        for row in rows:
            try:
                _write_document(aside, row.id, database.to_xml(row.id)[0], render_page)
                written.append(row)
            except DamagedDocument as damage:
                damages.append(damage)
        _write_document(aside, "index", make_overview(written), render_page)
    return len(written), damages


def _write_document(folder: Path, name: str, root: etree._Element, render_page: etree.XSLT) -> None:
    _write(folder / f"{name}.xml", _HEAD.encode() + etree.tostring(root, encoding="UTF-8") + b"\n")
    _write(folder / f"{name}.html", bytes(render_page(root, suffix="'html'")))


@contextmanager
def _make_folder(target: Path) -> Iterator[Path]:
    """Give a folder that becomes the target when the block ends well, and vanishes when not."""
    if target == Path.cwd():
        raise UserError(f"{target} is where you are: name a new folder")
    if not target.parent.is_dir():
        raise UserError(f"{target} cannot be made: there is no folder {target.parent}")
    try:
        aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target} cannot be made: {error.strerror}") from error
    try:
        yield aside
        # The kernel replaces an empty folder, and nothing else.
        aside.rename(target)
    except BaseException as error:
        shutil.rmtree(aside)
        if isinstance(error, OSError) and error.errno in _TAKEN:
            raise UserError(f"{target} is there, and is no empty folder: name a new one") from error
        if isinstance(error, OSError):
            raise UserError(f"{target} could not be written: {error.strerror}") from error
        raise


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)


def make_overview(
    rows: Iterable[Overview],
    silent_since: Mapping[str, float] | None = None,
    quarantined: Mapping[str, Quarantined] | None = None,
) -> etree._Element:
    """The root element; grid jobs of ``silent_since`` (id to seconds) wait for a batch system's answer."""
    root = etree.Element("overview")
    for row in rows:
        values = {"id": row.id, "type": row.type, "state": row.state, "owner": render_text(row.owner)}
        job = etree.SubElement(root, "grid-job", values, submitted=row.submitted)
        if silent_since and row.id in silent_since:
            job.set("silent-since", render_time(silent_since[row.id]))
        if quarantined and row.id in quarantined:
            job.set("quarantined", render_text(quarantined[row.id].sentence))
        for state, count in row.counts.items():
            etree.SubElement(job, "local-jobs", state=state, count=str(count))
        if row.name:
            job.set("name", render_text(row.name))
        if row.outcome:
            job.set("outcome", row.outcome)
    return root


def render_xml(
    rows: Iterable[Overview], silent_since: Mapping[str, float], quarantined: Mapping[str, Quarantined] | None = None
) -> str:
    """The list for programs."""
    root = make_overview(rows, silent_since, quarantined)
    etree.indent(root)
    return render_markup(etree.tostring(root, encoding="unicode"))
