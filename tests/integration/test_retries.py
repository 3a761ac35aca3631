"""Failed local jobs are tried again, from the command line to the tar, on the embedded batch system."""

import os
from pathlib import Path

from tests.integration.test_grid_jobs import read_tar
from tests.samgrid import Samgrid
from tests.waiting import Gate


def fails_first(marks: Path, count: int, index: int, retries: int) -> str:
    """A request whose local job ``index`` fails at its first attempt; each attempt leaves a mark."""
    script = (
        f'mark={marks}/"$SAMGRID_INDEX"; [ ! -e "$mark" ] || again=yes; echo "$SAMGRID_SEED" >>"$mark"; '
        f'echo "attempt of $SAMGRID_INDEX"; [ "$again" ] || [ "$SAMGRID_INDEX" != {index} ]'
    )
    quoted = script.replace('"', '""')
    return (
        f'&(samgrid_type = command)(executable = /bin/sh)(arguments = -c "{quoted}")(count = {count})'
        f"(retries = {retries})"
    )


def test_a_program_that_fails_at_first_succeeds_at_its_second_attempt(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    job_id = shared_samgrid.submit(fails_first(marks, 3, 2, retries=1))
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert [len((marks / str(index)).read_text().splitlines()) for index in (1, 2, 3)] == [1, 2, 1]
    names = [name for name in read_tar(shared_samgrid, job_id) if name.endswith(".stdout")]
    stem = f"{job_id}.{job_id}"
    assert sorted(names) == [f"{stem}-1.1.stdout", f"{stem}-1.3.stdout", f"{stem}-2.1.stdout"]
    answer = shared_samgrid("query", "--job", job_id, "string(//local-job[@index=2]/attempt/@exit-code)")
    assert answer.stdout == "1\n"


def test_a_second_attempt_starts_while_another_local_job_runs(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    """Number 1 waits for what the second attempt of number 2 writes: who waited for its end would wait for ever."""
    fifo, mark = tmp_path / "fifo", tmp_path / "mark"
    os.mkfifo(fifo)
    script = (
        f"case $SAMGRID_INDEX in 1) read -r word <{fifo};; "
        f"2) if [ -e {mark} ]; then echo go >{fifo}; else touch {mark}; exit 9; fi;; esac"
    )
    request = f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=20)(retries=1)"
    job_id = shared_samgrid.submit(request)
    done = shared_samgrid("watch", job_id)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    log = shared_samgrid("log", job_id).stdout
    assert "attempt 1 failed: 1 exit code; tried again" in log
    assert "retries       1 made" in shared_samgrid("status", job_id).stdout


def test_the_first_failure_stops_all_where_that_is_asked_for(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    script = f'[ "$SAMGRID_INDEX" != 2 ] || exit 9; : <{gate.path}'
    quoted = script.replace('"', '""')
    request = f'&(samgrid_type=command)(executable=/bin/sh)(arguments=-c "{quoted}")(count=20)(fail_fast=yes)'
    job_id = shared_samgrid.submit(request)
    done = shared_samgrid("watch", job_id)
    gate.close()
    assert done.returncode == 1
    reason = "failed: 1 of 20 local jobs failed, first number 2: the program ended with exit code 9"
    assert f"grid job {job_id} {reason}" in done.stdout
    log = shared_samgrid("log", job_id).stdout
    assert "local jobs: 19 cancelled (fail fast), 1 failed (exit code)" in log
