"""GRAM audit records: a file for each grid job that came through GRAM and has ended, as globus-gram-audit uploads them.

Its fields, their order and their escapes are those of that program and its table (Debian's globus-gram-audit 5.1).
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from batch_adapters.states import State
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.times import read_time
from jobmanager.gram.answers import gram_id
from sandbox.files import replace_file, sync_folder

TOOLKIT_VERSION = "samgrid 0.1"
"""In the place of the Globus toolkit's; the column takes 16 characters."""
_LONGEST_TYPE = 16
_NULL = "NULL"


def write_record(folder: Path, job: GridJob, queued: float | None) -> None:
    """Write the audit record of a grid job that has ended; repeated, it writes the same file.

    The folder may be one that all accounts can write and none can list (``chmod 1733``).

    :param queued: when its first local job was submitted, seconds since 1970; None if none was.
    :raises OSError: it cannot be written now; no incomplete file has the record's name.
    """
    replace_file(folder / record_name(job), render_record(job, queued).encode(errors="replace"))
    with suppress(PermissionError):  # a folder that may not be listed; the record's own bytes are on the disk
        sync_folder(folder)


def record_name(job: GridJob) -> str:
    """The file's name, ``20261122T10:40:12-ACCOUNT-ID.gramaudit``, as GRAM's job managers name theirs."""
    ended = time.strftime("%Y%m%dT%H:%M:%S", time.gmtime(read_time(str(job.ended))))
    return f"{ended}-{job.owner}-{job.job_id}.gramaudit"


def render_record(job: GridJob, queued: float | None) -> str:
    """The one line of a record; raises ValueError: the grid job did not come through GRAM."""
    if job.origin is None:
        raise ValueError(f"{job.job_id} did not come through GRAM")
    return ",".join(f'"{_escape(field)}"' for field in _list_fields(job, job.origin, queued)) + "\n"


def _list_fields(job: GridJob, origin: GramOrigin, queued: float | None) -> Sequence[str]:
    from jobmanager.requests.rsl import Relation, render_rsl  # few sites want records

    return (
        origin.contact or origin.uniqid,  # job_grid_id, the table's key
        gram_id(job.job_id),  # local_job_id, which GRAM was told
        origin.subject or "unknown",  # subject_name, which must not be NULL
        job.owner,  # username: the owner of the file, or the record is skipped
        origin.uniqid,  # idempotence_id
        _render_time(read_time(job.submitted)),  # creation_time
        _NULL if queued is None else _render_time(queued),  # queued_time
        _NULL,  # stage_in_grid_id, this and the next two of WS-GRAM only
        _NULL,  # stage_out_grid_id
        _NULL,  # clean_up_grid_id
        TOOLKIT_VERSION,  # globus_toolkit_version
        job.batch[:_LONGEST_TYPE],  # resource_manager_type
        " ".join(render_rsl(Relation(*attribute) for attribute in job.request()).split("\n ")),  # job_description
        "true" if job.state is State.DONE else "false",  # success_flag
        "true",  # finished_flag
        _NULL,  # gateway_user, a field that the program drops where the table has none
    )


def _escape(text: str) -> str:
    # A record is one line, and the program takes nothing but &quot; back.
    return "".join(letter if letter.isprintable() else " " for letter in text.strip()).replace('"', "&quot;")


def _render_time(seconds: float) -> str:
    """``Sun Nov 22 10:40:12 UTC 2026``."""
    clock, year = time.asctime(time.gmtime(seconds)).rsplit(" ", 1)  # in English, whatever the locale
    return f"{clock} UTC {year}"
