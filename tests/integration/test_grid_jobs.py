"""Grid jobs from the command line to the tar, on the embedded batch system."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.monitor.worker import main as run_worker
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.site.account import Account
from jobmanager.views import watching
from tests.conftest import end_processes_of, processes_of
from tests.samgrid import LAUNCH, Samgrid
from tests.unit.jobmanager.credential_files import make_token, write_secret
from tests.waiting import Gate, wait_until


def counts(samgrid: Samgrid, job_id: str) -> dict[str, int]:
    (row,) = json.loads(samgrid("status", "--format", "json", job_id).stdout)
    found: dict[str, int] = row["counts"]
    return found


def read_tar(samgrid: Samgrid, job_id: str) -> dict[str, bytes]:
    """The files of a grid job's output, named without its own folder."""
    with tarfile.open(samgrid.state / "jobs" / job_id / f"{job_id}.tar") as tar:
        return {
            member.name.removeprefix(f"{job_id}/"): tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isfile()
        }


def short_sleeps(folder: Path) -> dict[str, str]:
    """Settings with which the program ``sleep``, by which a driver pauses, ends after a fifth of a second."""
    (folder / "bin").mkdir()
    (folder / "bin" / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.2\n")
    (folder / "bin" / "sleep").chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def watch_impatiently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Samgrid, str], tuple[int, str]]:
    """``samgrid watch`` that ends a second after it met a problem: exit status and standard error."""

    def watch(samgrid: Samgrid, job_id: str) -> tuple[int, str]:
        monkeypatch.setattr(watching, "_PATIENCE", 1.0)
        for name, value in samgrid.environment().items():
            monkeypatch.setenv(name, value)
        return cli.main(["watch", job_id]), capsys.readouterr().err

    return watch


def test_a_grid_job_becomes_local_jobs_and_one_tar(shared_samgrid: Samgrid) -> None:
    script = 'echo "$SAMGRID_LOCAL_ID $COLOUR${EMPTY-none}"; echo warning >&2; echo result >output/result.txt'
    job_id = shared_samgrid.submit(
        f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=3)"
        '(environment = (COLOUR "dark green") (EMPTY ""))'
    )
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, done.stderr) == (0, "")
    files = read_tar(shared_samgrid, job_id)
    for index in (1, 2, 3):
        stem = f"{job_id}.{job_id}-1.{index}"
        assert files[f"{stem}.stdout"] == f"{job_id}-1.{index} dark green\n".encode()
        assert files[f"{stem}.stderr"] == b"warning\n"
        assert files[f"{stem}.output/result.txt"] == b"result\n"
    manifest = json.loads(files["manifest.json"])
    assert (manifest["missing"], manifest["refused"]) == ([], [])
    assert f"{job_id} submitted".encode() in files[f"{job_id}.log"].replace(b"-1 ", b" ")
    ended = "count(//local-job[@exit-code=0 and @driver='ended'])"
    assert shared_samgrid("query", "--job", job_id, ended).stdout == "3\n"


def test_a_running_program_sees_its_token_renewed_and_nobody_else_sees_it(samgrid: Samgrid, tmp_path: Path) -> None:
    samgrid = replace(samgrid, settings={"SAMGRID_MONITOR_CREDENTIAL_INTERVAL": "0.1"})
    old, new = make_token(4e9, "old"), make_token(4e9 + 1, "new")
    source = write_secret(tmp_path / "token", old)
    script = f'true >{tmp_path}/started; until cmp -s "$BEARER_TOKEN_FILE" {tmp_path}/renewed; do sleep 0.1; done'
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(bearer_token_file={source})"
    job_id = samgrid.submit(request)
    wait_until((tmp_path / "started").exists)
    write_secret(tmp_path / "renewed", new)
    write_secret(source, new)
    assert samgrid("watch", job_id).returncode == 0
    (row,) = json.loads(samgrid("status", "--format", "json", job_id).stdout)
    expires = {"expires": "2096-10-02T07:06:41Z", "problem": None}
    assert row["credentials"] == [{"name": "bearer_token_file", **expires}]
    assert samgrid("export", str(tmp_path / "export")).returncode == 0
    assert samgrid("backup", str(tmp_path / "backup.tar")).returncode == 0
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("token", "renewed")]
    assert [path for path in kept if any(token in path.read_bytes() for token in (old, new))] == []


def test_the_event_range_is_covered_once_with_different_seeds(shared_samgrid: Samgrid) -> None:
    job_id = shared_samgrid.submit("&(samgrid_type=generator)(events=1003)(seed=900000000)")
    assert shared_samgrid("watch", job_id).returncode == 0
    rows = [
        tuple(map(int, content.rpartition(b": ")[2].split()))
        for name, content in read_tar(shared_samgrid, job_id).items()
        if name.endswith(".stdout")
    ]
    events = sorted(event for first, number, _ in rows for event in range(first, first + number))
    assert events == list(range(1, 1004))
    assert len({seed for _, _, seed in rows}) == len(rows) == 5


def test_a_handler_whose_program_reads_stdin_does_not_wait_for_ever(shared_samgrid: Samgrid) -> None:
    done = shared_samgrid("run", "-", stdin="&(samgrid_type=reader)(executable=/bin/true)")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_handler_that_ends_the_process_fails_its_grid_job(shared_samgrid: Samgrid) -> None:
    done = shared_samgrid("run", "-", stdin="&(samgrid_type=leaver)(executable=/bin/true)")
    assert done.returncode == 1
    assert "handler leaver: SystemExit: 0" in done.stdout


def test_files_of_the_request_travel_and_run(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    folder = tmp_path / "request"
    folder.mkdir()
    (folder / "analysis").write_text('#!/bin/sh\ncat; cat "$1"; pwd\n')
    (folder / "analysis").chmod(0o755)
    (folder / "cards").write_text("cards\n")
    (folder / "input").write_text("standard input\n")
    (folder / "job.rsl").write_text(
        "&(samgrid_type=command)(executable=analysis)(arguments=cards)(input_files=cards)(stdin=input)"
    )
    done = shared_samgrid("run", str(folder / "job.rsl"))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.split()[2]
    stdout = read_tar(shared_samgrid, job_id)[f"{job_id}.{job_id}-1.1.stdout"].decode().splitlines()
    assert stdout[:2] == ["standard input", "cards"]
    assert stdout[2].startswith(str(shared_samgrid.scratch))
    wait_until(lambda: not list(shared_samgrid.scratch.iterdir()))


def test_a_program_that_travels_runs_in_the_folder_that_the_request_names(
    shared_samgrid: Samgrid, tmp_path: Path
) -> None:
    (tmp_path / "analysis").write_text('#!/bin/sh\npwd; echo back >"$SAMGRID_OUTPUT/result"\n')
    (tmp_path / "analysis").chmod(0o755)
    (tmp_path / "job.rsl").write_text("&(samgrid_type=command)(executable=analysis)(directory=/usr/share)")
    done = shared_samgrid("run", str(tmp_path / "job.rsl"))
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = done.stdout.split()[2]
    files = read_tar(shared_samgrid, job_id)
    assert files[f"{job_id}.{job_id}-1.1.stdout"] == b"/usr/share\n"
    assert files[f"{job_id}.{job_id}-1.1.output/result"] == b"back\n"


def test_arguments_arrive_byte_for_byte(shared_samgrid: Samgrid) -> None:
    words = ["a b", "", "c'd", 'e"f', "$HOME", "`id`", "\\n", "ü€", ";|&", "*", "new\nline", "-n"]
    quoted = " ".join('"' + word.replace('"', '""') + '"' for word in words)
    program = "import sys; print(ascii(sys.argv[1:]))"
    request = f"&(samgrid_type=command)(executable=/usr/bin/python3)(arguments=-c '{program}' {quoted})"
    job_id = shared_samgrid.submit(request)
    assert shared_samgrid("watch", job_id).returncode == 0
    stdout = read_tar(shared_samgrid, job_id)[f"{job_id}.{job_id}-1.1.stdout"].decode()
    assert stdout == ascii(words) + "\n"


def test_a_failed_local_job_fails_the_grid_job_and_says_why(shared_samgrid: Samgrid) -> None:
    script = 'test "$SAMGRID_INDEX" != 2 || { echo no magnetic field >&2; exit 7; }; echo good >output/good'
    job_id = shared_samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=3)")
    done = shared_samgrid("watch", job_id)
    assert done.returncode == 1
    assert (
        "1 of 3 local jobs failed, first number 2: the program ended with exit code 7 (no magnetic field)"
        in done.stdout
    )
    assert "2 done, 1 failed" in shared_samgrid("status", job_id).stdout
    assert f"{job_id}.{job_id}-1.3.output/good" in read_tar(shared_samgrid, job_id), "what succeeded is not lost"


def test_enough_successes_are_a_success_where_the_request_says_so(shared_samgrid: Samgrid) -> None:
    script = 'test "$SAMGRID_INDEX" != 2'
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=3)(min_success=0.6)"
    job_id = shared_samgrid.submit(request)
    assert shared_samgrid("watch", job_id).returncode == 0


def test_cancelling_ends_what_runs_and_what_waits(samgrid: Samgrid) -> None:
    # Whoever brings outputs back is not killed meanwhile, however long that takes.
    slow = replace(samgrid, settings={"SAMGRID_FORK_SLOTS": "2", "SAMGRID_FORK_CANCEL_GRACE": "3600"})
    script = "echo began >output/began; sleep 300"
    job_id = slow.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=6)")
    wait_until(lambda: counts(slow, job_id).get("active") == 2)
    wait_until(lambda: [file.read_text() for file in samgrid.scratch.glob("*/output/began")] == ["began\n"] * 2)
    assert slow("cancel", job_id[:5]).returncode == 0
    done = slow("watch", job_id)
    assert done.returncode == 1
    ended = counts(slow, job_id)
    assert ended == {"cancelled": 6}
    assert "cancelled by" in done.stdout
    made = [content for name, content in read_tar(slow, job_id).items() if name.endswith(".output/began")]
    assert made == [b"began\n"] * 2, "what was made until then comes back"
    # A driver cleans up when it has written its end.
    wait_until(lambda: not processes_of(samgrid.scratch))
    assert slow("cancel", job_id).stdout == f"grid job {job_id} has ended already\n"


def test_a_program_that_is_gone_when_it_is_to_be_packed_fails_the_grid_job(account: Account, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    request = [("samgrid_type", ("command",)), ("executable", (str(program),))]
    job_id = accept_grid_job(account, request, tmp_path)
    program.unlink()
    for task in ("submit", "collect"):
        assert run_worker(["--state-dir", str(account.places.root), task, job_id]) == 0
    job = account.database.grid_jobs.get(job_id)
    assert job.state is State.FAILED
    assert str(program) in str(job.reason)
    assert account.places.output(job_id).exists()


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        pytest.param("&(samgrid_type=command)(executable=/no/such/program)", ["/no/such/program"], id="no program"),
        pytest.param("&(samgrid_type=pythia)(events=many)(bins=x)", ["many", "bins"], id="two faults at once"),
        pytest.param("&(samgrid_type=command)(executable=/bin/true", ["line 1", "column"], id="not closed"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(samgrid: Samgrid, request_text: str, words: list[str]) -> None:
    done = samgrid("submit", "-", stdin=request_text)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert not (samgrid.state / "jobs").exists()
    assert json.loads(samgrid("status", "--format", "json").stdout) == []


def test_commands_about_unknown_jobs_fail_clearly(samgrid: Samgrid) -> None:
    for command in ("watch", "status", "output", "cancel"):
        done = samgrid(command, "zzz")
        assert (done.returncode, done.stdout) == (1, "")
        assert 'no grid job has the name "zzz", or an id that begins with it' in done.stderr


def test_the_configuration_of_the_last_submit_holds(samgrid: Samgrid, tmp_path: Path) -> None:
    request = "&(samgrid_type=command)(executable=/bin/true)"
    assert samgrid("watch", samgrid.submit(request)).returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = replace(samgrid, scratch=elsewhere)
    job_id = moved.submit("&(samgrid_type=command)(executable=/bin/pwd)")
    assert moved("watch", job_id).returncode == 0
    pwd = read_tar(moved, job_id)[f"{job_id}.{job_id}-1.1.stdout"].decode()
    assert pwd.startswith(str(elsewhere))


def test_a_log_that_is_not_where_the_configuration_says_is_a_problem(
    samgrid: Samgrid, watch_impatiently: Callable[[Samgrid, str], tuple[int, str]]
) -> None:
    lost = replace(samgrid, settings={"SAMGRID_EVENTS_PATH": "/no/such/log"})
    job_id = lost.submit("&(samgrid_type=command)(executable=/bin/sleep)(arguments=60)")
    status, said = watch_impatiently(lost, job_id)
    assert status == 3
    assert "/no/such/log" in said


def test_a_generator_that_dies_is_told_by_doctor_and_keeps_nobody_from_watching(
    samgrid: Samgrid, watch_impatiently: Callable[[Samgrid, str], tuple[int, str]], tmp_path: Path
) -> None:
    file = tmp_path / "samgrid.toml"
    file.write_text("[events]\nprefix = ['/bin/false']\n[monitor]\nreconcile_interval = 0.5\n")
    deaf = replace(samgrid, settings={"SAMGRID_CONFIG": str(file)})
    # Longer than the impatient wait.
    job_id = deaf.submit("&(samgrid_type=command)(executable=/bin/sleep)(arguments=4)")
    assert watch_impatiently(deaf, job_id) == (0, "")
    job_id = deaf.submit("&(samgrid_type=command)(executable=/bin/sleep)(arguments=300)")
    wait_until(lambda: "its monitor says: generator fork ended with status 1" in deaf("doctor").stdout)
    assert deaf("cancel", job_id).returncode == 0


def test_questions_create_nothing(samgrid: Samgrid) -> None:
    assert samgrid("status", "--format", "json").stdout == "[]\n"
    assert samgrid("query", "count(//grid-job)").stdout == "0\n"
    assert samgrid("cancel", "abc").returncode == 1
    assert not samgrid.state.exists()


def test_without_a_log_the_batch_system_is_asked(samgrid: Samgrid, gate: Gate) -> None:
    settings = {"SAMGRID_EVENTS_SOURCE": "poll", "SAMGRID_MONITOR_RECONCILE_INTERVAL": "0.2", "SAMGRID_FORK_SLOTS": "3"}
    polling = replace(samgrid, settings=settings)
    script = f': <{gate.path}; test "$SAMGRID_INDEX" != 2 || exit 4'
    job_id = polling.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=3)")
    wait_until(lambda: counts(polling, job_id) == {"active": 3})
    gate.open()
    watched = polling("watch", job_id)
    assert (watched.returncode, watched.stderr) == (1, "")
    asked = polling("query", "--job", job_id, "//local-job[@exit-code=4 and @state='done' and @started]/@index")
    assert (asked.stdout, asked.stderr) == ("2\n", ""), polling("query", "--job", job_id, "//local-job").stdout


def test_the_day_files_of_another_generator_do_as_well_as_the_log(samgrid: Samgrid, tmp_path: Path) -> None:
    folder = tmp_path / "day-files"
    folder.mkdir()
    log = samgrid.state / "fork" / "events"
    command = [sys.executable, "-P", str(LAUNCH), "samgrid-scheduler-event-generator", "-s", "fork"]
    settings = {
        "SAMGRID_EVENTS_SOURCE": "day-files",
        "SAMGRID_EVENTS_PATH": str(folder),
        # What ends a local job here are the events, not a look at the batch system.
        "SAMGRID_MONITOR_RECONCILE_INTERVAL": "3600",
    }
    following = replace(samgrid, settings=settings)
    with subprocess.Popen([*command, "-t", "1", "-d", str(folder), "-l", str(log)], stdin=subprocess.PIPE) as generator:
        job_id = following.submit("&(samgrid_type=command)(executable=/bin/true)(count=3)")
        assert following("watch", job_id).returncode == 0
        assert generator.stdin is not None
        generator.stdin.close()
    assert [path.name.isdigit() for path in folder.iterdir()] == [True]


def test_a_full_disk_under_the_tar_is_told_and_the_job_goes_on_later(
    samgrid: Samgrid, watch_impatiently: Callable[[Samgrid, str], tuple[int, str]]
) -> None:
    script = "dd if=/dev/zero of=output/zeros bs=1000 count=1500 status=none"
    # Each output is smaller than the largest file that our processes may write; the tar is not.
    command = f'ulimit -f 6000; exec "{sys.executable}" -P "{LAUNCH}" samgrid submit -'
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=3)"
    submitted = subprocess.run(
        ["/bin/sh", "-c", command], input=request, text=True, capture_output=True, env=samgrid.environment(), check=True
    )
    job_id = submitted.stdout.strip()
    # Who finds no monitor starts one, without that limit.
    wait_until((samgrid.state / "monitor.sock").exists)
    status, said = watch_impatiently(samgrid, job_id)
    assert status == 3, said
    assert "File too large" in said
    folder = samgrid.state / "jobs" / job_id
    # It is tried again and again; each time nothing half-made is left.
    wait_until(lambda: not list(folder.glob("*.tar*")))
    assert "File too large" in samgrid("status", job_id).stdout
    end_processes_of(samgrid.state)
    done = samgrid("watch", job_id)
    assert done.returncode == 0, done.stderr
    assert len(read_tar(samgrid, job_id)[f"{job_id}.{job_id}-1.3.output/zeros"]) == 1_500_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_under_everything_is_told_and_the_job_goes_on_later(
    samgrid: Samgrid, tmp_path: Path, watch_impatiently: Callable[[Samgrid, str], tuple[int, str]]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", disk], check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    # Of those that run at once when the disk is full, each may fail.
    small = replace(samgrid, state=disk / "state", settings={**short_sleeps(tmp_path), "SAMGRID_FORK_SLOTS": "4"})
    try:
        script = "head -c 30000 /dev/urandom >output/noise"
        job_id = small.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=30)")
        status, said = watch_impatiently(small, job_id)
        assert status == 3, said
        assert "no space left" in said.lower() or "full" in said
        assert "Traceback" not in said
        subprocess.run(["mount", "-o", "remount,size=20000k", disk], check=True)
        done = small("watch", job_id)
        # A local job whose output did not fit failed, and says so; every other one is there.
        assert done.returncode == 0 or "is the disk full?" in done.stdout, done.stdout + done.stderr
        assert sum(counts(small, job_id).values()) == 30
        succeeded = small("query", "--job", job_id, "count(//local-job[@driver='ended' and @exit-code=0])").stdout
        noise = [content for name, content in read_tar(small, job_id).items() if name.endswith("/noise")]
        assert [len(content) for content in noise] == [30_000] * int(succeeded)
        assert int(succeeded) >= 24
    finally:
        end_processes_of(disk)
        subprocess.run(["umount", "--lazy", disk], check=True)
