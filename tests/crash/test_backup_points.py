"""A state folder that is lost and restored: nothing is submitted twice, and kill -9 leaves no half of anything."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.control.backup import write_backup
from jobmanager.control.restoring import OpenJobs, restore
from jobmanager.site.account import open_account
from jobmanager.states.aggregation import next_task
from tests.conformance.fakes.site import SETTLE
from tests.crash.grounds import COUNT, FakeSlurm
from tests.crash.points import SUBMISSION, Point, run_and_die
from tests.crash.test_named_points import put_in_doubt, submit


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    site = FakeSlurm("slurm", tmp_path / "site", monkeypatch)
    yield site
    site.check()


def lose_and_restore(slurm: FakeSlurm, file: Path) -> None:
    slurm.database.close()
    shutil.rmtree(slurm.root)
    restore(open_account(str(slurm.root), create=False), file, OpenJobs.FOLLOWED)
    slurm.account = open_account(str(slurm.root))
    slurm.database = slurm.account.database


def work_as_the_monitor(slurm: FakeSlurm, grid_job: str) -> None:
    """Do what is to be done, until it has ended."""
    for _ in range(20):
        job = slurm.database.grid_jobs.get(grid_job)
        if job.state.is_final:
            return
        task = next_task(slurm.database.local_jobs.count(grid_job), job.cancelled)
        if task is not None:
            slurm.work(str(task), grid_job)
        slurm.run()
        slurm.advance(SETTLE + 1)
        assert slurm.reconcile() == 0
    raise AssertionError(f"{grid_job} does not come to an end")


@pytest.mark.parametrize("is_over", [False, True], ids=["open", "over"])
@pytest.mark.parametrize("point", SUBMISSION, ids=str)
def test_what_was_submitted_after_a_backup_is_not_submitted_again(
    slurm: FakeSlurm, tmp_path: Path, point: Point, is_over: bool
) -> None:
    grid_job = slurm.accept_three()
    if point.in_doubt:
        put_in_doubt(slurm, grid_job)
    run_and_die(point, lambda: slurm.work(point.task, grid_job))
    write_backup(slurm.account, tmp_path / "backup.tar")
    submit(slurm, grid_job)
    if is_over:
        slurm.run()
    taken = slurm.taken_ids(grid_job)
    assert len(taken) == COUNT
    lose_and_restore(slurm, tmp_path / "backup.tar")
    work_as_the_monitor(slurm, grid_job)
    assert slurm.taken_ids(grid_job) == taken
    assert Counter(slurm.runs(grid_job).values()).keys() <= {1}
    ended = slurm.database.grid_jobs.get(grid_job)
    assert (ended.state, "restored from a backup" in str(ended.reason)) == (State.FAILED, True)


def test_what_was_submitted_before_a_backup_is_followed_to_its_end(slurm: FakeSlurm, tmp_path: Path) -> None:
    grid_job = slurm.accept_three()
    submit(slurm, grid_job)
    slurm.database.grid_jobs.change(grid_job, lambda job: setattr(job, "retries", 3))
    write_backup(slurm.account, tmp_path / "backup.tar")
    lose_and_restore(slurm, tmp_path / "backup.tar")
    assert slurm.database.grid_jobs.get(grid_job).retries == 0
    work_as_the_monitor(slurm, grid_job)
    assert slurm.database.grid_jobs.get(grid_job).state is State.DONE
    assert slurm.runs(grid_job) == dict.fromkeys(range(1, COUNT + 1), 1)


_BACKUP = "jobmanager.control.backup"
BACKING_UP = [
    Point("backup", f"{_BACKUP}.write_tar", "before"),
    Point("backup", f"{_BACKUP}._Backup._has_changed", "before"),
    Point("backup", f"{_BACKUP}._Backup.add", "after", call=2),
    Point("backup", f"{_BACKUP}._Backup.add_state", "after"),
    Point("backup", "sandbox.pack.Tar.end", "after"),
]
_RESTORING = "jobmanager.control.restoring"
RESTORING = [
    Point("restore", "sandbox.unpack._unpack_into", "after"),
    Point("restore", f"{_RESTORING}.unpack", "after"),
    Point("restore", f"{_RESTORING}._follow", "after"),
    Point("restore", f"{_RESTORING}._choose_folders", "after"),
    Point("restore", f"{_RESTORING}.sync_tree", "after"),
]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("point", BACKING_UP, ids=str)
def test_a_backup_that_is_killed_leaves_the_one_before(slurm: FakeSlurm, tmp_path: Path, point: Point) -> None:
    submit(slurm, slurm.accept_three())
    folder = tmp_path / "backups"
    folder.mkdir()
    file = folder / "backup.tar"
    file.write_text("the one before")
    run_and_die(point, lambda: write_backup(slurm.account, file))
    assert file.read_text() == "the one before"
    write_backup(slurm.account, file)
    assert file.stat().st_size > 10_000
    assert names(folder) == ["backup.tar"]


@pytest.mark.parametrize("point", RESTORING, ids=str)
def test_a_restoration_that_is_killed_leaves_no_state_folder(slurm: FakeSlurm, tmp_path: Path, point: Point) -> None:
    grid_job = slurm.accept_three()
    submit(slurm, grid_job)
    write_backup(slurm.account, tmp_path / "backup.tar")
    slurm.database.close()
    shutil.rmtree(slurm.root)
    beside = names(slurm.root.parent)
    lost = open_account(str(slurm.root), create=False)
    run_and_die(point, lambda: restore(lost, tmp_path / "backup.tar", OpenJobs.FOLLOWED))
    assert not os.path.lexists(slurm.root)
    assert names(slurm.root.parent) != beside
    slurm.root.mkdir(mode=0o700)
    lose_and_restore(slurm, tmp_path / "backup.tar")
    assert names(slurm.root.parent) == sorted([*beside, slurm.root.name])
    work_as_the_monitor(slurm, grid_job)
    assert slurm.database.grid_jobs.get(grid_job).state is State.DONE
