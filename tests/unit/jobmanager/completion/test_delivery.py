"""What a job that came through GRAM leaves in files of the user's, some of which were there before."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from batch_adapters.states import State
from jobmanager.completion import delivery
from jobmanager.completion.collection import keep_summary
from jobmanager.completion.delivery import deliver_outputs
from jobmanager.database.grid_job import GramOrigin, GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.site.account import Account
from tests.unit.grid_jobs import put_local_jobs

JOB, OTHER = "aaaaaaaa", "bbbbbbbb"
TOKEN_ID = "t-1.1"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder of the user's."""
    path = tmp_path / "user"
    path.mkdir()
    return path


def accept(
    account: Account, stdout: Path, stderr: Path, job_id: str = JOB, *, plain: bool = True, tar: bool = False
) -> None:
    """A grid job of one local job, which has ended and written ``out`` and ``err``."""
    job = GridJob.new(job_id, "command", "physicist", "fork", 1_795_219_187)
    wanted = [("samgrid_output", ("stdout",))] if tar else []
    job.put_request([("samgrid_type", ("command",)), *wanted], Path("/"))
    job.put_slices(1, None, 1)
    job.put_origin(GramOrigin(f"uniqid of {job_id}", "https://localhost/1/2/", str(stdout), str(stderr), plain))
    with account.database.transaction():
        account.database.grid_jobs.put(job)
        local_job = LocalJob.new(1, "fork", None)
        local_job.register(TOKEN_ID, "", 1_795_219_187)
        local_job.state = State.DONE
        account.database.local_jobs.put(job_id, [local_job])
    results = account.places.results(job_id)
    results.mkdir(parents=True)
    (results / f"{job_id}.{TOKEN_ID}.stdout").write_text(f"out of {job_id}\n")
    (results / f"{job_id}.{TOKEN_ID}.stderr").write_text(f"err of {job_id}\n")
    account.places.output(job_id).write_text("tar\n")


def deliver(account: Account, job_id: str = JOB) -> str:
    """As at the end of a grid job, however often it begins anew."""
    keep_summary(account.database, account.database.grid_jobs.get(job_id), {})
    return deliver_outputs(account, account.database.grid_jobs.get(job_id))


def break_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Let delivery end, as in a crash or on a full disk, when it has written so many parts."""
    write, written = delivery._write, []

    def _write(part: Path | bytes, sink: BinaryIO) -> None:
        write(part, sink)
        written.append(part)
        if len(written) == parts:
            sink.flush()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(delivery, "_write", _write)


def test_a_new_file_is_its_owners_alone(account: Account, out: Path) -> None:
    accept(account, out / "stdout", out / "stderr")
    assert deliver(account) == ""
    assert (out / "stdout").read_text() == f"out of {JOB}\n"
    assert (out / "stderr").read_text() == f"err of {JOB}\n"
    assert stat.S_IMODE((out / "stdout").stat().st_mode) == 0o600


@pytest.mark.parametrize("plain", [pytest.param(True, id="plain"), pytest.param(False, id="grid job")])
def test_text_goes_to_the_end_of_a_file_that_is_there(account: Account, out: Path, plain: bool) -> None:
    (out / "stdout").write_text("from before\n")
    accept(account, out / "stdout", Path("/dev/null"), plain=plain)
    assert deliver(account) == ""
    first, second, *_ = (out / "stdout").read_text().splitlines()
    assert first == "from before"
    assert JOB in second


def test_a_tar_takes_the_place_of_what_was_there(account: Account, out: Path) -> None:
    (out / "stdout").write_text("from before, and longer\n")
    accept(account, out / "stdout", out / "stderr", plain=False, tar=True)
    assert (deliver(account), deliver(account)) == ("", "")
    assert (out / "stdout").read_text() == "tar\n"
    first, second, *_ = (out / "stderr").read_text().splitlines()
    assert first.startswith(f"grid job {JOB}")
    assert second.startswith("output: "), "it has no name"


def test_through_gram_the_tar_is_seen_from_the_directory_also_where_the_type_does_not_use_it(
    account: Account, out: Path
) -> None:
    accept(account, Path("/dev/null"), Path("/dev/null"), plain=False)
    (out / "out.tar").write_text("from before, and longer\n")
    request = [("samgrid_type", ("command",)), ("samgrid_output", ("out.tar",))]
    account.database.grid_jobs.change(JOB, lambda job: job.put_request(request, out))
    assert deliver(account) == ""
    assert (out / "out.tar").read_text() == "tar\n"


@pytest.mark.parametrize("alias", ["same", "symbolic link", "hard link", "dangling link"])
@pytest.mark.parametrize("before", ["", "from before\n"])
def test_one_file_for_both_has_both(account: Account, out: Path, alias: str, before: str) -> None:
    file = stderr = out / "both"
    if alias != "dangling link":
        file.write_text(before)
    if alias != "same":
        stderr = out / "alias"
        if alias == "hard link":
            stderr.hardlink_to(file)
        else:
            stderr.symlink_to(file)
    accept(account, file, stderr)
    assert (deliver(account), deliver(account)) == ("", "")
    kept = before if alias != "dangling link" else ""
    assert file.read_text() == f"{kept}out of {JOB}\nerr of {JOB}\n"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("one_file", [pytest.param(True, id="one file"), pytest.param(False, id="two files")])
def test_a_delivery_that_begins_anew_writes_nothing_twice(
    account: Account, out: Path, monkeypatch: pytest.MonkeyPatch, parts: int, one_file: bool
) -> None:
    stdout, stderr = out / "stdout", out / ("stdout" if one_file else "stderr")
    stdout.write_text("from before\n")
    accept(account, stdout, stderr)
    with monkeypatch.context() as patch:
        break_after(patch, parts)
        with pytest.raises(OSError, match="No space left"):
            deliver(account)
    assert stdout.read_text() != "from before\n"
    assert deliver(account) == ""
    err = f"err of {JOB}\n"
    assert stdout.read_text() == f"from before\nout of {JOB}\n" + (err if one_file else "")
    assert one_file or stderr.read_text() == err


def test_what_others_write_while_a_job_runs_stays(account: Account, out: Path) -> None:
    log = out / "log"
    for job_id in (JOB, OTHER):
        accept(account, log, Path("/dev/null"), job_id)
    log.write_text("from the program itself\n")
    assert (deliver(account), deliver(account, OTHER)) == ("", "")
    assert log.read_text() == f"from the program itself\nout of {JOB}\nout of {OTHER}\n"


def test_a_file_that_was_shortened_meanwhile_gets_no_zeros(account: Account, out: Path) -> None:
    (out / "stdout").write_text("from before\n")
    accept(account, out / "stdout", Path("/dev/null"))
    deliver(account)
    (out / "stdout").write_text("")
    assert deliver(account) == ""
    assert (out / "stdout").read_text() == f"out of {JOB}\n"


def test_a_named_pipe_is_written_and_not_cut(account: Account, out: Path) -> None:
    os.mkfifo(out / "pipe")
    accept(account, out / "pipe", Path("/dev/null"))
    reader = os.open(out / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert deliver(account) == ""
    assert os.read(reader, 100) == f"out of {JOB}\n".encode()
    os.close(reader)


def test_one_file_for_both_that_cannot_be_written_is_told_once(account: Account, out: Path) -> None:
    accept(account, out / "no" / "file", out / "no" / "file")
    assert deliver(account) == f"not delivered to {out}/no/file: No such file or directory"


def test_holes_are_not_written_into_a_users_file_as_zeros(account: Account, out: Path) -> None:
    accept(account, out / "stdout", out / "stderr")
    os.truncate(account.places.results(JOB) / f"{JOB}.{TOKEN_ID}.stdout", 90 << 30)
    most = "at most 1073741824 bytes of holes are written into a file, as zeros"
    sparse = f"{JOB}.{TOKEN_ID}.stdout is a sparse file, 96636764160 bytes long: {most}"
    assert deliver(account) == f"not delivered to {out}/stdout: {sparse}"
    assert (out / "stdout").read_text() == ""
    assert (out / "stderr").read_text() == f"err of {JOB}\n"


def test_of_many_sparse_files_so_many_are_written_as_have_few_holes_together(out: Path) -> None:
    sizes = {"first": 1 << 28, "second": (3 << 28) + 1, "third": 3 << 28, "huge": 90 << 30}
    for name, size in sizes.items():
        (out / name).touch()
        os.truncate(out / name, size)
    first, second, third, huge = (out / name for name in sizes)
    kept, faults = delivery._leave_out_sparse([first, second, third, b"text"])
    assert kept == [first, third, b"text"]
    assert [fault.split()[0] for fault in faults] == ["second"]
    sparse = [
        f"not delivered to {out}/x: huge {fault.partition(' ')[2]}" for fault in delivery._leave_out_sparse([huge])[1]
    ]
    assert delivery._append(out / "x", [huge, huge]) == "; ".join(sparse * 2)


def test_a_link_in_place_of_a_text_is_not_followed(account: Account, out: Path) -> None:
    accept(account, out / "stdout", out / "stderr")
    text = account.places.results(JOB) / f"{JOB}.{TOKEN_ID}.stdout"
    text.unlink()
    text.symlink_to("/etc/passwd")
    assert deliver(account) == ""
    assert (out / "stdout").read_text() == ""


def test_gram_gets_a_report_and_the_reasons_of_the_first_that_failed(
    account: Account, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_MOST_REASONS", 2)
    accept(account, out / "stdout", out / "stderr", plain=False)

    def change(job: GridJob) -> None:
        job.name = "Zürich"
        job.put_slices(4, None, 1)

    account.database.grid_jobs.change(JOB, change)
    jobs = [LocalJob.new(index, "fork", None) for index in (1, 2, 3, 4)]
    for job in jobs:
        job.state, job.outcome, job.reason = State.FAILED, Outcome.FAILED, f"reason {job.index}"
    jobs[0].state, jobs[0].outcome, jobs[0].reason = State.DONE, Outcome.SUCCEEDED, None
    jobs[1].register("t-1.2", "", 1_795_219_187)
    jobs[1].state = State.FAILED
    put_local_jobs(account.database, JOB, *jobs)
    monkeypatch.setattr(type(account.places), "output", lambda places, job_id: Path(f"/raw\udcff/{job_id}"))
    assert deliver(account) == ""
    report = f"grid job {JOB} (command): 1 of 4 local jobs succeeded\nname: Zürich\noutput: /raw\udcff/{JOB}\n"
    assert (out / "stdout").read_bytes() == os.fsencode(report)
    assert (out / "stderr").read_text() == (
        "local job 2 (t-1.2): reason 2\nlocal job 3 (never submitted): reason 3\nand 1 more\n"
    )


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        pytest.param("no/file", lambda path: None, "No such file or directory", id="no folder"),
        pytest.param("x" * 300, lambda path: None, "File name too long", id="long name"),
        pytest.param("loop", make_loop, "Too many levels of symbolic links", id="link to itself"),
        pytest.param("pipe", os.mkfifo, "No such device or address", id="pipe that nobody reads"),
        pytest.param("full", lambda path: path.symlink_to("/dev/full"), "No space left on device", id="device"),
    ],
)
def test_a_file_that_will_never_be_written_keeps_neither_the_other_nor_the_grid_job_from_its_end(
    account: Account, out: Path, name: str, make: Callable[[Path], None], why: str
) -> None:
    make(out / name)
    accept(account, out / name, out / "stderr")
    assert deliver(account) == f"not delivered to {out / name}: {why}"
    assert (out / "stderr").read_text() == f"err of {JOB}\n"


def test_all_that_cannot_be_delivered_is_told(account: Account, out: Path) -> None:
    accept(account, out / "no" / "file", out / "stderr", plain=False)
    request = [("samgrid_type", ("command",)), ("samgrid_output", ("nowhere/out.tar",))]
    account.database.grid_jobs.change(JOB, lambda job: job.put_request(request, out))
    assert deliver(account) == "; ".join(
        f"not delivered to {out}/{name}: No such file or directory" for name in ("nowhere/out.tar", "no/file")
    )


def test_of_a_cancelled_job_no_folder_is_missed_that_gram_has_removed(account: Account, out: Path) -> None:
    accept(account, out / "stdout", out / "no" / "file")
    account.database.grid_jobs.change(JOB, lambda job: job.cancel(1_795_219_188, "cancelled through GRAM"))
    assert deliver(account) == ""
    assert (out / "stdout").read_text() == f"out of {JOB}\n"


def test_sizes_are_kept_with_what_gram_wants(account: Account, out: Path) -> None:
    (out / "stdout").write_text("from before\n")
    accept(account, out / "stdout", out / "stderr")
    before = account.database.grid_jobs.get(JOB)
    assert before.sizes_before is None
    deliver(account)
    job = account.database.grid_jobs.get(JOB)
    assert (job.sizes_before, job.origin) == ((12, 0), before.origin)
    job.sizes_before = None
    before.put_summary({})
    assert job.to_bytes() == before.to_bytes()
