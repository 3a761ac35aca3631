"""Which grid job a call of GRAM is about, and what GRAM wants to be told of it."""

import os
from pathlib import Path

from gram_shims.description import JobDescription
from gram_shims.proxy import find_subject
from gram_shims.request import is_plain
from jobmanager.database.documents import render_text
from jobmanager.database.grid_job import GramOrigin
from jobmanager.gram.answers import read_gram_id
from jobmanager.site.account import Account

_CONTACT = "GLOBUS_GRAM_JOB_CONTACT"


def find_contact(description: JobDescription) -> str:
    """The contact by which GRAM's clients know the job; empty where nobody said it."""
    if _CONTACT in description.environment:
        return description.environment[_CONTACT]
    pairs = dict(pair for pair in description.words("environment") if isinstance(pair, tuple) and len(pair) == 2)
    contact = pairs.get(_CONTACT, "")
    return contact if isinstance(contact, str) else ""


def find_uniqid(description: JobDescription) -> str:
    """GRAM's own name of the job, as the job database knows it; empty where nobody said it."""
    return render_text(description.word("uniqid") or find_contact(description))


def make_origin(description: JobDescription, directory: Path, is_audited: bool = False) -> GramOrigin:
    """What GRAM wants to be told of a new grid job.

    :param directory: where the names of its files start; is_audited: an audit record will be written at its end.
    """
    return GramOrigin(
        # A request that has no name can only be one of its own.
        uniqid=find_uniqid(description) or f"unnamed-{os.urandom(16).hex()}",
        contact=find_contact(description),
        stdout=str(directory / (description.word("stdout") or "/dev/null")),
        stderr=str(directory / (description.word("stderr") or "/dev/null")),
        is_plain=is_plain(description),
        subject=find_subject(description) if is_audited else "",
    )


def find_grid_job(account: Account, description: JobDescription) -> str | None:
    """The grid job that a call is about; None where the account's database knows of none.

    GRAM's uniqid finds it, too: a job manager that was killed during submit never learned the id.
    """
    identity = read_gram_id(render_text(description.word("jobid")))
    if identity:
        return identity if account.database.grid_jobs.has(identity) else None
    uniqid = find_uniqid(description)
    return account.database.grid_jobs.find_uniqid(uniqid) if uniqid else None
