"""What goes out to the local jobs: the driver, as the account's configuration wants it."""

import errno
import hashlib
import os
import re
import socket
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

from adapters import Value
from batch_adapters.fork.adapter import FORK
from batch_adapters.slurm import SLURM
from handlers.command import CommandAdapter
from jobmanager.database.grid_job import GramOrigin
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.job_types import HandlerError, HandlerUnreachable
from jobmanager.requests.request_handler import make_adapter
from jobmanager.run_grid_job import cut_grid_job
from jobmanager.site.account import Account
from jobmanager.site.settings import SandboxSettings, SiteSettings, Transfer
from jobmanager.submission import packing
from jobmanager.submission.credential_copies import bring_credentials
from jobmanager.submission.packing import find_entries, pack_sandbox
from sandbox.driver import DriverPlan
from sandbox.files import SandboxRefused, TarLimits, remove_folder
from sandbox.pack import write_sandbox
from tests.unit.jobmanager.credential_files import make_token, write_secret

RECORDED = Path(__file__).parents[3] / "recorded"


def pack(
    account: Account,
    batch: str,
    sandbox: SandboxSettings,
    *given: tuple[str, tuple[Value, ...]],
    origin: GramOrigin | None = None,
    proxy: str = "",
) -> str:
    """The driver of a grid job on a batch system."""
    site = SiteSettings(batch_system=batch)
    account = Account(account.places, replace(account.configuration, site=site, sandbox=sandbox))
    request = [("samgrid_type", ("command",)), ("executable", ("/bin/true",)), *given]
    job_id = accept_grid_job(account, request, Path("/"), origin, proxy)
    job = account.database.grid_jobs.get(job_id)
    account.places.sandbox(job_id).mkdir(parents=True, exist_ok=True)
    bring_credentials(account, job_id)
    pack_sandbox(account, job, make_adapter(account, job.request(), job.request_folder), cut_grid_job(job))
    return account.places.driver(job_id).read_text()


@pytest.mark.parametrize(
    ("batch", "line"),
    [
        ("sge", 'job_folder="$TMPDIR"'),
        ("pbs", 'job_folder="$TMPDIR"'),
        ("condor", 'job_folder="$_CONDOR_SCRATCH_DIR"'),
        *((batch, None) for batch in ("slurm", "lsf", "torque", "fork")),
    ],
)
def test_scratch_folders_lie_in_the_job_folders_of_batch_systems_that_have_them(
    account: Account, batch: str, line: str | None
) -> None:
    lines = pack(account, batch, SandboxSettings()).splitlines()
    assert [found for found in lines if found.startswith("job_folder=")] == ([line] if line else [])
    assert "scratch_base=/tmp" in lines


def test_a_scratch_folder_that_the_site_has_named_is_used_whatever_the_batch_system_makes(account: Account) -> None:
    lines = pack(account, "sge", SandboxSettings(scratch_folder=Path("/data/scratch"))).splitlines()
    assert not [line for line in lines if "job_folder" in line]
    assert "scratch_base=/data/scratch" in lines


def test_where_files_are_carried_the_driver_knows_no_path_of_ours(account: Account) -> None:
    driver = pack(account, "condor", SandboxSettings(transfer=Transfer.BATCH_SYSTEM))
    assert str(account.places.root) not in driver
    assert "sandbox=$PWD" in driver.splitlines()


def test_programs_find_the_copy_of_a_credential_and_not_its_file(account: Account, tmp_path: Path) -> None:
    token = write_secret(tmp_path / "token", make_token(4_000_000_000))
    environment = ("environment", (("BEARER_TOKEN_FILE", "/somewhere/else"), ("COLOUR", "red")))
    driver = pack(account, "slurm", SandboxSettings(), ("bearer_token_file", (str(token),)), environment)
    (job,) = account.database.grid_jobs.list_open()
    lines = [line.strip() for line in driver.splitlines()]
    copy = account.places.credentials(job.id) / "bearer_token_file"
    assert [line for line in lines if "BEARER" in line] == [f"export BEARER_TOKEN_FILE={copy}"]
    assert "export COLOUR=red" in lines
    assert str(token) not in driver
    assert make_token(4_000_000_000).decode() not in driver


@pytest.mark.parametrize(("transfer", "is_path"), [(Transfer.SHARED, True), (Transfer.BATCH_SYSTEM, False)])
def test_programs_of_grams_jobs_find_the_copy_of_grams_proxy(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transfer: Transfer, is_path: bool
) -> None:
    monkeypatch.setattr("jobmanager.requests.credentials._find_not_after", lambda certificate: 4e9)
    proxy = write_secret(tmp_path / "proxy", (RECORDED / "credentials" / "proxy.pem").read_bytes())
    of_gram = ("environment", (("X509_USER_PROXY", str(proxy)),))
    driver = pack(account, "condor", SandboxSettings(transfer=transfer), of_gram, proxy=str(proxy))
    (line,) = [line.strip() for line in driver.splitlines() if "export X509_USER_PROXY" in line]
    (job,) = account.database.grid_jobs.list_open()
    copy = account.places.credentials(job.id) / "x509_user_proxy"
    wanted = str(copy) if is_path else '"$sandbox"/x509_user_proxy'
    assert line == f"export X509_USER_PROXY={wanted}"


def test_the_driver_is_told_what_the_request_the_site_and_the_batch_system_say(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[DriverPlan] = []
    packed: list[object] = []

    def note(plan: DriverPlan) -> str:
        plans.append(plan)
        return ""

    def write_noted(work_area: Path, path: Path, limits: TarLimits, site_files: Sequence[Path]) -> str:
        packed.append((limits, site_files))
        return write_sandbox(work_area, path, limits, site_files)

    monkeypatch.setattr(packing, "render_driver", note)
    monkeypatch.setattr(packing, "write_sandbox", write_noted)
    file = tmp_path / "file"
    file.touch()
    site = SandboxSettings(scratch_folder=tmp_path, site_files=(file,))
    wanted = {"count": "3", "max_cpu_time": "7", "max_memory": "9", "cores": "4", "directory": str(tmp_path)}
    given = [(name, (value,)) for name, value in {"stdin": str(file)[1:], **wanted}.items()]
    whole, plain = (GramOrigin(str(is_plain), "https://h/", "/null", "/null", is_plain) for is_plain in (False, True))
    pack(account, "slurm", site, ("environment", (("COLOUR", "red"),)), *given, origin=whole)
    pack(account, "fork", SandboxSettings(), origin=plain)
    monkeypatch.setattr(CommandAdapter, "getPhaseOfLine", lambda self, line: None)
    few = SandboxSettings(max_input_files=5, max_input_size=7, site_files=(file,))
    pack(account, "fork", few, ("stdin", (str(file),)))
    limits = TarLimits(site.max_input_files, site.max_input_size * 10**6)
    assert packed == [(limits, (file,)), (limits, ()), (TarLimits(5, 7 * 10**6), (file,))]
    expected = [
        DriverPlan(
            grid_job=plan.grid_job,
            sandbox=account.places.sandbox(plan.grid_job),
            results=account.places.results(plan.grid_job),
            scratch_base=scratch,
            sandbox_sha256=hashlib.sha256(account.places.sandbox_tar(plan.grid_job).read_bytes()).hexdigest(),
            local_jobs=account.database.grid_jobs.get(plan.grid_job).count,
            local_id_words=batch.local_id_words,
            index_words=batch.index_words,
            started_words=batch.started_words,
            host_words=batch.host_words,
        )
        for plan, batch, scratch in zip(plans, (SLURM, FORK, FORK), (tmp_path, Path("/tmp"), Path("/tmp")), strict=True)
    ]
    assert plans[0] == replace(
        expected[0],
        environment=(("COLOUR", "red"),),
        directory=str(tmp_path),
        stdin=".samgrid-stdin",
        max_cpu_minutes=7,
        max_memory_mb=9,
        cores=4,
        has_site_files=True,
    )
    assert plans[1] == replace(expected[1], is_bare=True, umask="022")
    assert plans[2] == replace(expected[2], has_site_files=True, stdin=str(file), copies_lines=True)
    assert expected[0].local_jobs == 3


def test_the_path_of_a_work_area_with_a_colon_is_none_of_a_path_variables(account: Account, tmp_path: Path) -> None:
    areas = [tmp_path / name for name in ("area", "a:b")]
    for area in areas:
        area.mkdir()
    assert [packing._is_bare(account, area) for area in areas] == [True, False]


def test_each_local_job_is_told_its_slice(account: Account, tmp_path: Path) -> None:
    given: list[tuple[str, tuple[Value, ...]]] = [
        *(("samgrid_type", ("pythia",)), ("events", ("5",))),
        *(("events_per_local_job", ("3",)), ("seed", ("7",))),
    ]
    job = account.database.grid_jobs.get(accept_grid_job(account, given, tmp_path))
    entries = find_entries(make_adapter(account, given, tmp_path), job, cut_grid_job(job))
    assert [(entry.first_event, entry.events, entry.seed) for entry in entries] == [(1, 2, 7), (3, 3, 8)]


def test_while_a_handler_fills_the_work_area_it_is_ours_alone_and_the_question_is_noted(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def note(self: CommandAdapter, folder: Path) -> None:
        seen.extend([stat.S_IMODE(folder.stat().st_mode), *(path.name for path in folder.parent.glob("handler-*"))])

    monkeypatch.setattr(CommandAdapter, "prepareWorkArea", note)
    pack(account, "fork", SandboxSettings())
    assert seen == [0o700, "handler-pack.asked"]


def test_a_standard_input_that_has_grown_when_it_is_packed_is_named(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "input"
    file.touch()
    monkeypatch.setattr(CommandAdapter, "prepareWorkArea", lambda self, folder: os.truncate(file, 10**11))
    with pytest.raises(SandboxRefused, match=r"^stdin: .* this site takes"):
        pack(account, "fork", SandboxSettings(), ("stdin", (str(file)[1:],)))


def raised_from(cause: BaseException, error: Exception) -> Exception:
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), OSError, id="full disk"),
        *(
            pytest.param(error, HandlerUnreachable, id=name)
            for name, error in {
                "FUSE without its server": OSError(errno.ENOTCONN, "Transport endpoint is not connected"),
                "NFS mounted softerr": TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
                "no process": BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
                "our own limit of memory": OSError(errno.ENOMEM, "Cannot allocate memory"),
                "no server": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
                "a silent server": TimeoutError("timed out"),
                "no way": OSError(errno.EHOSTUNREACH, "No route to host"),
                "no name server": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
                "a URL": URLError(TimeoutError("timed out")),
                "a busy server": HTTPError("https://catalogue/", 503, "Service Unavailable", Message(), None),
                "a silent command": subprocess.TimeoutExpired("sam", 60),
                "a library's own": raised_from(ConnectionResetError("reset"), ValueError("no catalogue")),
            }.items()
        ),
        *(
            pytest.param(error, HandlerError, id=name)
            for name, error in {
                "no file": FileNotFoundError(errno.ENOENT, "No such file or directory"),
                "its own words": OSError("no such run"),
                "a URL of no kind": URLError("unknown url type: htp"),
                "a URL of no file": URLError(FileNotFoundError(errno.ENOENT, "No such file or directory")),
                "a page that is not there": HTTPError("https://catalogue/", 404, "Not Found", Message(), None),
            }.items()
        ),
    ],
)
@pytest.mark.parametrize("method", ["prepareWorkArea", "getCommandAndArguments"])
def test_only_an_error_of_the_machine_or_the_network_is_no_fault_of_a_handlers(
    account: Account, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, expected: type[Exception]
) -> None:
    def fail(self: CommandAdapter, given: object) -> None:
        raise error

    monkeypatch.setattr(CommandAdapter, method, fail)
    with pytest.raises((OSError, HandlerError), match=re.escape(str(error).rpartition("] ")[2])) as caught:
        pack(account, "fork", SandboxSettings())
    assert type(caught.value) is expected


def put_link(folder: Path) -> None:
    remove_folder(folder)
    folder.symlink_to("/")


def put_program(folder: Path) -> None:
    remove_folder(folder)
    folder.touch(mode=0o700)


@pytest.mark.parametrize("name", ["sandbox", "work-area"])
@pytest.mark.parametrize("harm", [remove_folder, put_link, put_program], ids=["removed", "a link", "a program"])
def test_a_handler_that_takes_away_our_folders_is_blamed(
    account: Account, monkeypatch: pytest.MonkeyPatch, name: str, harm: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(CommandAdapter, "prepareWorkArea", lambda self, folder: harm(folder.parent / name))
    with pytest.raises(HandlerError, match=f"handler command has removed, replaced or closed the folder .*/{name}$"):
        pack(account, "fork", SandboxSettings())
