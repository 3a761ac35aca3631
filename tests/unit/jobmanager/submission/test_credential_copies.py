"""The copies of credentials that programs have: private, and as their files are."""

import os
import stat
import time
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.completion.collection import collect_grid_job
from jobmanager.database.database import Choice
from jobmanager.database.grid_job import CredentialEntry, GridJob, Lapse
from jobmanager.monitor.worker import do_task
from jobmanager.monitor.workers import TRY_LATER
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account
from jobmanager.states.aggregation import Task
from jobmanager.submission.credential_copies import bring_credentials, follow_credentials
from jobmanager.views.grid_jobs import render_details
from jobmanager.views.text import render_moment
from tests.unit.jobmanager.completion.test_collection import add_ended, state_of
from tests.unit.jobmanager.credential_files import make_token, write_secret
from tests.unit.toy_system import GRID_JOB, ToySystem

LATER = 4_000_000_000
TOKEN = "bearer_token_file"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "token", make_token(LATER))


def accept(account: Account, source: Path) -> str:
    """A grid job with that token, of which the copy is there."""
    given = {"samgrid_type": "command", "executable": "/bin/true", TOKEN: str(source)}
    job_id = accept_grid_job(account, [(name, (value,)) for name, value in given.items()], Path("/"))
    account.places.grid_job(job_id).mkdir(parents=True)
    bring_credentials(account, job_id)
    return job_id


def entry_of(account: Account, job_id: str) -> CredentialEntry:
    (entry,) = account.database.grid_jobs.get(job_id).credentials
    return entry


def copy_of(account: Account, job_id: str) -> Path:
    return account.places.credentials(job_id) / TOKEN


def test_a_copy_is_the_accounts_alone_and_its_expiry_is_known(account: Account, source: Path) -> None:
    before = os.umask(0)
    try:
        job_id = accept(account, source)
    finally:
        os.umask(before)
    copy = copy_of(account, job_id)
    assert copy.read_bytes() == source.read_bytes()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (copy, copy.parent)] == [0o600, 0o700]
    assert [path.name for path in copy.parent.iterdir()] == [TOKEN]
    assert entry_of(account, job_id) == CredentialEntry(TOKEN, str(source), expires=LATER)


def test_a_copy_follows_its_file_and_never_changes_in_place(account: Account, source: Path) -> None:
    job_id = accept(account, source)
    with copy_of(account, job_id).open("rb") as opened:
        write_secret(source, make_token(LATER + 60))
        assert do_task(account, Task.CREDENTIALS, "all") == 0
        assert opened.read() == make_token(LATER)
    assert copy_of(account, job_id).read_bytes() == make_token(LATER + 60)
    assert entry_of(account, job_id).expires == LATER + 60


def test_what_has_not_changed_is_written_nowhere(account: Account, source: Path) -> None:
    job_id = accept(account, source)
    before = copy_of(account, job_id).stat().st_ino
    version = account.database.grid_jobs.get(job_id).to_bytes()
    follow_credentials(account)
    assert copy_of(account, job_id).stat().st_ino == before
    assert account.database.grid_jobs.get(job_id).to_bytes() == version


def test_a_file_that_has_gone_or_is_being_written_costs_no_copy(account: Account, source: Path) -> None:
    job_id = accept(account, source)
    write_secret(source, b"")
    follow_credentials(account)
    assert entry_of(account, job_id).problem == f"{source} is no token: that is one word of printable ASCII"
    source.unlink()
    bring_credentials(account, job_id)
    assert entry_of(account, job_id).problem == f"{source} cannot be read: No such file or directory"
    assert copy_of(account, job_id).read_bytes() == make_token(LATER)
    write_secret(source, make_token(LATER))
    follow_credentials(account)
    assert entry_of(account, job_id) == CredentialEntry(TOKEN, str(source), expires=LATER)


def test_what_a_program_did_to_its_copy_is_made_good(account: Account, source: Path, tmp_path: Path) -> None:
    job_id = accept(account, source)
    copy = copy_of(account, job_id)
    copy.unlink()
    copy.symlink_to(write_secret(tmp_path / "others", b"not ours"))
    copy.parent.chmod(0o755)
    follow_credentials(account)
    assert (tmp_path / "others").read_bytes() == b"not ours"
    assert copy.read_bytes() == make_token(LATER)
    assert not copy.is_symlink()
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_a_folder_that_became_a_link_is_not_written_into_and_keeps_no_other_grid_job_waiting(
    account: Account, source: Path, tmp_path: Path
) -> None:
    jobs = sorted([accept(account, source), accept(account, source)])
    for spoiled, other in (jobs, reversed(jobs)):
        folder = account.places.credentials(spoiled)
        folder.rename(tmp_path / spoiled)
        folder.symlink_to(tmp_path / spoiled)
        before = source.read_bytes()
        write_secret(source, before + b".")
        follow_credentials(account)
        assert copy_of(account, other).read_bytes() == source.read_bytes()
        assert (tmp_path / spoiled / TOKEN).read_bytes() == before
        folder.unlink()
        (tmp_path / spoiled).rename(folder)
        follow_credentials(account)


@pytest.mark.parametrize("step", ["replace_file", "GridJobs.change"], ids=["at the copy", "at the document"])
def test_a_kill_between_document_and_copy_loses_no_renewal(
    account: Account, source: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    job_id = accept(account, source)
    write_secret(source, make_token(LATER + 60))

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        module = "jobmanager.database.grid_jobs" if "." in step else "jobmanager.submission.credential_copies"
        patch.setattr(f"{module}.{step}", die)
        with pytest.raises(KeyboardInterrupt):
            follow_credentials(account)
    follow_credentials(account)
    assert copy_of(account, job_id).read_bytes() == make_token(LATER + 60)
    assert entry_of(account, job_id) == CredentialEntry(TOKEN, str(source), expires=LATER + 60)


def test_a_grid_job_waits_for_its_credential(
    account: Account, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"samgrid_type": "command", "executable": "/bin/true", TOKEN: str(source)}
    job_id = accept_grid_job(account, [(name, (value,)) for name, value in given.items()], Path("/"))
    account.places.grid_job(job_id).mkdir(parents=True)
    token = source.read_bytes()
    source.unlink()
    # It may come back: no grid job ends for that.
    assert do_task(account, Task.SUBMIT, job_id) == TRY_LATER
    assert f"{TOKEN}: {source} cannot be read: No such file" in capsys.readouterr().err
    assert account.database.local_jobs.count(job_id) == {}
    assert not account.database.grid_jobs.get(job_id).cancelled
    write_secret(source, token)
    bring_credentials(account, job_id)
    assert copy_of(account, job_id).exists()


def test_grams_own_proxy_is_no_condition(account: Account, tmp_path: Path) -> None:
    given = [("samgrid_type", ("command",)), ("executable", ("/bin/true",))]
    proxy = write_secret(tmp_path / "proxy", b"-")
    job_id = accept_grid_job(account, given, Path("/"), proxy=str(proxy))
    account.places.grid_job(job_id).mkdir(parents=True)
    proxy.unlink()
    bring_credentials(account, job_id)
    (entry,) = account.database.grid_jobs.get(job_id).credentials
    assert (entry.name, entry.is_gram_default) == ("x509_user_proxy", True)
    assert entry.problem == f"{proxy} cannot be read: No such file or directory"


def test_a_renewal_after_the_expiry_is_remembered(account: Account, source: Path) -> None:
    job_id = accept(account, source)
    account.database.grid_jobs.change(job_id, lambda job: job.put_credentials([_expired(job)]))
    write_secret(source, make_token(LATER + 60))
    begun = int(time.time())
    follow_credentials(account)
    (lapse,) = entry_of(account, job_id).lapses
    assert lapse.begin == 1000
    assert begun <= lapse.end <= time.time()


def _expired(job: GridJob) -> CredentialEntry:
    (entry,) = job.credentials
    return CredentialEntry(entry.name, entry.source, expires=1000)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (3 * 3600, f"expires at {render_moment(LATER)}, in 3 h"),
        (0, f"has expired at {render_moment(LATER)}: renew "),
    ],
)
def test_status_tells_when_a_credential_expires_and_what_keeps_it_from_being_followed(
    account: Account, source: Path, before: int, words: str
) -> None:
    job_id = accept(account, source)
    source.unlink()
    follow_credentials(account)
    (row,) = account.database.grid_jobs.overview(choice=Choice(ids=(job_id,)))
    (line,) = [line for line in render_details(account, row, LATER - before).splitlines() if TOKEN in line]
    assert words in line
    assert line.endswith(f"; it is not followed: {source} cannot be read: No such file or directory")


@pytest.mark.parametrize(("when", "since"), [(9, None), (10, 10), (19, 10), (20, None), (30, 30)])
def test_it_is_known_whether_a_credential_had_expired_then(when: int, since: int | None) -> None:
    entry = CredentialEntry(TOKEN, "/x", expires=30, lapses=(Lapse(10, 20),))
    assert entry.find_lapse(when) == since


def test_copies_go_with_the_end_of_the_grid_job_and_no_earlier(toy: ToySystem) -> None:
    add_ended(toy, "17")
    folder = toy.account.places.credentials(GRID_JOB)
    folder.mkdir(parents=True)
    write_secret(folder / TOKEN, make_token(LATER))
    toy.answers("queue", f"17 R {GRID_JOB}-1 -")
    collect_grid_job(toy.account, GRID_JOB)
    assert (state_of(toy), folder.exists()) == (State.ACTIVE, True)
    toy.answers("queue")
    with toy.database.transaction():
        (job,) = toy.database.local_jobs.all_of(GRID_JOB)
        job.state = State.DONE
        toy.database.local_jobs.put(GRID_JOB, [job])
    collect_grid_job(toy.account, GRID_JOB)
    assert (state_of(toy).is_final, folder.exists()) == (True, False)
