"""What a backup holds of an account that works meanwhile, and what is made of a backup."""

import io
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.control import backup
from jobmanager.control.backup import BackupError, write_backup
from jobmanager.control.removal import remove_grid_job
from jobmanager.control.restoring import OpenJobs, restore
from jobmanager.database.database import LAYOUT, Database, DatabaseError
from jobmanager.database.local_job import Outcome
from jobmanager.site.account import Account
from jobmanager.site.places import StatePlaces
from sandbox.files import MAX_DEPTH, take_lock
from tests.conftest import file_size_limit
from tests.unit.grid_jobs import make_whole, put, put_local_jobs
from tests.unit.jobmanager.control.test_removal import A, B, C, put_grid_job, put_whole
from tests.unit.traps import TRAPS

RECORDED = Path(__file__).parents[3] / "recorded"


def put_file(account: Account, name: str, text: str, job_id: str = A) -> Path:
    path = account.places.grid_job(job_id) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def elsewhere(account: Account, name: str = "elsewhere") -> Account:
    return Account(StatePlaces(account.places.root.with_name(name)), account.configuration)


def files_of(account: Account) -> dict[str, str]:
    """Every file but the job database, by its name."""
    root = account.places.root
    names = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in names.items() if not name.startswith("jobs.db")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.tar"


def do_while_read(monkeypatch: pytest.MonkeyPatch, job_id: str, act: Callable[[], object]) -> None:
    """Do something when the folder of a grid job has been read for the first time."""
    add = backup._Backup.add
    done: list[object] = []

    def add_and_act(self: backup._Backup, path: Path, member: str) -> None:
        add(self, path, member)
        if path.name == job_id and not done:
            done.append(act())

    monkeypatch.setattr(backup._Backup, "add", add_and_act)


def test_what_is_restored_is_what_was_there_but_for_what_belongs_to_processes(account: Account, file: Path) -> None:
    put_grid_job(account)
    put_file(account, f"{A}.tar", "outputs")
    put_file(account, "results/a.output/worker.lock", "a program's own")
    (account.places.grid_job(A) / "results" / "link").symlink_to("a.output")
    program = put_file(account, "sandbox/driver.sh", "#!/bin/sh")
    program.chmod(0o700)
    account.places.withdrawn.mkdir()
    (account.places.withdrawn / "uniqid").touch()
    account.places.notified.write_text("{}")
    wanted = files_of(account)
    for name in ("worker.lock", "handler-pack.asked", "x.tmp", "work-area/half"):
        put_file(account, name, "")
    for path in (account.places.monitor_log, account.places.fork_spool / "spool.db", account.places.monitor_lock):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert write_backup(account, file) == []
    other = elsewhere(account)
    assert restore(other, file, OpenJobs.REFUSED) == []
    assert files_of(other) == wanted
    assert (other.places.grid_job(A) / "results" / "link").readlink() == Path("a.output")
    assert other.places.driver(A).stat().st_mode & 0o777 == 0o700
    assert (other.places.root.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert [row.id for row in other.database.grid_jobs.overview()] == [A]
    assert list(other.database.checking.list_document_faults()) == []


def test_no_credential_is_in_a_backup_and_they_are_followed_again(account: Account, file: Path) -> None:
    put_grid_job(account)
    put_file(account, "credentials/bearer_token_file", "secret")
    put_file(account, "results/credentials/mine", "a program's own")
    assert write_backup(account, file) == []
    assert b"secret" not in file.read_bytes()
    other = elsewhere(account)
    restore(other, file, OpenJobs.REFUSED)
    assert files_of(other).keys() == {f"jobs/{A}/results/credentials/mine"}
    assert other.places.credentials(A).stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_kept_is_told_and_no_link_is_followed(account: Account, file: Path, tmp_path: Path) -> None:
    put_grid_job(account)
    (tmp_path / "secret").write_text("secret")
    folder = put_file(account, "results/kept", "kept").parent
    (folder / "out").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    deep = folder.joinpath(*["d"] * MAX_DEPTH)
    deep.mkdir(parents=True)
    with (folder / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    left_out = write_backup(account, file)
    told = sorted((text.split(":")[0].removeprefix(f"jobs/{A}/results/"), text.split(": ", 1)[1]) for text in left_out)
    assert [name for name, _ in told if not name.startswith("d/d")] == ["out", "pipe", "sparse"]
    assert any("folders deep" in why for _, why in told)
    assert b"secret" not in file.read_bytes().replace(os.fsencode(tmp_path / "secret"), b"")
    other = elsewhere(account)
    restore(other, file, OpenJobs.REFUSED)
    assert files_of(other) == {f"jobs/{A}/results/kept": "kept"}


def test_a_folder_of_results_that_has_become_a_link_is_not_followed(
    account: Account, file: Path, tmp_path: Path
) -> None:
    put_grid_job(account)
    account.places.grid_job(A).parent.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    account.places.grid_job(A).symlink_to(tmp_path / "outside")
    assert len(write_backup(account, file)) == 1
    assert b"secret" not in file.read_bytes()


def test_a_file_that_shrinks_or_goes_while_it_is_read_spoils_no_other(
    account: Account, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account)
    for name, text in {"results/a": "gone", "results/b": "grows", "results/c": "shrinks", "results/d": "last"}.items():
        put_file(account, name, text)
    results = account.places.results(A)

    def change(descriptor: int, status: os.stat_result) -> int:
        if status.st_size == len("grows"):
            (results / "b").write_text("grows and grows")
        elif status.st_size == len("shrinks"):
            (results / "c").write_text("s")
        (results / "a").unlink(missing_ok=True)
        return 0

    listdir = os.listdir

    def list_and_remove(folder: int) -> list[str]:
        names = listdir(folder)
        (results / "a").unlink(missing_ok=True)
        return names

    monkeypatch.setattr(backup, "count_holes", change)
    monkeypatch.setattr("os.listdir", list_and_remove)
    told = write_backup(account, file)
    monkeypatch.undo()
    assert told == [f"jobs/{A}/results/c: shrank while it was read: the rest is zeros"]
    other = elsewhere(account)
    restore(other, file, OpenJobs.REFUSED)
    found = {name.removeprefix(f"jobs/{A}/results/"): text for name, text in files_of(other).items()}
    assert found == {"b": "grows", "c": "s" + "\0" * 6, "d": "last"}


def test_a_grid_job_that_ends_while_its_folder_is_read_is_in_it_as_it_ended(
    account: Account, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account, ended=None)
    output = put_file(account, "results/a.output/file", "output")

    def end() -> None:
        """As collection does."""
        put_file(account, f"{A}.tar", "all outputs")
        with account.database.transaction():
            job = account.database.grid_jobs.get(A)
            job.end(State.DONE, 1)
            account.database.grid_jobs.put(job)
            local_job = account.database.local_jobs.get(A, 1)
            local_job.state, local_job.outcome = State.DONE, Outcome.SUCCEEDED
            account.database.local_jobs.put(A, [local_job])
        shutil.rmtree(output.parent)

    do_while_read(monkeypatch, A, end)
    write_backup(account, file)
    other = elsewhere(account)
    assert restore(other, file, OpenJobs.REFUSED) == []
    assert files_of(other) == {f"jobs/{A}/{A}.tar": "all outputs"}
    assert other.database.grid_jobs.get(A).state is State.DONE
    assert other.database.local_jobs.get(A, 1).state is State.DONE
    assert list(other.database.checking.list_document_faults()) == []


def test_a_grid_job_that_is_removed_while_its_folder_is_read_is_not_in_it(
    account: Account, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in (A, B):
        put_grid_job(account, job_id)
        put_file(account, "log", job_id, job_id)
    do_while_read(monkeypatch, A, lambda: remove_grid_job(account, A))
    write_backup(account, file)
    other = elsewhere(account)
    restore(other, file, OpenJobs.REFUSED)
    assert files_of(other) == {f"jobs/{B}/log": B}
    assert [row.id for row in other.database.grid_jobs.overview()] == [B]


def test_backups_and_writers_do_not_wait_for_each_other(
    account: Account, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_grid_job(account)
    with account.database.transaction():
        Database(account.places.database).copy_to(file)
    put_file(account, "log", "log")
    do_while_read(monkeypatch, A, lambda: put_grid_job(account, B))
    write_backup(account, file)
    assert account.database.grid_jobs.has(B)


def test_a_full_disk_is_one_sentence_and_the_backup_before_stays(account: Account, file: Path) -> None:
    put_grid_job(account)
    put_file(account, "results/large", "x" * 3_000_000)
    write_backup(account, file)
    before = file.read_bytes()
    for size in (1000, 1_000_000):
        with file_size_limit(size), pytest.raises((BackupError, DatabaseError)) as told:
            write_backup(account, file)
        assert "\n" not in str(told.value)
    assert str(told.value) == f"{file} could not be written: File too large"
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, "state"]


def test_what_is_given_up_is_followed_by_nobody_else(account: Account, file: Path) -> None:
    put_grid_job(account)
    write_backup(account, file)
    account.database.close()
    account.places.root.rename(file.with_name("moved"))
    code = "print(); import time; time.sleep(600)"
    words = [sys.executable, "-uc", code, "--state-dir", str(account.places.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as monitor:
        assert monitor.stdout is not None
        assert monitor.stdout.read(1)  # before, it may have no command line yet
        with pytest.raises(BackupError, match=f"process {monitor.pid} works for {account.places.root} still"):
            restore(account, file, OpenJobs.FOLLOWED)
        monitor.kill()
    assert restore(account, file, OpenJobs.FOLLOWED) == []


def test_where_there_is_no_job_database_no_backup_is_made(account: Account, file: Path) -> None:
    with pytest.raises(BackupError, match="nothing to make a backup of"):
        write_backup(account, file)
    assert not file.exists()


def test_nothing_is_restored_over_anything(account: Account, file: Path) -> None:
    put_grid_job(account)
    write_backup(account, file)
    with pytest.raises(BackupError, match="is not empty: move it away"):
        restore(account, file, OpenJobs.REFUSED)
    other = elsewhere(account)
    other.places.root.mkdir()
    restore(other, file, OpenJobs.REFUSED)
    assert other.database.grid_jobs.has(A)


def write_members(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"other": b""}, "no backup of samgrid's"),
        ({"backup.json": b"[]", "jobs.db": b""}, "no backup of samgrid's"),
        ({"backup.json": b'{"jobs": "/"}'}, "no backup of samgrid's"),
        ({"jobs.db": b""}, r"no backup of samgrid's: \S+backup\.json: No such file or directory$"),
        ({"../outside": b"x"}, "leads out"),
        ({"backup.json": b'{"jobs": "/"}', "jobs.db": b"no database" * 999}, "not a database"),
    ],
    ids=["another tar", "a note without folder", "no database", "no note", "a name outside", "what is no database"],
)
def test_what_is_no_backup_makes_no_state_folder(
    account: Account, file: Path, members: dict[str, bytes], why: str
) -> None:
    write_members(file, members)
    other = elsewhere(account)
    with pytest.raises((BackupError, DatabaseError), match=why):
        restore(other, file, OpenJobs.REFUSED)
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, "state"]


@pytest.mark.parametrize("make", TRAPS)
def test_a_backup_takes_the_place_of_nothing_but_a_file(
    account: Account, file: Path, make: Callable[[Path], object]
) -> None:
    put_grid_job(account)
    make(file)
    with pytest.raises(FileExistsError, match="no regular file"):
        write_backup(account, file)
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, "state"]


def write_hostile(account: Account, file: Path, sql: str, **members: bytes) -> None:
    """A backup whose job database somebody has changed."""
    put_grid_job(account, ended=None)
    write_backup(account, file)
    path = file.with_name("hostile")
    path.write_bytes(read_member(file, "jobs.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA journal_mode = DELETE; {sql}")
    write_members(file, {"backup.json": read_member(file, "backup.json"), "jobs.db": path.read_bytes(), **members})
    path.unlink()


def read_member(file: Path, name: str) -> bytes:
    with tarfile.open(file) as tar:
        member = tar.extractfile(name)
        assert member is not None
        return member.read()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
        "CREATE TRIGGER endless AFTER UPDATE ON grid_job BEGIN DELETE FROM grid_job; END",
        "PRAGMA user_version = 6; CREATE VIEW endless AS SELECT 1",
    ],
    ids=["a view", "a trigger", "a view of an earlier layout"],
)
def test_no_program_in_a_restored_job_database_is_run(account: Account, file: Path, sql: str) -> None:
    write_hostile(account, file, sql)
    with pytest.raises(BackupError, match="'endless', which would be run"):
        restore(elsewhere(account), file, OpenJobs.LEFT_OUT)


def test_no_name_in_a_restored_job_database_leads_out_of_the_state_folder(account: Account, file: Path) -> None:
    (file.parent / "precious").touch()
    write_hostile(account, file, "UPDATE grid_job SET id = '../../precious'", **{"gram/a": b""})
    with pytest.raises(BackupError, match="not the id of a grid job"):
        restore(elsewhere(account), file, OpenJobs.LEFT_OUT)
    assert (file.parent / "precious").exists()


@pytest.mark.parametrize("name", ["jobs.db-journal", "jobs.db-wal", "fork/spool.db", "samgrid.toml"])
def test_nothing_is_restored_that_no_backup_holds(account: Account, file: Path, name: str) -> None:
    write_hostile(account, file, "", **{name: b"x"})
    with pytest.raises(BackupError, match="is in it"):
        restore(elsewhere(account), file, OpenJobs.LEFT_OUT)


def test_a_damaged_job_database_makes_no_state_folder(account: Account, file: Path) -> None:
    for number in range(200):
        put_grid_job(account, f"job{number:05}")
    account.database.close()
    content = bytearray(account.places.database.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"\xff" * 8192
    write_members(file, {"backup.json": b'{"jobs": "/"}', "jobs.db": bytes(content)})
    other = elsewhere(account)
    with pytest.raises((BackupError, DatabaseError), match=r"damaged|malformed"):
        restore(other, file, OpenJobs.REFUSED)
    assert not other.places.root.exists()


@pytest.mark.parametrize("layout", range(4, LAYOUT))
def test_a_backup_of_an_earlier_version_is_brought_up(
    account: Account, file: Path, tmp_path: Path, layout: int
) -> None:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((RECORDED / f"state-{layout}" / "jobs.sql").read_text(encoding="utf-8"))
    write_members(file, {"backup.json": b'{"jobs": "/"}', "jobs.db": path.read_bytes()})
    other = elsewhere(account)
    assert restore(other, file, OpenJobs.LEFT_OUT)
    assert {row.state for row in other.database.grid_jobs.overview()} <= {"done", "failed"}
    assert list(other.database.checking.list_document_faults()) == []


def test_what_had_not_ended_is_refused_left_out_or_followed_in_its_place(account: Account, file: Path) -> None:
    put_grid_job(account)
    put_grid_job(account, B, ended=None)
    put_file(account, "log", "open", B)
    account.places.gram.mkdir()
    (account.places.gram / B).touch()
    write_backup(account, file)
    other = elsewhere(account)
    with pytest.raises(BackupError, match=f"1 grid job had not ended .*{B}.* --leave-out"):
        restore(other, file, OpenJobs.REFUSED)
    with pytest.raises(BackupError, match="in the same place"):
        restore(other, file, OpenJobs.FOLLOWED)
    assert not other.places.root.exists()
    assert restore(other, file, OpenJobs.LEFT_OUT) == [B]
    assert [row.id for row in other.database.grid_jobs.overview()] == [A]
    assert files_of(other) == {}
    account.database.close()
    shutil.rmtree(account.places.root)
    same = elsewhere(account, "state")
    assert restore(same, file, OpenJobs.FOLLOWED) == [B]
    assert same.database.grid_jobs.get(B).cancelled_by == "us"
    assert not same.database.grid_jobs.get(A).cancelled


def test_a_whole_is_followed_where_its_last_step_has_begun(account: Account, file: Path) -> None:
    put_grid_job(account, A, ended=None)
    job = account.database.local_jobs.get(A, 1)
    job.token, job.local_id, job.state = f"{A}-1", f"{A}-1.1", State.ACTIVE
    put_local_jobs(account.database, A, job)
    put_whole(account, B, A, ended=None)
    put(account.database, make_whole(C, "production", "merge", production=A))
    write_backup(account, file)
    account.database.close()
    shutil.rmtree(account.places.root)
    same = elsewhere(account, "state")
    restore(same, file, OpenJobs.FOLLOWED)
    assert {job_id: same.database.grid_jobs.get(job_id).cancelled for job_id in (A, B, C)} == {
        **{A: False, B: False},
        C: True,
    }


def test_the_folders_of_grid_jobs_lie_where_the_nodes_see_them(account: Account, file: Path, tmp_path: Path) -> None:
    places = StatePlaces(account.places.root, tmp_path / "shared" / "ada")
    account = replace(account, places=places)
    put_grid_job(account)
    put_file(account, "log", "log")
    write_backup(account, file)
    other = Account(StatePlaces(tmp_path / "elsewhere", tmp_path / "other" / "ada"), account.configuration)
    restore(other, file, OpenJobs.REFUSED)
    assert other.places.log(A).read_text() == "log"
    assert sorted(path.name for path in other.places.root.iterdir()) == ["jobs.db"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["ada"]
    shutil.rmtree(other.places.root)
    with pytest.raises(BackupError, match=r"other/ada is not empty"):
        restore(other, file, OpenJobs.REFUSED)


def test_two_restorations_are_not_made_at_once(account: Account, file: Path) -> None:
    put_grid_job(account)
    write_backup(account, file)
    other = elsewhere(account)
    descriptor = os.open(other.places.root.parent, os.O_RDONLY)
    try:
        assert take_lock(descriptor)
        with pytest.raises(BackupError, match="another process works"):
            restore(other, file, OpenJobs.REFUSED)
    finally:
        os.close(descriptor)
