"""Which grid job a call of GRAM is about, and what GRAM wants to be told of it."""

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from gram_shims.request import JobDescription, is_plain
from jobmanager.database.documents import render_text
from jobmanager.database.grid_job import GramOrigin
from jobmanager.gram.answers import read_gram_id
from jobmanager.site.account import Account

logger = logging.getLogger(__name__)

_PROXY = "X509_USER_PROXY"
_TIMEOUT = 5.0
_OF_PROXIES = re.compile(r"(/CN=(\d+|proxy|limited proxy))+$")
"""What each delegation adds to the subject (RFC 3820, and the older proxies of Globus)."""


def find_subject(description: JobDescription) -> str:
    """The subject in Globus' form, ``/O=Grid/CN=A. Physicist``; empty where it cannot be found out."""
    proxy = description.environment.get(_PROXY, "")
    if not proxy.startswith("/") or "\0" in proxy:
        return ""
    import subprocess  # slow to load, and only an audited site needs it

    command = ["openssl", "x509", "-in", proxy, "-noout", "-subject", "-nameopt", "compat"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the subject of the proxy %s cannot be read: %s", proxy, error)
        return ""
    return read_subject(done.stdout.decode(errors="replace"))


def read_subject(line: str) -> str:
    """The subject in what ``openssl x509 -subject -nameopt compat`` prints, without what proxies add."""
    return _OF_PROXIES.sub("", line.strip().removeprefix("subject=").strip())


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


def make_origin(
    description: JobDescription, directory: Path, unused: Iterable[str] = (), is_audited: bool = False
) -> GramOrigin:
    """What GRAM wants to be told of a new grid job.

    :param directory: where the names of its files start; unused: attributes that its job type does not take;
        is_audited: an audit record will be written at its end.
    """
    return GramOrigin(
        # A request that has no name can only be one of its own.
        uniqid=find_uniqid(description) or f"unnamed-{os.urandom(16).hex()}",
        contact=find_contact(description),
        stdout=str(directory / (description.word("stdout") or "/dev/null")),
        stderr=str(directory / (description.word("stderr") or "/dev/null")),
        is_plain=is_plain(description),
        subject=find_subject(description) if is_audited else "",
        unused=tuple(unused),
    )


def find_grid_job(account: Account, description: JobDescription) -> str | None:
    """The grid job that a call is about; None where the account's database knows of none.

    GRAM's uniqid finds it, too: a job manager that was killed during submit never learned the id.
    """
    job_id = read_gram_id(render_text(description.word("jobid")))
    if job_id:
        return job_id if account.database.grid_jobs.has(job_id) else None
    uniqid = find_uniqid(description)
    return account.database.grid_jobs.find_uniqid(uniqid) if uniqid else None
