"""SEG mode without a collector: all requests run under one account, whose monitor writes the events itself."""

import time
from collections.abc import Iterator

import pytest

from tests.gram.gram_site import OUR_PROGRAMS, OURS, GramSite, sh
from tests.gram.seg_mode import EVENTS, give_events_to, in_seg_mode, read_events
from tests.gram.test_problems import write_job
from tests.real.site import ACCOUNT
from tests.waiting import SECONDS, wait_until


@pytest.fixture(scope="module")
def seg(gram: GramSite) -> Iterator[GramSite]:
    """The same site in SEG mode, with the folder of events for the account."""
    with in_seg_mode(gram, f'[gram]\nevent_folder = "{EVENTS}"\n'):
        give_events_to(ACCOUNT)
        yield gram


def test_outputs_and_exit_codes_come_without_a_poll(seg: GramSite) -> None:
    calls = len(seg.calls())
    done = seg.globusrun(OURS, sh("echo out; exit 7"))
    assert (done.status, done.stdout) == (0, b"out\n"), done.words
    assert any(line.endswith(";8;7") for line in read_events().splitlines())
    assert not [line for line in seg.calls()[calls:] if " poll contact" in line]
    assert (EVENTS / time.strftime("%Y%m%d", time.gmtime())).exists()


def test_what_was_missed_while_no_monitor_ran_is_told_by_the_next(seg: GramSite) -> None:
    folder, request = write_job(seg, "folder-monitor")
    with seg.start("globusrun", "-s", "-r", seg.contact(OURS), f"&{request}") as client:
        wait_until((folder / "runs").exists, "it runs")
        assert seg.kill_ours("samgrid-monitor") == 1
        (folder / "go").touch()
        seg.samgrid("status")
        _, words = client.communicate(timeout=SECONDS)
    assert client.returncode == 0, words
    assert (folder / "out").read_text() == "over\n"


def test_the_end_of_a_cancelled_job_is_told_so_that_gram_asks_why(seg: GramSite) -> None:
    contact = seg.submit(OURS, sh("sleep 600"))
    wait_until(lambda: seg.grid_job(contact) != "", "it has its id")
    job = seg.grid_job(contact)
    assert seg.run("globusrun", "-k", contact).status == 0
    wait_until(lambda: f";{job};8;" in read_events(), "its end is told")
    assert seg.count_ours(*OUR_PROGRAMS) > 0
