"""What programs tell while they run reaches whoever looks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.test_grid_jobs import short_sleeps
from tests.samgrid import Samgrid
from tests.waiting import Gate, wait_until

HANDLER = '''
import re
from adapters import JobAdapter, Phase

class Talkative(JobAdapter):
    """Prints words of its own, until it may end."""
    jobType = "talkative"

    def getNumSubmissionTimes(self): return 2

    def prepareWorkArea(self, workArea):
        (workArea / "talk").write_text("""#!/bin/sh
echo Event 40 of 100
: <"$GATE"
echo Event 100 of 100
echo '<run xmlns="urn:d0" number="'$SAMGRID_INDEX'"/>' >run.xml
samgrid-report xml run.xml
""")
        (workArea / "talk").chmod(0o755)

    def getCommandAndArguments(self, localJob):
        return ["./talk"]

    def getPhaseOfLine(self, line):
        match = re.fullmatch(r"Event ([0-9]+) of ([0-9]+)", line)
        return Phase("generate", int(match[1]), int(match[2]), "events") if match else None
'''


@pytest.fixture(scope="module")
def site(module_samgrid: Samgrid, tmp_path_factory: pytest.TempPathFactory) -> Samgrid:
    """A site with that job type, where drivers look often, and local jobs are soon called silent."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "talkative.py").write_text(HANDLER)
    settings = {"SAMGRID_HANDLERS_MODULES": str(folder / "talkative.py"), "SAMGRID_MONITOR_STALL_TIME": "1"}
    return replace(module_samgrid, settings={**settings, **short_sleeps(folder)})


def facts(samgrid: Samgrid, job_id: str) -> dict[str, str]:
    """What ``samgrid status`` says of one grid job, line by line."""
    lines = samgrid("status", job_id).stdout.splitlines()
    return {name.strip(): text.strip() for name, _, text in (line.partition("  ") for line in lines)}


def test_status_shows_phases_from_lines_of_a_program_that_knows_nothing_of_us(site: Samgrid, tmp_path: Path) -> None:
    more, go = tmp_path / "more", tmp_path / "go"
    tell = "echo samgrid-phase generate"
    wait = "until [ -e {} ]; do sleep 0.1; done"
    script = f"{tell} 20/100 events; {wait.format(more)}; {tell} 40/100 events; {wait.format(go)}; echo the end"
    job_id = site.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{script}')(count=2)")
    wait_until(lambda: "40 of 200 events" in facts(site, job_id).get("phase generate", ""))
    # Whoever says this has seen it run for so long that a rate can be told.
    wait_until(lambda: "may end" in facts(site, job_id))
    more.touch()
    wait_until(lambda: "80 of 200 events" in facts(site, job_id)["phase generate"])
    silent = "2 local jobs have told nothing new for 1 s, first number 1"
    wait_until(lambda: facts(site, job_id).get("stalled") == silent)
    shown = facts(site, job_id)
    assert shown["phase generate"].endswith(("events/s", "events/min"))
    assert shown["may end"].endswith("(estimate)")
    go.touch()
    watched = site("watch", job_id)
    assert watched.returncode == 0
    assert "generate 80/200 events" in watched.stdout
    assert {"stalled", "may end"}.isdisjoint(facts(site, job_id))


def test_phases_come_from_a_handler_that_understands_the_programs_words(site: Samgrid, gate: Gate) -> None:
    job_id = site.submit(f"&(samgrid_type=talkative)(environment=(GATE {gate.path}))")
    wait_until(lambda: facts(site, job_id).get("phase generate", "").startswith("80 of 200 events"))
    gate.open()
    assert site("watch", job_id).returncode == 0
    assert facts(site, job_id)["phase generate"].startswith("200 of 200 events")
    question = "//local-job/*[local-name()='run']/@number"
    assert site("query", "--job", job_id, question).stdout.split() == ["1", "2"]
    results = site.state / "jobs" / job_id / "results"
    assert list((results / "reports").iterdir()) == []
    manifest = site("output", job_id).stdout
    assert ".lines" not in manifest
    assert "missing" not in manifest
    assert json.loads(site("status", "--format", "json", job_id).stdout)[0]["state"] == "done"


def test_a_program_that_spoils_the_folder_of_reports_keeps_nothing_from_ending(shared_samgrid: Samgrid) -> None:
    spoil = "cd ${SAMGRID_STATUS%/*} && rm -rf reports && ln -s reports reports"
    job_id = shared_samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{spoil}')")
    assert shared_samgrid("watch", job_id).stdout.splitlines()[-1] == f"grid job {job_id} done"
    waiting = shared_samgrid.submit(f"&(samgrid_type=command)(executable=/bin/sh)(arguments=-c '{spoil}; sleep 3600')")
    wait_until((shared_samgrid.state / "jobs" / waiting / "results" / "reports").is_symlink)
    other = shared_samgrid.submit("&(samgrid_type=command)(executable=/bin/true)")
    assert shared_samgrid("watch", other).returncode == 0
    assert shared_samgrid("cancel", waiting).returncode == 0
    assert (
        shared_samgrid("watch", waiting).stdout.splitlines()[-1].startswith(f"grid job {waiting} cancelled: cancelled")
    )
