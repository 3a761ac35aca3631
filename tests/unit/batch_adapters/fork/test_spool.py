"""Submissions of the embedded batch system, and what is asked of the fork starter for each job."""

import dataclasses
import json
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.fork.protocol import read_wire
from batch_adapters.fork.spool import StoredSubmission, read_submission, render_job, render_submission

PLAIN = StoredSubmission(
    command=("/bin/echo", "a b"),
    directory="/home/u",
    environment=(("HOME", "/home/u"),),
    stdout="/r/%i.out",
    stderr="/r/%i.%i",
)


def test_a_job_is_told_its_id_and_index_and_has_files_of_its_own() -> None:
    job = render_job(PLAIN, "k3f9zq2m-1", 2)
    assert job.tag == "k3f9zq2m-1.2"
    assert job.environment == (("HOME", "/home/u"), ("SAMGRID_FORK_ID", "k3f9zq2m-1.2"), ("SAMGRID_FORK_INDEX", "2"))
    assert (job.stdout, job.stderr) == (("/r/2.out",), ("/r/2.2",))
    assert (job.executable, job.arguments, job.directory, job.count) == ("/bin/echo", ("a b",), "/home/u", 1)


def test_limits_are_set_by_a_shell_that_becomes_the_program() -> None:
    script = 'ulimit -S -t; ulimit -H -t; ulimit -v; echo "$1"'
    limited = dataclasses.replace(
        PLAIN, command=("/bin/sh", "-c", script, "x", 'two "words"'), cpu_minutes=2, memory_mb=1000
    )
    job = render_job(limited, "a", 1)
    printed = subprocess.run([job.executable, *job.arguments], capture_output=True, text=True, check=True).stdout
    assert printed == '120\n125\n1024000\ntwo "words"\n'


def test_a_queue_process_that_knows_no_cores_can_read_a_submission_that_wants_none() -> None:
    known = {"command", "directory", "environment", "stdout", "stderr", "wall_minutes", "cpu_minutes", "memory_mb"}
    assert json.loads(render_submission(PLAIN)).keys() <= known
    assert json.loads(render_submission(dataclasses.replace(PLAIN, cores=4)))["cores"] == 4


_WORD = st.binary().map(read_wire)


@given(st.lists(_WORD, min_size=1), st.lists(st.tuples(_WORD, _WORD)))
def test_any_bytes_survive_in_a_stored_submission(command: list[str], environment: list[tuple[str, str]]) -> None:
    submission = dataclasses.replace(PLAIN, command=tuple(command), environment=tuple(environment))
    text = render_submission(submission)
    assert text.isascii()
    assert read_submission(text) == submission
