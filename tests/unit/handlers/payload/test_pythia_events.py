"""Pythia's payload, as a local job runs it."""

import importlib.util
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters import PlannedJob
from handlers.payload import pythia_events
from handlers.pythia import PythiaAdapter
from tests.unit.handlers.experiments import make_handler
from tests.waiting import SECONDS

needs_pythia = pytest.mark.skipif(
    importlib.util.find_spec("pythia8mc") is None, reason="pythia8mc is not installed (pip install pythia8mc)"
)


def pythia(table: Mapping[str, str] | None = None, **words: Any) -> PythiaAdapter:
    return make_handler(PythiaAdapter, Path("/"), table, **{"events": ["100"], **words})


class TestPayload:
    def test_masses_are_counted_in_their_bins_and_beside_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        histogram = pythia_events.fill_histogram([59.9, 60.0, 79.9, 80.0, 99.9, 100.0, 1e6, math.nan], 60, 100, 2)
        assert histogram["edges"] == [60, 80, 100]
        assert histogram["counts"] == [2, 2]
        assert (histogram["underflow"], histogram["overflow"], histogram["events_without_pair"]) == (1, 2, 1)

    @pytest.mark.parametrize("total", [1, 7, 18, 19, 20, 250, 251, 9999])
    def test_a_phase_reports_its_begin_and_end_and_20_times_at_most(
        self, total: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reports: list[str] = []
        monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(subprocess, "run", lambda argv, check: reports.append(argv[3]))
        phase = pythia_events.Phase("generate", total)
        for done in range(1, total + 1):
            phase.run_report(done)
        assert len(reports) <= pythia_events.REPORTS
        assert (reports[0], reports[-1]) == (f"0/{total}", f"{total}/{total}")

    def test_an_event_is_tried_again_but_not_for_ever(self) -> None:
        class Failing:
            """Pythia that completes an event after so many failures."""

            def __init__(self, failures: int) -> None:
                self.failures = failures

            def next(self) -> bool:
                self.failures -= 1
                return self.failures < 0

        assert pythia_events.run_one_event(Failing(9)) == 9
        with pytest.raises(pythia_events.PayloadError, match="10 times in a row"):
            pythia_events.run_one_event(Failing(10))

    @pytest.mark.parametrize("text", ["", "0", "-1", "many", "1.5"])
    def test_a_slice_that_is_no_number_is_named(self, text: str) -> None:
        environment = {"SAMGRID_FIRST_EVENT": "1", "SAMGRID_EVENTS": text, "SAMGRID_SEED": "1"}
        with pytest.raises(pythia_events.PayloadError, match=r"^SAMGRID_EVENTS must be a number from 1, not "):
            pythia_events.read_slice(environment)


def run_local_job(area: Path, handler: PythiaAdapter, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the payload in ``area`` as the driver would."""
    area.mkdir()
    handler.prepareWorkArea(area)
    argv = handler.getCommandAndArguments(PlannedJob(2, 2))
    part = {"SAMGRID_EVENTS": "20", "SAMGRID_FIRST_EVENT": "21", "SAMGRID_SEED": "7"}
    return subprocess.run(
        argv, cwd=area, env={**os.environ, **part, **environment}, capture_output=True, text=True, timeout=SECONDS
    )


def read_json(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a local job that made its 20 events, with its reports in ``reports``."""
    tools, area = tmp_path_factory.mktemp("tools"), tmp_path_factory.mktemp("made") / "area"
    reporter = tools / "samgrid-report"
    reporter.write_text('#!/bin/sh\necho "$*" >> reports\n')
    reporter.chmod(0o755)
    done = run_local_job(area, pythia(), PATH=f"{tools}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")
    return area


@needs_pythia
class TestPayloadRun:
    def test_the_events_are_the_slices_own_and_readable_by_pythia_itself(self, made: Path) -> None:
        text = (made / "output/events.lhe").read_text()
        numbers = [int(line.split()[2]) for line in text.splitlines() if line.startswith("# event ")]
        assert numbers == list(range(21, 41))
        import pythia8mc

        reader = pythia8mc.Pythia("", False)
        quick = ("Print:quiet = on", "PartonLevel:all = off")
        for line in (*quick, "Beams:frameType = 4", f"Beams:LHEF = {made / 'output/events.lhe'}"):
            assert reader.readString(line)
        assert reader.init()
        read = 0
        while reader.next():
            read += 1
        assert read == 20
        assert reader.infoPython().sigmaGen() == pytest.approx(
            read_json(made / "output/summary.json")["cross_section_mb"], rel=1e-5
        )

    def test_an_event_of_the_file_is_two_quarks_a_boson_and_two_muons(self, made: Path) -> None:
        lines = (made / "output/events.lhe").read_text().splitlines()
        first = lines.index("<event>") + 2
        particles = [tuple(int(word) for word in line.split()[:4]) for line in lines[first : first + 5]]
        assert [(status, one, two) for _, status, one, two in particles] == [
            (-1, 0, 0),
            (-1, 0, 0),
            (2, 1, 2),
            (1, 3, 0),
            (1, 3, 0),
        ]
        assert [code for code, *_ in particles[2:]] == [23, 13, -13]

    def test_the_masses_lie_around_the_z(self, made: Path) -> None:
        histogram = read_json(made / "output/dimuon-mass.json")
        edges, counts = histogram["edges"], histogram["counts"]
        beside = histogram["underflow"] + histogram["overflow"] + histogram["events_without_pair"]
        assert (len(edges), edges[0], edges[-1]) == (71, 60, 130)
        assert sum(counts) + beside == 20
        assert sum(counts[20:40]) >= 12, "few of the masses are within 80 to 100 GeV"

    def test_the_summary_says_what_was_made(self, made: Path) -> None:
        summary = read_json(made / "output/summary.json")
        assert [summary[name] for name in ("seed", "first_event", "events", "failed")] == [7, 21, 20, 0]
        assert summary["tried"] >= 20
        assert 100 < summary["cross_section_pb"] < 300
        assert 0 < summary["cross_section_error_pb"] < 60
        assert summary["cross_section_pb"] == pytest.approx(summary["cross_section_mb"] * 1e9)
        assert summary["version"].startswith("8.")

    def test_both_phases_are_reported_from_nothing_to_all(self, made: Path) -> None:
        reports = (made / "reports").read_text().splitlines()
        for phase in ("generate", "histogram"):
            own = [report for report in reports if report.startswith(f"phase {phase} ")]
            assert (own[0], own[-1]) == (f"phase {phase} 0/20 events", f"phase {phase} 20/20 events")

    def test_its_output_is_what_the_summary_of_the_grid_job_reads(self, made: Path) -> None:
        summary = pythia().getSummary([made / "output"])
        assert summary["events"] == "20"
        assert summary["cross section"].endswith(" pb")
        assert "outputs not read" not in summary

    def test_the_same_seed_makes_the_same_bytes_and_another_seed_does_not(self, made: Path, tmp_path: Path) -> None:
        assert run_local_job(tmp_path / "same", pythia()).returncode == 0
        assert run_local_job(tmp_path / "other", pythia(), SAMGRID_SEED="8").returncode == 0
        for name in ("events.lhe", "dimuon-mass.json", "summary.json"):
            assert (tmp_path / "same/output" / name).read_bytes() == (made / "output" / name).read_bytes()
        assert (tmp_path / "other/output/events.lhe").read_bytes() != (made / "output/events.lhe").read_bytes()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            pytest.param("No:such = on", "Pythia does not accept the setting 'No:such = on'", id="unknown setting"),
            pytest.param("HardQCD:all = off", "cannot be initialised with pythia.cmnd", id="no process"),
            pytest.param("HardQCD:all = on", "settings that weight events are not supported", id="weighted events"),
        ],
    )
    def test_what_pythia_cannot_do_ends_with_one_line_on_stderr(
        self, tmp_path: Path, settings: str, message: str
    ) -> None:
        lines = [settings]
        if "weight" in message:
            lines.append("PhaseSpace:bias2Selection = on")
        done = run_local_job(tmp_path / "area", pythia(settings=lines))
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_full_disk_ends_with_one_line_on_stderr(self, tmp_path: Path) -> None:
        handler = pythia({"python": str(write_limited_python(tmp_path))})
        done = run_local_job(tmp_path / "area", handler)
        assert done.returncode == 1
        assert "File too large" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "area/output/summary.json").exists()


def write_limited_python(folder: Path) -> Path:
    """A Python that may write files of 4096 bytes and no more."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\nimport os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    program.chmod(0o755)
    return program


def test_a_python_without_pythia_is_told_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "pythia8mc.py").write_text("raise ImportError('not here')\n")
    done = run_local_job(tmp_path / "area", pythia(), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "cannot import pythia8mc (not here): pip install pythia8mc" in done.stderr
    assert done.stderr.count("\n") == 1
