"""The job database looked at by ``samgrid doctor``: what is wrong is found, and each command says it in a sentence."""

import errno
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from batch_adapters.running.diagnosis import Finding, Level
from batch_adapters.states import State
from jobmanager.checks.doctor import check_database
from jobmanager.commands import cli
from jobmanager.database.database import DatabaseError
from jobmanager.site.account import Account
from tests.installed import ROOT
from tests.unit.jobmanager.test_damaged_documents import put_grid_job

JOB = "aaaaaaaa"


@pytest.fixture
def account(account: Account) -> Account:
    """An account with a grid job."""
    put_grid_job(account, JOB)
    return account


def look(account: Account) -> list[Finding]:
    return list(check_database(account))


def write(account: Account, sql: str) -> None:
    with closing(sqlite3.connect(account.places.database)) as connection, connection:
        connection.execute(sql)


def test_a_sound_database_is_said_to_be_so(account: Account) -> None:
    (finding,) = look(account)
    assert (finding.level, "1 grid job, all documents are valid" in finding.text) == (Level.GOOD, True)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE grid_job SET document = substr(document, 1, 60)", f"document of grid job {JOB} cannot be read"),
        ("UPDATE local_job SET document = x'3c783e' WHERE number = 2", "local job 2 of grid job"),
        ("UPDATE local_job SET document = replace(document, 'number', 'nombre')", ""),
        ("UPDATE local_job SET document = replace(document, 'active', 'odd')", "is not valid"),
        ("UPDATE local_job SET state = 'done' WHERE number = 1", "columns of local job 1 of grid job"),
        ("UPDATE grid_job SET owner = 'bob'", f"columns of grid job {JOB} in table grid_job"),
        (f"INSERT INTO phase VALUES ('{JOB}', 1, 0, 'a', 1, 2, '', 1, 1)", "in table phase"),
        ("UPDATE local_job_count SET number = number + 1", f"counts of the local jobs of grid job {JOB}"),
        ("DELETE FROM local_job_count", f"counts of the local jobs of grid job {JOB}"),
        (f"INSERT INTO step VALUES ('{JOB}', 1, 'a', NULL)", "in table step"),
    ],
)
def test_what_is_wrong_with_a_document_or_its_columns_is_found(account: Account, sql: str, words: str) -> None:
    saved = account.places.root / "saved"
    with closing(sqlite3.connect(saved)) as copy, closing(sqlite3.connect(account.places.database)) as connection:
        connection.backup(copy)
    write(account, sql)
    findings = [finding.text for finding in look(account) if finding.level is Level.FAULT]
    assert any(words in text for text in findings) == bool(words)
    with closing(sqlite3.connect(saved)) as copy, closing(sqlite3.connect(account.places.database)) as connection:
        copy.backup(connection)


def test_a_grid_job_without_its_folder_is_found(account: Account) -> None:
    shutil.rmtree(account.places.grid_job(JOB))
    assert [f.level for f in look(account) if "has no folder" in f.text] == [Level.FAULT]


def test_a_folder_without_its_grid_job_is_found(account: Account) -> None:
    folder = account.places.grid_job("zzzzzzzz")
    folder.mkdir(parents=True)
    assert all(finding.level is Level.GOOD for finding in look(account)), "a grid job may just be accepted"
    os.utime(folder, (0, 0))
    (finding,) = (finding for finding in look(account) if finding.level is not Level.GOOD)
    assert "zzzzzzzz belongs to no grid job" in finding.text
    assert finding.remedy == f"look for outputs in it; if none are missed: rm -r {folder}"


def spoil(path: Path) -> None:
    with open(path, "r+b") as stream:
        stream.seek(100)
        stream.write(os.urandom(path.stat().st_size - 100))


def empty(path: Path) -> None:
    path.write_bytes(b"no database at all, but some text" * 100)


@pytest.mark.parametrize("damage", [spoil, empty])
@pytest.mark.parametrize(
    "command", [["status"], ["status", JOB], ["output", JOB], ["explain", f"{JOB}/1"], ["export", "out"], ["log", JOB]]
)
def test_a_damaged_file_is_one_sentence(
    account: Account,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    command: list[str],
) -> None:
    account.database.close()
    monkeypatch.chdir(account.places.root)
    path = account.places.database
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    damage(path)
    assert cli.main([command[0], "--state-dir", str(account.places.root), *command[1:]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"samgrid {command[0]}: job database {path}: ")
    assert cli.main(["repair", "--state-dir", str(account.places.root)]) == 1
    assert capsys.readouterr().err.endswith(": samgrid doctor says what to do\n")
    (finding,) = look(Account(account.places, account.configuration))
    assert (finding.level, finding.text.count(str(path))) == (Level.FAULT, 1)
    assert finding.text.startswith(f"job database {path} is damaged: ")
    first, *_, last = finding.remedy.splitlines()
    assert first.startswith("samgrid repair needs a sound file")
    assert str(account.places.jobs) in last
    path.unlink()


@pytest.mark.parametrize("damage", [empty, lambda path: path.write_bytes(path.read_bytes()[:700])], ids=["text", "cut"])
def test_a_damaged_tar_is_one_sentence(
    account: Account, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, time.time()))
    tar = account.places.output(JOB)
    subprocess.run(["tar", "-cf", str(tar), "-C", str(account.places.root), "jobs.db"], check=True)
    damage(tar)
    assert cli.main(["output", "--state-dir", str(account.places.root), JOB]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the output {tar} cannot be read: " in line


def test_a_full_standard_output_is_not_the_tars_fault(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    account.database.grid_jobs.change(JOB, lambda job: job.end(State.DONE, time.time()))
    monkeypatch.setattr("jobmanager.views.outputs.render_output", lambda job, tar: "text")
    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.main(["output", "--state-dir", str(account.places.root), JOB]) == 1
    assert capsys.readouterr().err == "samgrid output: No space left on device\n"


LOST = r"is missing or empty, but .*/jobs has grid jobs: bring it back"


def test_a_database_that_is_missing_beside_grid_jobs_is_not_begun_anew(account: Account) -> None:
    account.database.close()
    path = account.places.database
    kept = path.rename(path.with_name("kept"))
    with pytest.raises(DatabaseError, match=LOST):
        assert Account(account.places, account.configuration).database
    assert not path.exists()
    kept.rename(path)


def test_a_database_whose_log_is_damaged_from_its_beginning_is_not_begun_anew(account: Account) -> None:
    account.database.close()
    path = account.places.database
    kept = path.rename(path.with_name("kept"))
    path.touch()
    path.with_name("jobs.db-wal").write_bytes(b"no log" * 1000)
    with pytest.raises(DatabaseError, match=LOST):
        assert Account(account.places, account.configuration).database
    path.with_name("jobs.db-wal").unlink(missing_ok=True)
    kept.rename(path)


READING = {
    **{"status": JOB, f"status {JOB}": JOB, f"explain {JOB}/1": JOB},
    **{"query count(//local-job)": "\n2\n", "usage": "no local job ended", "metrics": "samgrid_info{"},
}
"""Commands, and what each prints."""


@pytest.mark.parametrize("was_killed", [False, True], ids=["closed", "with a -wal file"])
def test_what_can_only_be_read_is_read(account: Account, was_killed: bool) -> None:
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    if not was_killed:
        account.database.close()
    root = account.places.root
    assert root.joinpath("jobs.db-wal").exists() is was_killed
    mount = f'mount --bind {root} {root} && mount -o remount,bind,ro {root} && exec "$@"'
    each = "from jobmanager.commands.cli import main; import sys; [print(main(_.split()), '==') for _ in sys.argv[1:]]"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", each, *READING],
        env={**os.environ, "SAMGRID_STATE": str(root)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    *answers, rest = f"\n{done.stdout}".split("0 ==\n")
    assert rest == "", done.stderr
    assert [told for answer, told in zip(answers, READING.values(), strict=True) if told not in f"\n{answer}"] == []
    assert "Traceback" not in done.stderr
