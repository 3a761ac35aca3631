"""Submissions of the embedded batch system, and what is asked of the fork starter for each job."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.fork.protocol import read_wire
from batch_adapters.fork.spool import StoredSubmission, read_submission, render_job, render_submission

PLAIN = StoredSubmission(
    command=("/bin/echo", "a b"),
    directory="/home/u",
    environment=(("HOME", "/home/u"),),
    stdout="/100%%i/%i.out",
    stderr="/r/%i.%i",
)


def test_a_job_is_told_its_id_and_index_and_has_files_of_its_own() -> None:
    job = render_job(PLAIN, "k3f9zq2m-1", 2)
    assert job.tag == "k3f9zq2m-1.2"
    assert job.environment == (("HOME", "/home/u"), ("SAMGRID_FORK_ID", "k3f9zq2m-1.2"), ("SAMGRID_FORK_INDEX", "2"))
    assert (job.stdout, job.stderr) == (("/100%i/2.out",), ("/r/2.2",))
    assert (job.executable, job.arguments, job.directory, job.count) == ("/bin/echo", ("a b",), "/home/u", 1)


def test_a_queue_process_that_knows_no_cores_can_read_a_submission_that_wants_none() -> None:
    known = {"command", "directory", "environment", "stdout", "stderr", "wall_minutes"}
    assert json.loads(render_submission(PLAIN)).keys() <= known
    assert json.loads(render_submission(dataclasses.replace(PLAIN, cores=4)))["cores"] == 4


def test_what_another_version_says_of_a_submission_is_passed_over() -> None:
    text = json.dumps({**json.loads(render_submission(PLAIN)), "memory_mb": 0, "cpu_minutes": 0})
    assert read_submission(text) == PLAIN


_WORD = st.binary().map(read_wire)


@given(st.lists(_WORD, min_size=1), st.lists(st.tuples(_WORD, _WORD)))
def test_any_bytes_survive_in_a_stored_submission(command: list[str], environment: list[tuple[str, str]]) -> None:
    submission = dataclasses.replace(PLAIN, command=tuple(command), environment=tuple(environment))
    text = render_submission(submission)
    assert text.isascii()
    assert read_submission(text) == submission
