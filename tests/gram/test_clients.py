"""GRAM's own commands for people: run, submit, status, get output, cancel, clean up."""

import re

from tests.gram.gram_site import FORK, OURS, GramSite
from tests.waiting import wait_until


def test_globus_job_run_says_the_same_as_under_fork(gram: GramSite) -> None:
    words = ("/bin/echo", "hello", "two words", 'q"uote', "it's", "$HOME", "back\\slash")
    ours, forks = (gram.run("globus-job-run", gram.contact(service), *words) for service in (OURS, FORK))
    assert (ours.status, ours.stdout, ours.stderr) == (forks.status, forks.stdout, forks.stderr)
    assert ours.text.startswith("hello two words")


def test_globus_job_run_stages_program_and_stdin(gram: GramSite) -> None:
    program = gram.write("staged", b'#!/bin/sh\necho "$1:$(cat)"\n', 0o700)
    file = gram.write("staged-stdin", b"from a file")
    words = ("-stdin", "-s", str(file), "-s", str(program), "one")
    ours, forks = (gram.run("globus-job-run", gram.contact(service), *words) for service in (OURS, FORK))
    assert (ours.status, ours.stdout, ours.stderr) == (forks.status, forks.stdout, forks.stderr)
    assert ours.text == "one:from a file"


def test_a_batch_job_is_submitted_asked_about_fetched_and_cleaned_up(gram: GramSite) -> None:
    submitted = gram.run("globus-job-submit", gram.contact(OURS), "/bin/sh", "-c", "echo out; echo err >&2")
    assert submitted.status == 0, submitted.words
    contact = submitted.text
    wait_until(lambda: gram.run("globus-job-status", contact).text == "DONE", "the job is done")
    # Which service fetches, by running a program of its own, is ours, too: the one of the port 2119 by default.
    fetch = ("globus-job-get-output", "-r", gram.contact(OURS))
    assert gram.run(*fetch, contact).stdout == b"out\n"
    assert gram.run(*fetch, "-err", contact).stdout == b"err\n"
    cleaned = gram.run("globus-job-clean", "-force", "-r", gram.contact(OURS), contact)
    assert cleaned.status == 0, cleaned.words
    assert gram.query(gram.grid_job(contact), "string(/jobs/grid-job/@state)") == "done"


def test_a_cancelled_job_is_gone_with_all_its_local_jobs(gram: GramSite) -> None:
    mark = gram.make_folder("cancelled")
    script = f"touch {mark}/$SAMGRID_INDEX; trap 'echo ended >>{mark}/ended; exit 1' TERM; sleep 300 & wait"
    contact = gram.run("globus-job-submit", gram.contact(OURS), "-count", "2", "/bin/sh", "-c", script).text
    wait_until(lambda: len(list(mark.iterdir())) == 2, "both run")
    cancelled = gram.run("globus-job-cancel", "-force", contact)
    assert cancelled.status == 0, cancelled.words
    assert re.search(r"cancel", cancelled.text, re.IGNORECASE)
    job = gram.grid_job(contact)
    wait_until(lambda: gram.query(job, "string(/jobs/grid-job/@state)") == "failed", "the grid job ends")
    assert (mark / "ended").read_text() == "ended\n" * 2
    assert gram.query(job, 'count(//local-job[@state="active" or @state="pending"])') == "0"
    # A second time it is no error, and changes nothing.
    gram.run("globus-job-cancel", "-force", contact)
    assert "cancelled" in gram.query(job, "string(//grid-job/@reason)")
