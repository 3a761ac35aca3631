"""Writes usage records into files, as messages for APEL or as records for AUDITOR.

The range of records of a file is committed before it is written, and that it is written afterwards. After a kill in
between, the same file is written again under the same name.
"""

import enum
import json
import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jobmanager import UserError
from jobmanager.database.times import render_time
from jobmanager.database.usage import KEPT, Accounting, InCommon, Terms, UsageRecord, UsageSummary
from jobmanager.site.account import Account
from jobmanager.site.places import make_state_folder
from jobmanager.site.settings import AccountingSettings, SiteSettings
from sandbox.files import locked, replace_file, sync_folder

MOST = 1000
"""Records in a file: what APEL's own programs put into a message."""
_AT_ONCE = 500
"""Grid jobs whose records are made in one transaction."""
_LONGEST = 256
"""Letters of a word that AUDITOR takes."""


class RecordFormat(enum.Enum):
    """What usage records are written as."""

    APEL = "apel"
    APEL_SUMMARY = "apel-summary"
    AUDITOR = "auditor"


@dataclass(frozen=True)
class Written:
    """What was written."""

    files: int
    entries: int
    """Records, or summaries."""


def write_records(account: Account, folder: Path, form: RecordFormat, since: float | None, now: float) -> Written:
    """Write all records that no file of that format has yet, and again the files with what ended since a second.

    :raises UserError, OSError: no file can be written; one that was is noted, and the rest is written next time.
    """
    if account.configuration.site.name == SiteSettings.name:
        raise UserError(f'[site] name is still "{SiteSettings.name}": set it to what the grid calls this site')
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: make it, for those who send what is in it")
    with locked(account.places.accounting_lock) as lock:
        if lock is None:
            raise UserError("another process writes records of this account: try again when it has ended")
        _record_ended(account)
        if since is not None:
            with account.database.transaction():
                account.database.accounting.write_again(form.value, since)
        return _write_files(account, folder, form, now)


def _record_ended(account: Account) -> None:
    database, settings = account.database, account.configuration.accounting
    last = ""
    while job_ids := database.accounting.unrecorded(last, _AT_ONCE):
        with database.transaction():
            for job_id in job_ids:
                database.accounting.record(job_id)
        last = job_ids[-1]
    # As the account's advertisement is called.
    submit_host = f"samgrid/{pwd.getpwuid(os.geteuid()).pw_name}@{socket.getfqdn()}"
    vo = None if settings.vo == AccountingSettings.vo else settings.vo
    terms = Terms(submit_host, vo, settings.benchmark, settings.benchmark_type.value)
    with database.transaction():
        database.accounting.put_terms(terms)


def _write_files(account: Account, folder: Path, form: RecordFormat, now: float) -> Written:
    accounting, site = account.database.accounting, account.configuration.site.name
    most = -1 if form is RecordFormat.APEL_SUMMARY else MOST
    files = count = 0
    while True:
        with account.database.transaction():
            numbers = accounting.next_file(form.value, most)
        if numbers is None:
            return Written(files, count)
        head = next(accounting.records(*numbers), None)
        entries, text = _render_file(accounting, form, numbers, site, now)
        if head is not None and entries:
            _put_file(folder, f"samgrid-{form.value}-{head.record_id}", text)
            files, count = files + 1, count + entries
        with account.database.transaction():
            accounting.note_written(form.value, numbers[1])


def _render_file(
    accounting: Accounting, form: RecordFormat, numbers: tuple[int, int], site: str, now: float
) -> tuple[int, str]:
    """How many entries a file has, and its text."""
    if form is RecordFormat.APEL_SUMMARY:
        summaries = list(accounting.summaries(*numbers, now - KEPT))
        return len(summaries), render_apel_summaries(summaries, site)
    records = list(accounting.records(*numbers))
    return len(records), (render_apel if form is RecordFormat.APEL else render_auditor)(records, site)


def _put_file(folder: Path, name: str, text: str) -> None:
    """Put a file into a folder, whole; the umask says who may read it."""
    umask = os.umask(0o077)
    os.umask(umask)
    # APEL's sender takes every file of its folder, also one that is being written.
    beside = folder / f".samgrid-{os.geteuid()}"
    make_state_folder(beside)
    replace_file(beside / name, text.encode(errors="replace"), 0o666 & ~umask, "new")
    (beside / name).replace(folder / name)
    sync_folder(folder)
    with suppress(OSError):  # what somebody who was killed has left there stays until that file is written again
        beside.rmdir()


def render_apel(records: Iterable[UsageRecord], site: str) -> str:
    """A message of individual job records, as APEL's own client sends them (apel/db/records/job.py)."""
    return _render_message("APEL-individual-job-message: v0.3", (_list_apel_fields(record, site) for record in records))


def _list_apel_fields(record: UsageRecord, site: str) -> Mapping[str, object]:
    return {
        **_list_common_fields(record, site),
        # With the time of the end it is APEL's key: batch systems use ids again, and accounts may have the same.
        "LocalJobId": "/".join(filter(None, (record.local_id, record.record_id))),
        "LocalUserId": record.owner,
        "WallDuration": record.ended - record.started,
        # APEL takes no record without.
        "CpuDuration": round(record.cpu_seconds or 0),
        "StartTime": record.started,
        "EndTime": record.ended,
        "InfrastructureDescription": f"SAMGRID-{record.batch.upper()}",
    }


def render_apel_summaries(summaries: Iterable[UsageSummary], site: str) -> str:
    """A message of monthly summaries, each of which takes the place of the one before (apel/db/records/summary.py)."""
    return _render_message("APEL-summary-job-message: v0.2", (_list_summary_fields(one, site) for one in summaries))


def _list_summary_fields(summary: UsageSummary, site: str) -> Mapping[str, object]:
    year, month = summary.month.split("-")
    return {
        **_list_common_fields(summary, site),
        "Month": int(month),
        "Year": int(year),
        "EarliestEndTime": summary.first_end,
        "LatestEndTime": summary.last_end,
        "WallDuration": summary.wall_seconds,
        "CpuDuration": summary.cpu_seconds,
        "NumberOfJobs": summary.count,
    }


def _list_common_fields(known: InCommon, site: str) -> Mapping[str, object]:
    return {
        "Site": site,
        "SubmitHost": known.submit_host,
        "GlobalUserName": known.subject,
        "VO": known.vo,
        "InfrastructureType": "grid",
        "NodeCount": 1,
        "Processors": known.cores,
        "ServiceLevelType": known.benchmark_type if known.benchmark else None,
        "ServiceLevel": known.benchmark,
    }


def _render_message(header: str, entries: Iterable[Mapping[str, object]]) -> str:
    lines = [header]
    for fields in entries:
        lines += [f"{name}: {_render_word(value)}" for name, value in fields.items() if value is not None]
        lines.append("%%")
    return "\n".join(lines) + "\n"


def _render_word(value: object) -> str:
    """One line without what ends a record."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)).replace("%%", "% %")


def render_auditor(records: Iterable[UsageRecord], site: str) -> str:
    """A list of records as AUDITOR takes them at /records, all or none of them (auditor/src/domain/record.rs)."""
    return json.dumps([_make_auditor_record(record, site) for record in records]) + "\n"


def _make_auditor_record(record: UsageRecord, site: str) -> Mapping[str, object]:
    score = [{"name": record.benchmark_type, "value": record.benchmark}] if record.benchmark else []
    amounts = {
        "Cores": record.cores,
        "NNodes": 1,
        "TotalCPU": None if record.cpu_seconds is None else round(record.cpu_seconds),
    }
    meta = {
        "site_id": site,
        "user_id": record.owner,
        "group_id": record.vo,
        "subject": record.subject,
        "headnode": record.submit_host,
        "batch_system": record.batch,
        "local_id": record.local_id,
        "node": record.host,
    }
    return {
        "record_id": f"samgrid-{record.record_id}",
        "meta": {name: [word[:_LONGEST]] for name, word in meta.items() if word},
        "components": [
            {"name": name, "amount": amount, "scores": score if name == "Cores" else []}
            for name, amount in amounts.items()
            if amount is not None
        ],
        "start_time": render_time(record.started),
        "stop_time": render_time(record.ended),
    }
