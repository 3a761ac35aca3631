"""The list of grid jobs as one XML document, which the published schema allows."""

from collections.abc import Iterable, Mapping

from lxml import etree

from jobmanager.database import Overview
from jobmanager.documents import render_text, render_time
from jobmanager.listing import render_markup


def make_overview(rows: Iterable[Overview], silent_since: Mapping[str, float] | None = None) -> etree._Element:
    """The root element; grid jobs of ``silent_since`` (id to seconds) wait for a batch system's answer."""
    root = etree.Element("overview")
    for row in rows:
        values = {"id": row.id, "type": row.type, "state": row.state, "owner": render_text(row.owner)}
        job = etree.SubElement(root, "grid-job", values, submitted=row.submitted)
        if silent_since and row.id in silent_since:
            job.set("silent-since", render_time(silent_since[row.id]))
        for state, count in row.counts.items():
            etree.SubElement(job, "local-jobs", state=state, count=str(count))
        if row.unsuccessful:
            job.set("unsuccessful", str(row.unsuccessful))
    return root


def render_xml(rows: Iterable[Overview], silent_since: Mapping[str, float]) -> str:
    """The list for programs."""
    root = make_overview(rows, silent_since)
    etree.indent(root)
    return render_markup(etree.tostring(root, encoding="unicode"))
