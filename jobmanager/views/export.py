"""Exports the job database as a folder of XML files, with schema, stylesheet and web pages."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lxml import etree

from jobmanager import UserError
from jobmanager.database.database import DamagedDocument, Database
from jobmanager.database.documents import SCHEMA_FILE, read_xml, render_text
from jobmanager.database.times import render_time
from jobmanager.views.grid_jobs import GridJobList
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
    """Make the folder (0700, its files 0600), completely or not at all; the number of grid jobs, and what is left out.

    :raises UserError: it is not empty, or cannot be written.
    """
    rows, damages = database.grid_jobs.overview(), []
    with _make_folder(folder.resolve()) as temporary:
        for file in (SCHEMA_FILE, SCHEMA_FILE.with_name(_STYLESHEET)):
            _write(temporary / file.name, file.read_bytes())
        render_page = etree.XSLT(read_xml((temporary / _STYLESHEET).read_bytes()))
        # Web pages, too: browsers load no stylesheets from file:// addresses, and will drop XSLT.
        written = []
        for row in rows:
            try:
                _write_document(temporary, row.id, database.to_xml(row.id)[0], render_page)
                written.append(row)
            except DamagedDocument as damage:
                damages.append(damage)
        _write_document(temporary, "index", _make_overview(GridJobList(written, {}, {})), render_page)
    return len(written), damages


def _write_document(folder: Path, name: str, root: etree._Element, render_page: etree.XSLT) -> None:
    _write(folder / f"{name}.xml", _HEAD.encode() + etree.tostring(root, encoding="UTF-8") + b"\n")
    _write(folder / f"{name}.html", bytes(render_page(root, suffix="'html'")))


@contextmanager
def _make_folder(target: Path) -> Iterator[Path]:
    """A temporary folder, which becomes the target at the end of the block, or is removed after an exception."""
    if target == Path.cwd():
        raise UserError(f"{target} is where you are: name a new folder")
    if not target.parent.is_dir():
        raise UserError(f"{target} cannot be made: there is no folder {target.parent}")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target} cannot be made: {error.strerror}") from error
    try:
        yield temporary
        # The kernel replaces an empty folder, but nothing else.
        temporary.rename(target)
    except BaseException as error:
        shutil.rmtree(temporary)
        if isinstance(error, OSError) and error.errno in _TAKEN:
            raise UserError(f"{target} is there, and is no empty folder: name a new one") from error
        if isinstance(error, OSError):
            raise UserError(f"{target} could not be written: {error.strerror}") from error
        raise


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)


def _make_overview(chosen: GridJobList) -> etree._Element:
    root = etree.Element("overview")
    for row in chosen.rows:
        values = {"id": row.id, "type": row.type, "state": row.state, "owner": render_text(row.owner)}
        job = etree.SubElement(root, "grid-job", values, submitted=row.submitted)
        since = chosen.find_silence(row)
        if since is not None:
            job.set("silent-since", render_time(since))
        if row.id in chosen.quarantined:
            job.set("quarantined", render_text(chosen.quarantined[row.id].sentence))
        for state, count in row.counts.items():
            etree.SubElement(job, "local-jobs", state=state, count=str(count))
        if row.name:
            job.set("name", render_text(row.name))
        if row.outcome:
            job.set("outcome", row.outcome)
    return root


def render_xml(chosen: GridJobList) -> str:
    """The list for programs."""
    root = _make_overview(chosen)
    etree.indent(root)
    return render_markup(etree.tostring(root, encoding="unicode"))
