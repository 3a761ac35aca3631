"""What programs report in files: read once, whatever happens meanwhile; what is refused harms nothing."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from lxml import etree

from batch_adapters.states import State
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import MOST_FOREIGN, LocalJob
from jobmanager.site.account import Account, open_account
from jobmanager.site.configuration import read_configuration
from jobmanager.states.program_reports import MOST_BYTES, RefusedXml, has_reports, read_foreign_xml, read_reports
from sandbox.files import locked
from sandbox.status import PhaseStatus
from tests.unit.grid_jobs import changing, put, put_local_jobs
from tests.unit.jobmanager.monitor.test_monitor import fail_always
from tests.unit.traps import TRAPS
from tests.waiting import SECONDS

GRID_JOB = "aaaaaaaa"
HANDLER = '''
import re, signal, time
from adapters import JobAdapter, Phase

class Talkative(JobAdapter):
    """Prints words of its own."""
    jobType = "talkative"

    def prepareWorkArea(self, workArea): pass
    def getCommandAndArguments(self, localJob): return ["/bin/true"]

    def getPhaseOfLine(self, line):
        if line.startswith("say "):
            return Phase(*line.split()[1:])
        if line == "raise":
            raise KeyError("no such word")
        if line == "hang":
            # Until the time is over, which it is at once.
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while True:
                try:
                    time.sleep(60)
                except Exception:
                    pass
        match = re.match(r"Event ([0-9]+) of ([0-9]+)", line)
        return Phase("generate", int(match[1]), int(match[2]), "events") if match else None
'''


@pytest.fixture
def account(account: Account, tmp_path: Path) -> Account:
    """An account with a grid job of two running local jobs, t-1.1 and t-1.2, whose handler reads lines."""
    (tmp_path / "talkative.py").write_text(HANDLER)
    environment = {"SAMGRID_HANDLERS_MODULES": str(tmp_path / "talkative.py")}
    account = Account(account.places, read_configuration(environment, site_file=Path("/nonexistent")))
    job = GridJob.new(GRID_JOB, "talkative", "physicist", "fork", 1000)
    job.put_request([("samgrid_type", ("talkative",))], tmp_path)
    job.put_slices(2, None, 1)
    local_jobs = [LocalJob.new(number, "fork", None) for number in (1, 2)]
    for local_job in local_jobs:
        local_job.register(f"t-1.{local_job.index}", "", 1000)
        local_job.state = State.ACTIVE
    put(account.database, job, local_jobs)
    account.places.reports(GRID_JOB).mkdir(parents=True)
    return account


def report(account: Account, number: int, kind: str, content: str | bytes) -> Path:
    file = account.places.reports(GRID_JOB) / f"{GRID_JOB}.t-1.{number}.{kind}"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def phases(account: Account, number: int) -> list[PhaseStatus]:
    return account.database.local_jobs.get(GRID_JOB, number).phases()


def foreign(account: Account, number: int) -> list[bytes]:
    element = account.database.local_jobs.get(GRID_JOB, number).element
    return [etree.tostring(child) for child in element if etree.QName(child).namespace]


def test_a_handler_reads_phases_out_of_lines_and_each_report_is_read_once(account: Account) -> None:
    report(account, 1, "lines", b"Event 1 of 250\n\xff\nEvent 9 of 250\n")
    report(account, 2, "lines", "Event 7 of 99\n")
    assert has_reports(account.places.reports(GRID_JOB))
    read_reports(account, GRID_JOB)
    assert phases(account, 1) == [PhaseStatus("generate", 9, 250, "events")]
    assert phases(account, 2) == [PhaseStatus("generate", 7, 99, "events")]
    assert not has_reports(account.places.reports(GRID_JOB))
    assert list(account.places.reports(GRID_JOB).iterdir()) == []


def test_a_reader_that_was_killed_is_made_up_for_in_the_order_of_the_reports(account: Account) -> None:
    report(account, 1, "lines.taken", "Event 1 of 250\nsay d0reco 1 2\n")
    report(account, 1, "lines", "Event 9 of 250\n")
    read_reports(account, GRID_JOB)
    assert phases(account, 1) == [PhaseStatus("generate", 9, 250, "events"), PhaseStatus("d0reco", 1, 2)]
    assert list(account.places.reports(GRID_JOB).iterdir()) == []


def test_what_could_not_be_written_down_is_read_again(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    report(account, 1, "lines", "Event 9 of 250\n")
    with monkeypatch.context() as patch:
        patch.setattr(account.database.local_jobs, "put", fail_always(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            read_reports(account, GRID_JOB)
    read_reports(account, GRID_JOB)
    assert phases(account, 1) == [PhaseStatus("generate", 9, 250, "events")]


def test_of_more_reports_than_anybody_can_read_the_newest_are_read(
    account: Account, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jobmanager.states.program_reports._MOST_REPORTS", 2)
    report(account, 1, "lines", "Event 1 of 5\n")
    for turn in (9, 10, 11, 12):
        report(account, 1, f"{turn}.xml", f'<n{turn} xmlns="http://exp/"/>')
    report(account, 2, "1.xml", '<other xmlns="http://exp/"/>')
    read_reports(account, GRID_JOB)
    assert [etree.fromstring(text).tag for text in foreign(account, 1)] == ["{http://exp/}n11", "{http://exp/}n12"]
    assert len(foreign(account, 2)) == len(phases(account, 1)) == 1
    assert not has_reports(account.places.reports(GRID_JOB))
    assert "t-1.1 has 4 reports: only the last 2 are read" in caplog.text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("raise", "KeyError: 'no such word'", id="raises"),
        pytest.param("say a 1", "TypeError", id="no phase"),
        pytest.param("say a b c", "is no phase", id="no numbers"),
        pytest.param("say \x1b[2J<script> 1 2", "is no phase", id="control characters"),
        pytest.param("say a 1 " + "9" * 99, "is no phase", id="huge"),
        pytest.param("hang", "no end after", id="hangs, and catches all it can"),
    ],
)
def test_a_handler_that_fails_costs_the_lines_of_that_local_job_only(
    account: Account, line: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    report(account, 1, "lines", f"{line}\n")
    report(account, 2, "lines", "Event 7 of 99\n")
    with caplog.at_level(logging.WARNING):
        read_reports(account, GRID_JOB)
    assert (phases(account, 1), phases(account, 2)) == ([], [PhaseStatus("generate", 7, 99, "events")])
    assert words in caplog.text
    assert "\x1b" not in caplog.text
    assert list(account.places.reports(GRID_JOB).iterdir()) == []


def test_xml_takes_the_place_of_what_was_reported_before_under_the_same_name(account: Account) -> None:
    for text in (
        "<run xmlns='urn:d0' number='1'/>",
        "<luminosity xmlns='urn:d0'/>",
        "<run xmlns='urn:d0' number='2'/>",
    ):
        report(account, 1, "1.xml", text)
        read_reports(account, GRID_JOB)
    assert foreign(account, 1) == [b'<luminosity xmlns="urn:d0"/>', b'<run xmlns="urn:d0" number="2"/>']
    assert foreign(account, 2) == []


def test_reports_that_wait_are_read_in_the_order_in_which_they_came(account: Account) -> None:
    for turn in (10, 9, 11):
        report(account, 1, f"{turn}.xml", f"<run xmlns='urn:d0' number='{turn}'/>")
    report(account, 1, "2.xml", "<luminosity xmlns='urn:d0'/>")
    report(account, 1, "3.xml", "<refused/>")
    read_reports(account, GRID_JOB)
    assert foreign(account, 1) == [b'<luminosity xmlns="urn:d0"/>', b'<run xmlns="urn:d0" number="11"/>']


def test_a_document_keeps_only_so_many_reports(account: Account) -> None:
    for number in range(MOST_FOREIGN + 2):
        report(account, 1, "1.xml", f"<run{number} xmlns='urn:d0'/>")
        read_reports(account, GRID_JOB)
    assert foreign(account, 1) == [b'<run%d xmlns="urn:d0"/>' % number for number in range(2, MOST_FOREIGN + 2)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param("", "not well-formed", id="empty"),
        pytest.param("<run xmlns='urn:d0'>", "not well-formed", id="cut off"),
        pytest.param(b"<run xmlns='urn:d0'>\xff</run>", "not well-formed", id="broken UTF-8"),
        pytest.param("<run/>", "in no namespace", id="no namespace"),
        pytest.param("<d:run xmlns:d='urn:d0'><phase/></d:run>", "phase is in no namespace", id="one of ours inside"),
        pytest.param("<html xmlns='http://www.w3.org/1999/xhtml'/>", "not the experiment's own", id="HTML"),
        pytest.param("<!DOCTYPE run><run xmlns='urn:d0'/>", "document type", id="document type"),
        pytest.param(
            "<!DOCTYPE run [<!ENTITY e SYSTEM '/etc/passwd'>]><run xmlns='urn:d0'>&e;</run>",
            "document type",
            id="entity",
        ),
        pytest.param("<run xmlns='urn:d0' xml:id='a'/>", "xml:id", id="what would clash in another document"),
        pytest.param("<r xmlns='urn:d0'>" * 65 + "</r>" * 65, "inside each other", id="too deep"),
        pytest.param("<run xmlns='urn:d0'>" + "x" * MOST_BYTES + "</run>", "longer than", id="too long"),
    ],
)
def test_xml_that_cannot_stand_in_a_document_is_refused_with_a_reason(
    account: Account, data: str | bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = account.database.local_jobs.get(GRID_JOB, 1).to_bytes()
    report(account, 1, "1.xml", data)
    with caplog.at_level(logging.WARNING):
        read_reports(account, GRID_JOB)
    assert account.database.local_jobs.get(GRID_JOB, 1).to_bytes() == before
    assert f"{GRID_JOB} number 1: xml report refused" in caplog.text
    assert words in caplog.text
    assert list(account.places.reports(GRID_JOB).iterdir()) == []


def test_an_expansion_of_entities_never_begins() -> None:
    bomb = "<!DOCTYPE r [<!ENTITY a 'aaaaaaaaaa'>" + "".join(
        f"<!ENTITY {chr(98 + n)} '{f'&{chr(97 + n)};' * 10}'>" for n in range(20)
    )
    before = time.process_time()
    with pytest.raises(RefusedXml):
        read_foreign_xml(f"{bomb}]><r xmlns='urn:d0'>&u;</r>".encode())
    assert time.process_time() - before < 10


@pytest.mark.parametrize("kind", ["lines", "1.xml"])
@pytest.mark.parametrize("make", TRAPS)
def test_what_is_no_file_is_refused_and_not_met_again(
    account: Account, make: Callable[[Path], None], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(account.places.reports(GRID_JOB) / f"{GRID_JOB}.t-1.1.{kind}")
    read_reports(account, GRID_JOB)
    assert "report refused" in caplog.text
    assert not has_reports(account.places.reports(GRID_JOB))


def test_a_folder_in_a_reports_place_is_refused_as_often_as_it_comes(account: Account) -> None:
    for _ in range(2):
        (account.places.reports(GRID_JOB) / f"{GRID_JOB}.t-1.1.1.xml" / "full").mkdir(parents=True)
        read_reports(account, GRID_JOB)
        assert not has_reports(account.places.reports(GRID_JOB))


def test_a_link_that_leads_nowhere_holds_no_reports(account: Account) -> None:
    folder = account.places.reports(GRID_JOB)
    folder.rmdir()
    folder.symlink_to(folder.name)
    assert not has_reports(folder)


def test_a_report_of_nobody_waits_until_all_local_jobs_are_known(account: Account) -> None:
    put_local_jobs(account.database, GRID_JOB, LocalJob.new(3, "fork", None))
    file = report(account, 3, "1.xml", "<run xmlns='urn:d0'/>")
    read_reports(account, GRID_JOB)
    assert file.exists()
    with changing(account.database, GRID_JOB, 3) as job:
        job.register("t-1.4", "", 1000)
    read_reports(account, GRID_JOB)
    assert not file.exists()


def test_a_grid_job_without_the_folder_has_no_reports(account: Account) -> None:
    account.places.reports(GRID_JOB).rmdir()
    assert not has_reports(account.places.reports(GRID_JOB))
    read_reports(account, GRID_JOB)


def test_the_folder_itself_may_be_no_link(account: Account, tmp_path: Path) -> None:
    account.places.reports(GRID_JOB).rmdir()
    account.places.reports(GRID_JOB).symlink_to(tmp_path)
    with pytest.raises(OSError, match="no folder, or a link"):
        read_reports(account, GRID_JOB)


def test_a_handler_that_has_hung_is_not_asked_about_every_local_job(
    account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        report(account, number, "lines", "hang\n")
    read_reports(account, GRID_JOB)
    assert caplog.text.count("no end after") == caplog.text.count("not asked again") == 1


def test_who_reads_waits_for_who_reads_already(account: Account) -> None:
    reader = Thread(target=lambda: read_reports(open_account(str(account.places.root)), GRID_JOB))
    with locked(account.places.reports_lock(GRID_JOB)):
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join(SECONDS)
    assert not reader.is_alive()
