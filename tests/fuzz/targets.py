"""Every parser of the project in one table: what it is given, what it may refuse, and what must be true of the rest.

`tests.fuzz.run` throws what atheris makes of the seeds at all of them, `test_kept.py` what was found once.
"""

import argparse
import asyncio
import contextlib
import functools
import io
import itertools
import json
import os
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from io import BytesIO
from pathlib import Path
from typing import Any

from lxml import etree
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from adapters import BadSweep, Site, Sweep, UnknownDataset
from adapters.job_adapter import Limits, TooLarge, count_local_jobs, cut_slice
from adapters.sweep import read_parameters
from batch_adapters.adapter import BatchAdapter, BatchError, Command, Garbled, Job, Reader
from batch_adapters.condor import events as condor
from batch_adapters.fork import commands as fork_commands
from batch_adapters.fork.protocol import StartRefused, read_start_request, read_wire
from batch_adapters.fork.spool import read_local_id, read_run, read_submission
from batch_adapters.generator.collector_protocol import read_lines
from batch_adapters.generator.emit import LineFilter
from batch_adapters.generator.local_time import find_zone
from batch_adapters.generator.module import LogNotKnown, Parser, ReadyLines
from batch_adapters.generator.poll import read_polling
from batch_adapters.lsf.events import LsbEvents
from batch_adapters.pbs import events as pbs
from batch_adapters.pbs.events import ServerLog
from batch_adapters.registry import ADAPTERS, find_builtin
from batch_adapters.running.batch_system import (
    make_status,
    read_analysis,
    read_answer,
    read_max_array,
    read_reasons,
    read_slots,
    read_user,
)
from batch_adapters.running.commands import judge_answer
from batch_adapters.running.diagnosis import Level, Printed
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.sge import events as sge
from batch_adapters.sge.events import GridEngineLog
from batch_adapters.site_adapter import find_adapter
from batch_adapters.slurm import controller_log as slurm
from batch_adapters.slurm.events import SlurmLog
from batch_adapters.states import Cause, State, read_event, render_event
from gram_shims.installation.installation import MANIFEST, plan_removal, read_manifest, render_manifest
from gram_shims.installation.table import InstallError, Root
from gram_shims.request import BadDescription, RefusedRequest, read_description
from gram_shims.request import read_request as read_gram_request
from gram_shims.scripts import read_argument_file
from handlers.inputs import NoFiles, find_dataset
from handlers.payload import merge_lhe, merge_root
from handlers.pythia import UNUSABLE, read_result
from handlers.structured import StructuredAdapter
from jobmanager.commands.arguments import read_seconds, read_time
from jobmanager.completion.notified import Notified
from jobmanager.control.backup import BackupError
from jobmanager.control.repair import rebuild_grid_job
from jobmanager.control.restoring import OpenJobs, restore
from jobmanager.database.database import DatabaseError
from jobmanager.database.documents import InvalidDocument, read_document, render_text
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob
from jobmanager.database.local_jobs import LOCAL_JOBS
from jobmanager.database.sqlite import DamagedDocument
from jobmanager.monitor.generators import EventLines
from jobmanager.requests.acceptance import prepare_grid_job
from jobmanager.requests.attributes import BadRequest, Given, read_request, read_type
from jobmanager.requests.credentials import read_proxy_expiry, read_token_expiry
from jobmanager.requests.datasets import read_list
from jobmanager.requests.files import is_job_description, read_job_description
from jobmanager.requests.job_types import KNOWN_TYPES, HandlerError, load_job_types
from jobmanager.requests.rsl import RslError, read_rsl, render_rsl
from jobmanager.site.account import Account, open_account
from jobmanager.site.configuration import ConfigurationError, read_configuration
from jobmanager.site.places import StatePlaces
from jobmanager.site.settings import SETTINGS
from jobmanager.states.program_reports import RefusedXml, read_foreign_xml
from jobmanager.views.following import read_printed
from jobmanager.views.logs import render_log
from jobmanager.views.outputs import NoOutput, render_output
from jobmanager.views.query.child import BadExpression, evaluate_xpath
from jobmanager.views.query.selection import read_selection
from jobmanager.web.access import Guard
from jobmanager.web.app import make_app
from jobmanager.web.serving import read_listen
from sandbox.files import SandboxError, TarLimits
from sandbox.status import DriverStatus, read_status, render_stem
from sandbox.unpack import unpack
from tests.production import add_production
from tests.unit.batch_adapters.fork.messages import render_start_request
from tests.unit.batch_adapters.recordings import read_recordings

_GRID_JOB, _NOW = "k3f9zq2m", 1795262400.0
RECORDED = Path(__file__).parents[1] / "recorded"
_LONGEST_FAULT = 20_000


@dataclass(frozen=True)
class Target:
    """One parser."""

    run: Callable[[bytes], object]
    """Parses, and asserts what must be true of the result."""
    refusals: tuple[type[Exception], ...] = ()
    """What it may raise, with words for whoever wrote the input."""
    seeds: tuple[bytes, ...] = ()
    """What a fuzzer begins with."""

    def check(self, data: bytes) -> None:
        """Raises whatever is wrong with what the parser does with this input."""
        words = "taken"
        try:
            self.run(data)
        except self.refusals as error:
            words = str(error)
        # It may quote what was given, but not again and again.
        assert 0 < len(words) < _LONGEST_FAULT + 10 * len(data), "a refusal is words, and not a book"


def of_text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of text, given what others wrote, whatever its bytes are."""
    return lambda data: run(data.decode("utf-8", "replace"))


# --- answers of batch systems

OAR = {"oar": {"based_on": "fork", "jobs": r"(?P<id>\d+) (?P<state>\w) (?P<exit>-?\d+)"}}
BATCH_SYSTEMS: dict[str, BatchAdapter] = {**{n: find_builtin(n) for n in ADAPTERS}, "oar": find_adapter("oar", OAR)}


def check_answer(read: Reader, printed: str) -> None:
    """A reader makes jobs of an answer, or it is garbled."""
    jobs: list[Job] = []
    words = "read"
    try:
        jobs = read_answer(read, printed)
    except Garbled as error:
        words = str(error)
    assert 0 < len(words) < 2000
    for job in jobs:
        assert isinstance(job, Job)
        assert len(job.local_id) <= 200
        assert isinstance(job.native_state, str)
        assert job.exit_code is None or abs(job.exit_code) <= 2**31


def _check_adapter(adapter: BatchAdapter, printed: str) -> None:
    check_answer(adapter.read_jobs, printed)
    check_answer(adapter.read_history, printed)
    for count in (1, 3):
        adapter.naming.read_submitted(printed, count)
    for word in [word for word in printed.split()[:20] if len(word) <= 200]:
        adapter.naming.position_of(word)
        adapter.naming.array_of(word)


def _check_words(adapter: BatchAdapter, printed: str) -> None:
    """Why a job waits, what helps, and what each command's answer means: a closed queue is no end."""
    assert len(read_analysis(adapter, printed)) <= 600
    with contextlib.suppress(Garbled):
        assert 1 <= read_max_array(adapter, printed) <= adapter.max_array
    with contextlib.suppress(Garbled):
        assert all(len(reason) <= 600 for reason in read_reasons(adapter, printed).values())
    with contextlib.suppress(Garbled):
        assert min(read_slots(adapter, printed)) >= 0
    native_states = sorted(adapter.states)
    for reason in printed.splitlines()[:5]:
        status = make_status(adapter, Job("17", native_states[len(printed) % len(native_states)], reason=reason))
        assert not (status.helps and status.state is not None and status.state.is_final)
    for command in [value for value in vars(adapter).values() if isinstance(value, Command)]:
        for exit_code, stdout, stderr in ((0, printed, ""), (1, "", printed), (255, printed, printed)):
            words = "taken"
            try:
                judge_answer(command, command.argv, exit_code, stdout, stderr)
            except BatchError as error:
                words = str(error)
            assert 0 < len(words) < 2000


def _check_diagnosis(adapter: BatchAdapter, printed: str) -> None:
    """Each question is answered by one of the parts between form feeds; whatever that is, a finding is a sentence."""
    for exit_code in (0, 1, None):
        answers = itertools.cycle(Printed(exit_code, part, part) for part in printed.split("\f"))
        for finding in adapter.diagnose(lambda argv, answers=answers: next(answers), {"SGE_ROOT": "/sge"}):  # type: ignore[misc]
            assert 0 < len(finding.text) < 1000 + len(printed)
            assert finding.remedy or finding.level is Level.GOOD


# --- logs

_LOGS: Mapping[str, tuple[Callable[[], Parser], str]] = {
    "condor": (lambda: condor.EventLog(UTC, lambda: 1795262400.0), "condor/condor-EventLog-*.log"),
    "events": (ReadyLines, ""),
    "lsf": (LsbEvents, "lsf/documented.txt"),
    "pbs": (ServerLog, "pbs/pbs-server_log.*"),
    "sge": (GridEngineLog, "sge/sge-*.log"),
    "slurm": (SlurmLog, "slurm/*.log"),
}


_DELETIONS: Mapping[str, tuple[Callable[[bytes], Iterable[tuple[bytes, bytes | Cause]]], str]] = {
    "condor": (condor.read_deletions, "condor/condor-EventLog-*.log"),
    "pbs": (pbs.read_deletions, "pbs/pbs-server_log.*"),
    "sge": (sge.read_deletions, "sge/sge-*.log"),
    "slurm": (slurm.read_deletions, "slurm/*.log"),
}


def _check_log(new_parser: Callable[[], Parser], block: bytes) -> None:
    parser = new_parser()
    parser.read_time(block)
    lines = parser.read_events(block + b"\n")
    assert not lines or lines.endswith(b"\n")
    for line in LineFilter(None).read_good(lines).decode("ascii").splitlines():
        assert line.startswith("001;")


def _check_deletions(read_deletions: Callable[[bytes], Iterable[tuple[bytes, bytes | Cause]]], block: bytes) -> None:
    """Who has deleted a job is written into its document, whatever an account's name is."""
    for _, by in itertools.islice(read_deletions(block + b"\n"), 5):
        if not isinstance(by, Cause):
            job = LocalJob.new(1, "fork", None)
            job.put_batch_end("deleted", State.FAILED, None, read_user(os.fsdecode(by)))
            read_document("local-job", job.to_bytes(), _GRID_JOB, 1)


def _check_zone(new_parser: Callable[[], Parser], tail: bytes) -> None:
    """The end of a log that was written on the day of our recordings."""
    zone = find_zone(lambda: new_parser().read_time, tail, 1795262400.0)
    assert zone is None or re.fullmatch(r"<[+-]\d{4}>-?\d{1,2}:\d{2}", zone)


def _check_event(line: str) -> None:
    event = read_event(line)
    assert event is None or read_event(render_event(event)) == event


# --- requests


# Loaded now, so that a fuzzer sees what is run in them.
_HANDLERS = [handler for name, handler in load_job_types(()).items() if name in KNOWN_TYPES]


def _check_request(text: str) -> None:
    relations = read_job_description(text) if is_job_description(text) else read_rsl(text, {"HOME": "/home/d0"})
    given: Given = [(relation.name, relation.values) for relation in relations]
    if relations and not is_job_description(text):
        assert [(one.name, one.values) for one in read_rsl(render_rsl(relations))] == given
    for handler in _HANDLERS:
        values, faults = read_request(given, handler, Path("/"))
        assert all(faults)
        if handler is StructuredAdapter and not faults:
            adapter = StructuredAdapter(values, Site())
            assert list(adapter.checkErrors()) or adapter.getSteps() is not None


@functools.cache
def _make_account() -> tuple[Account, "tempfile.TemporaryDirectory[str]"]:
    folder = tempfile.TemporaryDirectory()
    account = open_account(folder.name)
    add_production(account.database, _GRID_JOB, 30, _NOW)
    account.places.results(_GRID_JOB).mkdir(parents=True)
    return account, folder


def _check_acceptance(text: str) -> None:
    """What is accepted is kept as it was given."""
    given: Given = [(relation.name, relation.values) for relation in read_rsl(text)]
    if read_type(given) not in ("command", "structured"):
        return  # they look for folders that a request names
    job = prepare_grid_job(_make_account()[0], given, Path("/"))
    kept = GridJob(read_document("grid-job", job.to_bytes(), job.job_id)).request()
    assert kept == [(name, tuple(values)) for name, values in given]


def _check_sweep(text: str) -> None:
    """Words with placeholders, a form feed, and the parameters: no text becomes longer than was counted."""
    written, _, rows = text.partition("\f")
    sweep, words = Sweep(read_parameters(rows), "parameters"), written.split(" ")
    sweep.find_unknown(words)
    for index, most in itertools.islice(enumerate(sweep.count_letters(words), 1), 5):
        assert sum(len(sweep.fill(word, index)) for word in words) <= most
        assert sum(map(len, sweep.fill_words(words, index))) <= most


def _check_decomposition(text: str) -> None:
    numbers = [int(word) for word in re.findall(r"[0-9]{1,12}", text)[:6]]
    events, cpu, share, rule, recommended, longest = numbers + [1] * (6 - len(numbers))
    limits = Limits(rule or 1, recommended / 7, longest / 7)
    count = count_local_jobs(events or 1, cpu / 1000, share, limits)
    slices = [cut_slice(index, count, events or 1, rule or 1) for index in {1, (count + 1) // 2, count}]
    assert all(0 < one.events <= (events or 1) and one.first_event + one.events - 1 <= (events or 1) for one in slices)


def _check_gram_request(text: str) -> None:
    description = read_description(text)
    read_gram_request(description)


# --- what sites write


def _in_file(name: str, data: bytes, run: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(data)
        run(file)


def _check_settings(data: bytes) -> None:
    _in_file("samgrid.toml", data, lambda file: read_configuration({}, file))


def _check_environment(text: str) -> None:
    for settings in SETTINGS.values():
        for setting in settings.values():
            Target(of_text(setting.read_text), (ValueError,)).check(text.encode())


def _check_limiter(data: bytes) -> None:
    def ask(file: Path) -> None:
        limiter = RateLimiter(file, 60)
        limiter.outage()
        limiter.note_outage("down")
        assert limiter.outage()
        limiter.note_answer()

    _in_file("batch-fork.json", data, ask)


# --- what local jobs and drivers leave


def _check_status(data: bytes) -> DriverStatus:
    status = read_status(data)
    assert status.problem is None or render_text(status.problem) == status.problem
    assert status.interruption is None or status.interruption
    return status


def _check_foreign(data: bytes) -> None:
    root = read_foreign_xml(data)
    job = LocalJob.new(1, "fork", None)
    job.put_foreign(root)
    assert read_document("local-job", job.to_bytes(), "k3f9zq2m", 1).find(root.tag) is not None


def _check_tar(data: bytes) -> None:
    def check(file: Path) -> None:
        target = file.with_name("out")
        try:
            unpack(file, target, TarLimits(100, 100_000))
        finally:
            left = {entry.name for entry in file.parent.iterdir()}
            assert left <= {"x.tar", "out"}
        assert sum(entry.lstat().st_size for entry in target.rglob("*") if entry.is_file()) <= 200_000

    _in_file("x.tar", data, check)


def _make_tar(*members: tuple[str, bytes, bytes]) -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "a"
            tar.addfile(member, BytesIO(content))
    return made.getvalue()


def _check_event_file(data: bytes) -> None:
    """A file merged with itself is XML with each event twice."""
    with tempfile.TemporaryDirectory() as folder:
        file, merged = Path(folder) / "one", Path(folder) / "merged"
        file.write_bytes(data)
        merge_lhe.merge(str(merged), [str(file)] * 2, compressed=False)
        with merge_lhe.open_events(str(file)) as stream:
            text = stream.read()
        try:
            events = len(list(etree.fromstring(text).iter("event")))
        except etree.XMLSyntaxError:
            return  # well-formed, but for no reader that knows namespaces: <a b:="c"/>
        root = etree.parse(str(merged), etree.XMLParser(resolve_entities=False)).getroot()
        assert (root.tag, len(root.findall("init"))) == ("LesHouchesEvents", 1)
        assert len(list(root.iter("event"))) == 2 * events


def _check_result(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("summary.json", "dimuon-mass.json"):
            Path(folder, name).write_bytes(data)
        read_result(Path(folder))


def _patch(data: bytes, patches: bytes) -> bytes:
    """A binary file with some bytes changed: each of the patches is three bytes of where, and what there is then."""
    patched = bytearray(data)
    for at in range(0, len(patches) - 3, 4):
        patched[int.from_bytes(patches[at : at + 3]) % len(data)] = patches[at + 3]
    return bytes(patched)


_PATCHES = (b"\0\0\x12\0", b"\0\x10\x03\xff\0\x20\0\x0d")


def _check_root_file(patches: bytes) -> None:
    """uproot says many things of a damaged file; whatever it is, it is one line."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        file = Path(folder) / "one"
        file.write_bytes(_patch((RECORDED / "root" / "histogram.root").read_bytes(), patches))
        status = merge_root.main([str(file.with_name("merged")), str(file), str(file)])
        assert (status, len(said.getvalue().splitlines())) in ((0, 0), (1, 1))


def _check_dataset(data: bytes) -> None:
    def find(file: Path) -> None:
        site = Site(values={"datasets": str(file.parent)})
        assert all(one.is_file() for one in find_dataset(site, "dzero_merge", "x"))

    _in_file("x.list", data, find)


# --- the state folder, and what is made of it


def _check_notified(data: bytes) -> None:
    account, _ = _make_account()
    account.places.notified.write_bytes(data)
    read = Notified.read(account, _NOW)
    read.find_unsent(account, _NOW)
    read.forget(_NOW)
    read.write(account)
    assert Notified.read(account, _NOW) == read


def _check_log_lines(data: bytes) -> None:
    account, _ = _make_account()
    log = account.places.log(_GRID_JOB)
    log.write_bytes(data)
    for lines in (None, 3):
        assert all(map(str.isprintable, render_log(account, account.database, _GRID_JOB, lines)))


def _check_live(data: bytes) -> None:
    """What a driver on another host copies of what is printed."""
    account, _ = _make_account()
    job = next(job for job in account.database.local_jobs.all_of(_GRID_JOB) if job.state is State.ACTIVE)
    stem = render_stem(_GRID_JOB, str(job.local_id))
    (account.places.results(_GRID_JOB) / f".{stem}.live.stdout").write_bytes(data)
    for end in read_printed(account, _GRID_JOB, job):
        assert all(map(str.isprintable, end.text.split("\n")))
        assert end.left_out >= 0


def _check_local_job(data: bytes) -> None:
    """What the schema allows can be read, and is kept as it is."""
    job = LocalJob(read_document("local-job", data, _GRID_JOB, 1))
    kept = job.to_bytes()
    assert LocalJob(read_document("local-job", kept, _GRID_JOB, 1)).to_bytes() == kept
    assert LOCAL_JOBS.rows(_GRID_JOB, job)
    assert len(job.evidence()) + len(job.phases()) + len(job.earlier_attempts()) <= kept.count(b"<")


def _check_manifest(data: bytes) -> None:
    def show(file: Path) -> None:
        file.write_bytes(_make_tar((f"{_GRID_JOB}/manifest.json", tarfile.REGTYPE, data)))
        text = render_output(_make_account()[0].database.grid_jobs.get(_GRID_JOB), file)
        assert all(map(str.isprintable, text.split("\n")))

    _in_file("x.tar", data, show)


def _check_backup(note: bytes, database: bytes) -> None:
    made = _make_tar(("backup.json", tarfile.REGTYPE, note), ("jobs.db", tarfile.REGTYPE, database))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "backup.tar")
        file.write_bytes(made)
        account = replace(_make_account()[0], places=StatePlaces(Path(folder, "state")))
        try:
            restore(account, file, OpenJobs.FOLLOWED)
        except BackupError:
            assert {entry.name for entry in Path(folder).iterdir()} == {"backup.tar"}
            raise


@functools.cache
def _make_database() -> bytes:
    account, folder = _make_account()
    copy = Path(folder.name, "copy.db")
    account.database.copy_to(copy)
    return copy.read_bytes()


def _check_backup_database(patches: bytes) -> None:
    _check_backup(b'{"jobs": "/j"}', _patch(_make_database(), patches))


def _check_repair(text: bytes) -> None:
    """Whatever is left of a grid job's document, what is made of it can be read."""
    account, _ = _make_account()
    with contextlib.closing(sqlite3.connect(account.places.database)) as connection, connection:
        connection.execute("UPDATE grid_job SET document = ? WHERE id = ?", [text, _GRID_JOB])
    with account.database.transaction():
        rebuild_grid_job(account.database, _GRID_JOB, _NOW)
    assert account.database.grid_jobs.get(_GRID_JOB).count == 30


def _check_gram_manifest(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Root(Path(folder))
        place = root.place(MANIFEST)
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
        found = read_manifest(root)
        assert found
        place.write_bytes(render_manifest(found))
        assert read_manifest(root) == found
        plan_removal(root, found)


# --- the embedded batch system


def _check_start(data: bytes) -> None:
    request = read_start_request(read_wire(data.partition(b"\n")[0]))
    assert read_start_request(render_start_request(request)) == request


def _check_fork_commands(text: str) -> None:
    for name in ("token", "count", "slots", "limit", "grace"):
        with contextlib.suppress(argparse.ArgumentTypeError):
            getattr(fork_commands, f"read_{name}")(text)
    read_local_id(text)


# --- the page and queries


_TOKEN = "a-token-of-24-characters"


def _check_page(data: bytes) -> None:
    """A request's target, then its headers, a line each; nobody is let in without the token."""
    target, *lines = data.split(b"\n")
    path, _, query = target.partition(b"?")
    headers = [(name.lower(), value) for name, colon, value in (line.partition(b":") for line in lines) if colon]
    scope = {
        "type": "http", "method": "GET", "path": path.decode("latin-1"), "query_string": query, "headers": headers,
    }  # fmt: skip
    for on_loopback in (False, True):
        said: list[Mapping[str, Any]] = []
        guard = Guard(PlainTextResponse("secret"), token=_TOKEN, on_loopback=on_loopback)

        async def send(message: Mapping[str, Any], said: list[Mapping[str, Any]] = said) -> None:
            said.append(message)

        asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
        assert said[0]["status"] in (200, 303, 401, 403, 414)
        assert said[0]["status"] in (401, 403) or _TOKEN.encode() in data or b"%" in data
        assert all(b"\n" not in value and b"\r" not in value for _, value in said[0]["headers"])


@functools.cache
def _make_site() -> tuple[ASGIApp, "tempfile.TemporaryDirectory[str]"]:
    folder = tempfile.TemporaryDirectory()
    account = open_account(folder.name)
    add_production(account.database, _GRID_JOB, 30, _NOW)
    account.database.close()
    return make_app(account, _TOKEN), folder


def _check_site(text: str) -> None:
    """What a reader may write into the address line."""
    path, _, query = text.partition("?")
    if path.endswith("/events") or path.startswith("/query"):
        return  # one never ends, and the other starts a process
    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": query.encode(), "root_path": "",
        "headers": [(b"authorization", f"Bearer {_TOKEN}".encode())],
    }  # fmt: skip
    said: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        said.append(message)

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request"}

    asyncio.run(_make_site()[0](scope, receive, send))  # type: ignore[arg-type]
    assert said[0]["status"] in (200, 303, 307, 404, 414)


_TREE = etree.fromstring(
    b"<grid-jobs><grid-job id='k3f9zq2m'><local-job number='1' state='done'>x</local-job></grid-job></grid-jobs>"
)


def _check_query(expression: str) -> None:
    json.dumps(list(evaluate_xpath(_TREE, expression[:200])))
    read_selection(expression)


# --- the table


_EVENTS = (b"001;1795262400;12.3;8;0\nno\n",)


def _recorded(pattern: str, most: int = 4000) -> tuple[bytes, ...]:
    return tuple(file.read_bytes()[:most] for file in sorted(RECORDED.glob(pattern))) if pattern else _EVENTS


def _adapter_targets() -> Iterator[tuple[str, Target]]:
    folders = {"torque": ("torque/qstat.xml",), "oar": (), "pbs": ("pbs/pbs-qstat-x*",)}
    for name, adapter in BATCH_SYSTEMS.items():
        patterns = folders.get(name, (f"{name}/*commands.txt", f"{name}/documented.txt", f"{name}/*history.txt"))
        seeds = tuple(seed for pattern in patterns for seed in _recorded(pattern)) + tuple(map(str.encode, GOOD))
        yield f"answer-{name}", Target(of_text(functools.partial(_check_adapter, adapter)), seeds=seeds)


def _diagnosis_targets() -> Iterator[tuple[str, Target]]:
    for name, adapter in BATCH_SYSTEMS.items():
        seeds = tuple(part.encode() for part in WORDS[name])
        yield f"words-{name}", Target(of_text(functools.partial(_check_words, adapter)), seeds=seeds)
        yield f"diagnosis-{name}", Target(of_text(functools.partial(_check_diagnosis, adapter)), seeds=seeds)


def _recorded_answer(folder: str, file: str, command: str) -> str:
    return next(one.stdout for one in read_recordings(folder, file) if command in one.command)


WORDS: Mapping[str, Sequence[str]] = {
    "condor": (
        "$(LOG)/EventLog\f2\f50000000\fISO_DATE UTC\f/h\f2\f20971520\ftrue\n",
        "Not defined: EVENT_LOG\n",
        "[1]           0  TARGET.Memory >= 900000\n      7 are rejected by your job's requirements\n",
    ),
    "fork": ("array limit 7\n",),
    "lsf": (
        "CLEAN_PERIOD = 3600\nMAX_JOB_ARRAY_SIZE = 1000\n",
        "The queue has been closed by its administrator\n",
        "Job dependency condition never satisfied\n",
    ),
    "oar": ("1 W 0\n",),
    "pbs": (
        "Server: vm\n    log_events = 511\n    job_history_enable = True\n    job_history_duration = 336:00:00\n"
        "    node_fail_requeue = 310\n    max_array_size = 10000\n    pbs_version = 23.06.06\n",
        "held (u)\n",
        "qsub: Queue is not enabled\n",
    ),
    "sge": (
        _recorded_answer("sge", "sge-commands.txt", "qconf -sconf") + "\fqname all.q\npe_list smp\nrerun   TRUE\n\f"
        "pe_name   smp\n\f-V\n",
        "a_b c\fqname q\n\fsmp is not a parallel environment\n",
        _recorded_answer("sge", "sge-commands.txt", "qstat -j"),
        'Job 3 cannot run in queue "all.q" because it is disabled\nverification: no suitable queues\n',
    ),
    "slurm": (
        (RECORDED / "slurm" / "show-config.txt").read_text() + "\f1000\n500+\n",
        "ReqNodeNotAvail, UnavailableNodes:n1\n",
        "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)\n",
    ),
    "torque": ("Server: vm\n    log_events = 511\n    keep_completed = 300\n", "held (s)\n"),
}
"""What batch systems say of their settings, and of what keeps a job waiting."""

GOOD: Sequence[str] = (
    "3_1|RUNNING|0|None|t-2|3_1\n",
    "4_[1-3,5-9:2%4]|CANCELLED by 1001|0:0\n",
    "a-1.1 ended 0\n",
    "100|0|RUN|-|k3f9zq2m-1|-|-\n",
    json.dumps([{"ClusterId": 1, "ProcId": 0, "JobStatus": 4, "ExitCode": 3, "SamgridToken": "t-1"}]),
)
"""Answers of several batch systems."""

NONSENSE: Mapping[str, bytes] = {
    "nothing": b"",
    "NUL": b"\0",
    "no UTF-8": b"\xff\n" * 9,
    "half a character": b"\xed\xa0\x80",
    "other digits": "1-\u00b2 \u0663".encode(),
    "digits": b"9" * 5000,
    "a range": b"1-" + b"9" * 5000,
    "a list of digits": b"[" + b"9" * 5000 + b"]",
    "lists": b"[" * 50_000,
    "tables": b'{"a":' * 20_000,
    "TOML lists": b"x=" + b"[" * 3000,
    "TOML tables": b"x=" + b"{a=" * 3000,
    "sequences": b"&(a=" + b"(" * 3000,
    "elements": b"<a xmlns='u:x'>" * 5000,
    "functions": b"not(" * 2000,
    "infinity": b"1e999",
    "no number": b"NaN",
    "null": b"null",
    "quotes": b"'" * 1001,
    "backslashes": b"\\" * 999,
    "blanks": b" " * 50_000,
    "folders": b"a/" * 3000,
}
"""What every parser must survive; a fuzzer would have to be lucky."""

TARGETS: Mapping[str, Target] = {
    **dict(_adapter_targets()),
    **dict(_diagnosis_targets()),
    **{
        f"log-{name}": Target(functools.partial(_check_log, new_parser), seeds=_recorded(pattern))
        for name, (new_parser, pattern) in _LOGS.items()
    },
    **{
        f"zone-{name}": Target(functools.partial(_check_zone, new_parser), seeds=_recorded(pattern))
        for name, (new_parser, pattern) in _LOGS.items()
    },
    **{
        f"deletions-{name}": Target(functools.partial(_check_deletions, read_deletions), seeds=_recorded(pattern))
        for name, (read_deletions, pattern) in _DELETIONS.items()
    },
    "event": Target(of_text(_check_event), seeds=_EVENTS),
    "event-lines": Target(lambda data: EventLines("x").read_events(data), seeds=_EVENTS),
    "event-packet": Target(lambda data: read_lines(data, 4711), seeds=(b"001;0;4711.k3f9zq2m;8;0\n",)),
    "request": Target(
        of_text(_check_request),
        (RslError,),
        (
            b'&(samgrid_type = command)(executable = /bin/sh)(arguments = -c "echo ""hi""")(count = 3)',
            b"&(samgrid_type=structured)(steps=(a (samgrid_type command))(b (input_step a)(x $(HOME)))) (* c *)",
            b"&(rsl_substitution = (A x)(B $(A)#y))(directory = $(B))(max_cpu_time = 1e3)(environment=(N v))",
            b"job_type = dzero_monte_carlo\n+runjob_requestid = 4711 # why\nlist = 'a''b' \"c\"\n",
        ),
    ),
    "acceptance": Target(
        of_text(_check_acceptance),
        (RslError, BadRequest, HandlerError),
        (
            b'&(samgrid_type = command)(executable = /bin/sh)(arguments = -c "echo\r\n""\xc3\xa9""")(count = 3)',
            b"&(samgrid_type=command)(executable=/bin/sh)(environment=(A b)(C d))(stdin=/etc/passwd)(retries=3)",
            b"&(samgrid_type=structured)(steps=(a (samgrid_type command)(executable /bin/sh))(b (samgrid_type command)"
            b"(executable /bin/sh)(input_step a)(min_success 0.5)))",
        ),
    ),
    "decomposition": Target(of_text(_check_decomposition), (TooLarge,), (b"10000 40 0 250 60 600", b"1 0 0 1 0 0")),
    "parameters": Target(of_text(read_parameters), (BadSweep,), (b'a,b\n1,"2, 3"\n', b'{"a": 1e-3, "b": true}\n')),
    "sweep": Target(
        of_text(_check_sweep), (BadSweep,), (b"-m {a} x{b},{a} ${a} {c}\fa,b\n1,2\n", b'{a}\f{"a": 1e-3}\n{"a": "x"}\n')
    ),
    "settings": Target(
        _check_settings,
        (ConfigurationError,),
        (
            b'[site]\nname = "x"\n[monitor]\nidle_time = 5\n[type.pythia]\npython = "/usr/bin/python3"\n',
            b'[batch.oar]\nbased_on = "fork"\njobs = "(?P<id>\\\\d+) (?P<state>\\\\w)"\n'
            b'states = {pending = ["W"]}\nqueue.argv = ["oarstat", "{{ user }}"]\nqueue.timeout = 3\n',
        ),
    ),
    "settings-environment": Target(of_text(_check_environment), seeds=(b"60", b"/a/b", b"x.y:/z.py", b"1e3")),
    "limiter": Target(_check_limiter, seeds=(b'{"asked": [1.0], "tries": 3, "since": 1.0, "words": "x"}',)),
    "polling": Target(
        lambda data: _in_file("poll.json", data, read_polling),
        (LogNotKnown,),
        (
            b'{"batch_system": "fork", "tables": {}, "variables": {"python": "/x", "launch": "/y", "fork_spool": "/z"},'
            b' "limiter": "/tmp/t", "interval": 30}',
            b'{"batch_system": "x", "tables": {"x": {"based_on": 1}}, "variables": {}, "limiter": "/t", "interval": 3}',
        ),
    ),
    "driver-status": Target(
        _check_status,
        seeds=(
            b"start 1795262400\nhost n1\nindex 3\ntoken t-1\nphase gen 3 10 events\ncaught TERM 1795262401 3\n"
            b"cpu 3.5\nsignal TERM\nexit 0\nend 1795262410\nproblem x\n",
        ),
    ),
    "foreign-xml": Target(
        _check_foreign, (RefusedXml,), (b"<r xmlns='u:r' a='1'><b>x</b><!-- c --></r>", b"<d\xc3\xa9 xmlns='u:e'/>")
    ),
    "grid-job-document": Target(
        lambda data: read_document("grid-job", data, "k3f9zq2m"), (DamagedDocument,), (b"<grid-job id='k3f9zq2m'/>",)
    ),
    "times": Target(
        of_text(lambda text: (read_time(text), read_seconds(text))),
        (argparse.ArgumentTypeError,),
        (b"2026-11-22T08:30+01:00", b"36h", b"60"),
    ),
    "tar": Target(
        _check_tar,
        (SandboxError,),
        (
            _make_tar(("a", tarfile.REGTYPE, b"x" * 600), ("b/", tarfile.DIRTYPE, b""), ("l", tarfile.SYMTYPE, b"")),
            _make_tar(("a", tarfile.REGTYPE, b""), ("h", tarfile.LNKTYPE, b""), ("n" * 300, tarfile.REGTYPE, b"y")),
        ),
    ),
    "event-file": Target(
        _check_event_file,
        (merge_lhe.MergeError,),
        (
            b'<LesHouchesEvents version="3.0"><!-- a --><header><b>c</b></header><init>2212 2212 1 1 0 0 1 1 3 2\n'
            b"1 2 3 4\n1d1 2 3 5\n</init>\n<event>\n0 4\n</event><eventgroup><event>0</event></eventgroup>"
            b"</LesHouchesEvents>",
        ),
    ),
    "pythia-result": Target(
        _check_result,
        UNUSABLE,
        (
            b'{"edges": [1, 2], "counts": [3], "cross_section_pb": 1.5, "cross_section_error_pb": 0.1, "events": 3,'
            b' "tried": 4}',
        ),
    ),
    "root-file": Target(_check_root_file, seeds=_PATCHES),
    "dataset": Target(_check_dataset, (NoFiles,), (b"# ours\n/etc/passwd\n", b"/etc/passwd\n/etc/passwd", b"a\n")),
    "notified": Target(
        _check_notified,
        seeds=(b'{"since": 1.5, "sent": {"k3f9zq2m/done": 1.5}, "attempts": {"a": 3}, "stalled_since": {"a": 1}}',),
    ),
    "log-lines": Target(_check_log_lines, seeds=(b"2026-11-23T01:02:03 INFO k3f9zq2m packed\n\x1b[2J\n",)),
    "live": Target(_check_live, seeds=(b"17\nevent 3\r\x1b[2Jevent 4\n",)),
    "local-job-document": Target(
        _check_local_job,
        (DamagedDocument, InvalidDocument),
        (
            b"<local-job index='1' state='active' batch='slurm' token='samgrid-0001' submitted='2026-11-23T01:02:03Z'"
            b" id='17_1' array='17' host='n7' pid='3' cpu-time='3.5'><slice first-event='1' events='40' seed='4711'/>"
            b"<evidence><seen source='log' said='queued' time='2026-11-23T01:02:03Z' state='pending'/></evidence>"
            b"<phase name='gen' done='3' total='40' unit='events' begun='2026-11-23T01:02:03Z'"
            b" changed='2026-11-23T01:02:03Z'/></local-job>",
        ),
    ),
    "manifest": Target(
        _check_manifest,
        (NoOutput,),
        (
            b'{\n "local_jobs": [\n  {"local_id": "1", "outcome": "failed", "cause": "signal"}\n ],\n "files": [\n'
            b'  {"path": "k3f9zq2m/a", "size": 3}\n ],\n "missing": [\n  {"local_id": "2", "what": ["a"]}\n ],\n'
            b' "refused": [\n  {"path": "a", "reason": "b"}\n ]\n}\n',
        ),
    ),
    "repair": Target(
        _check_repair,
        seeds=(
            b"<grid-job id='k3f9zq2m' type='command' retries='2' name='a'><request folder='/'><attribute name="
            b"'samgrid_type'><value>command</value></attribute></request><slices count='30' size='7500' seed='1'/>"
            b"<summary><item name='a'>b</item></summary><steps>",
        ),
    ),
    "backup-note": Target(
        lambda data: _check_backup(data, _make_database()),
        (BackupError,),
        (b'{"jobs": "/j", "taken": "2026-11-23T01:02:03Z"}',),
    ),
    "backup-database": Target(
        _check_backup_database, (BackupError, DatabaseError), _PATCHES
    ),
    "gram-manifest": Target(
        _check_gram_manifest,
        (InstallError,),
        (
            b'{"services": ["samgrid"], "events": true, "state": "/s", "files": {"/etc/a": ["sum"]}, "links":'
            b' {"/etc/b": "a"}, "folders": ["/etc/c"]}',
        ),
    ),
    "gram-description": Target(
        of_text(_check_gram_request),
        (BadDescription, RefusedRequest),
        (
            b'{"description": {"executable": ["/bin/true"], "count": ["3"], "stdin": ["/dev/null"], "maxtime": ["7"],'
            b' "environment": [["A", "b"]]}, "environment": {"X509_USER_PROXY": "/x"}}',
        ),
    ),
    "gram-argument-file": Target(
        of_text(read_argument_file),
        (BadDescription,),
        (b"grami_program='/bin/echo'\ngrami_args='\"a b\" \"c\\\\\"'\ngrami_env='\"N\" \"v\"'\ngrami_job_type='1'\n",),
    ),
    "proxy": Target(read_proxy_expiry, (ValueError,), _recorded("credentials/proxy.pem", 8000)),
    "token": Target(read_token_expiry, (ValueError,), (b"e30.eyJleHAiOjE4MDAwMDAwMDB9.c2ln", b"opaque")),
    "dataset-list": Target(of_text(read_list), (UnknownDataset,), (b"/data/a.root\n/data/b.root\n",)),
    "fork-start": Target(_check_start, (StartRefused,), (b"100;t;executable=/sh;arguments=c;environment=A=b\n",)),
    "fork-run": Target(of_text(read_run), seeds=(b"process 1 2 00000000-0000-0000-0000-000000000000\nend 8 0 7\n",)),
    "fork-submission": Target(
        of_text(read_submission),
        (ValueError,),
        (b'{"command":["a"],"directory":"/","environment":[["A","b"]]}',),
    ),
    "fork-arguments": Target(of_text(_check_fork_commands), seeds=(b"250", b"t-1.3", b"A=b", b"7")),
    "page": Target(
        _check_page,
        seeds=(
            b"/jobs/x?token=a-token-of-24-characters&q=1\nhost: localhost:8642\nsec-fetch-site: none",
            b"/\nhost: [::1]:1\norigin: http://[::1]:1\nauthorization: Bearer a-token-of-24-characters\ncookie: a=b; c",
        ),
    ),
    "site": Target(
        of_text(_check_site),
        seeds=(
            b"/?state=failed&page=2&type=x&owner=d0",
            b"/jobs/k3f9zq2m?kind=failed&page=1",
            b"/jobs/k3f9zq2m/local/3",
            b"/jobs/k3f9zq2m/local/3/stdout",
            b"/jobs/k3f9zq2m/output.tar",
            b"/static/live.js",
        ),
    ),
    "listen": Target(of_text(read_listen), (ValueError,), (b"127.0.0.1:8642", b"[::1]:1")),
    "query": Target(of_text(_check_query), (BadExpression,), (b"//local-job[@state='done']/@id", b"re:test('a','b')")),
}  # fmt: skip
"""By name; what is kept of one is in tests/recorded/fuzz/NAME."""
