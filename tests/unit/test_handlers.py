"""The job types ``command`` and ``pythia``, and Pythia's payload as a local job runs it."""

import importlib.util
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters import Attribute, JobAdapter, Limits, LocalJob, Site, TooLarge, Value
from handlers.command import CommandAdapter
from handlers.payload import pythia_events
from handlers.pythia import CARD, PythiaAdapter, render_card
from jobmanager.job_types import load_job_types

needs_pythia = pytest.mark.skipif(
    importlib.util.find_spec("pythia8mc") is None, reason="pythia8mc is not installed (pip install pythia8mc)"
)


def read_request(kind: type[JobAdapter], folder: Path, **words: Sequence[Value]) -> dict[str, Any]:
    """The request as the framework hands it to a handler."""
    declared = {attribute.name: attribute for attribute in kind.attributes}
    assert set(words) <= set(declared)
    given = {name: declared[name].read(values, folder) for name, values in words.items()}
    return {name: attribute.default for name, attribute in declared.items()} | given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A request's folder with a program, a file without x bit, data and a subfolder."""
    place = tmp_path / "request"
    (place / "sub").mkdir(parents=True)
    for name, mode in (("run.sh", 0o755), ("plain.sh", 0o644), ("a.dat", 0o600), ("sub/b.dat", 0o644)):
        (place / name).write_text(name)
        (place / name).chmod(mode)
    return place


def command(folder: Path, site: Site | None = None, **words: Sequence[Value]) -> CommandAdapter:
    return CommandAdapter(read_request(CommandAdapter, folder, **words), site or Site())


def pythia(site: Site | None = None, **words: Sequence[Value]) -> PythiaAdapter:
    return PythiaAdapter(read_request(PythiaAdapter, Path("/"), **{"events": ["100"], **words}), site or Site())


@pytest.mark.parametrize("kind", load_job_types(()).values(), ids=lambda kind: kind.jobType)
def test_every_attribute_is_documented_once_and_its_default_is_allowed(kind: type[JobAdapter]) -> None:
    declared: list[Attribute] = [*kind.attributes, *kind.siteAttributes]
    assert len({attribute.name for attribute in declared}) == len(declared)
    for attribute in declared:
        assert attribute.doc.endswith(".")
        if isinstance(attribute.default, str | int | float):
            assert attribute.read([str(attribute.default)]) == attribute.default


class TestCommand:
    @pytest.mark.parametrize(
        ("words", "argv"),
        [
            pytest.param({"executable": ["/bin/sh"]}, ["/bin/sh"], id="installed program"),
            pytest.param(
                {"executable": ["/bin/sh"], "arguments": ["-c", "a b"]}, ["/bin/sh", "-c", "a b"], id="arguments"
            ),
            pytest.param({"executable": ["run.sh"]}, ["./run.sh"], id="program beside the request"),
            pytest.param({"executable": ["./run.sh"]}, ["./run.sh"], id="the same with a dot"),
        ],
    )
    def test_the_command_line_is_the_same_for_every_local_job(
        self, folder: Path, words: dict[str, Any], argv: list[str]
    ) -> None:
        handler = command(folder, **words, count=["2"])
        assert not list(handler.checkErrors())
        assert [handler.getCommandAndArguments(LocalJob(index, 2)) for index in (1, 2)] == [argv, argv]

    def test_an_installed_program_leaves_the_work_area_empty(self, folder: Path, tmp_path: Path) -> None:
        area = tmp_path / "area"
        area.mkdir()
        command(folder, executable=["/bin/sh"]).prepareWorkArea(area)
        assert not list(area.iterdir())

    def test_a_travelling_program_and_its_files_are_copied_with_their_modes(self, folder: Path, tmp_path: Path) -> None:
        area = tmp_path / "area"
        area.mkdir()
        handler = command(
            folder, executable=["run.sh"], input_files=["a.dat", "./sub/b.dat", str(folder / "plain.sh"), "run.sh"]
        )
        assert not list(handler.checkErrors())
        handler.prepareWorkArea(area)
        copied = {path.relative_to(area).as_posix() for path in area.rglob("*") if path.is_file()}
        assert copied == {"run.sh", "a.dat", "sub/b.dat", "plain.sh"}
        assert (area / "run.sh").read_text() == "run.sh"
        assert os.access(area / "run.sh", os.X_OK)
        assert (area / "a.dat").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            pytest.param({"executable": ["no.sh"]}, "executable 'no.sh' was not found in {folder}", id="not found"),
            pytest.param({"executable": ["/no/x"]}, "executable '/no/x' was not found", id="absolute, not found"),
            pytest.param({"executable": ["sub"]}, "executable 'sub' is a directory", id="directory"),
            pytest.param({"executable": ["/dev/null"]}, "executable '/dev/null' is not a regular file", id="device"),
            pytest.param(
                {"executable": ["plain.sh"]},
                "executable 'plain.sh' is not executable: set its x permission (chmod +x)",
                id="not executable",
            ),
            pytest.param(
                {"executable": ["../x"]},
                "executable '../x' must lie beside the request or below it: '..' is not allowed",
                id="outside",
            ),
            pytest.param(
                {"executable": ["/bin/sh"], "input_files": ["c.dat"]},
                "input file 'c.dat' was not found in {folder}",
                id="no input file",
            ),
            pytest.param(
                {"executable": ["run.sh"], "input_files": ["{folder}/sub/../sub/run.sh"]},
                "two files of the request would travel under the name 'run.sh'",
                id="two of one name",
            ),
            pytest.param(
                {"executable": ["/bin/sh"], "input_files": ["output/x"]},
                "file 'output/x' cannot travel under its name: 'output' is the job manager's",
                id="reserved name",
            ),
        ],
    )
    def test_a_fault_is_named_with_its_file(self, folder: Path, words: dict[str, Any], fault: str) -> None:
        for name in ("output/x", "sub/run.sh"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        words = {key: [word.format(folder=folder) for word in values] for key, values in words.items()}
        assert list(command(folder, **words).checkErrors()) == [fault.format(folder=folder)]

    def test_all_faults_are_named_at_once(self, folder: Path) -> None:
        handler = command(folder, executable=["no.sh"], input_files=["c.dat", "sub"])
        assert len(list(handler.checkErrors())) == 3

    def test_it_has_no_size_and_runs_count_times(self, folder: Path) -> None:
        assert command(folder, executable=["/bin/sh"]).getNumSubmissionTimes() == 1
        handler = command(folder, executable=["/bin/sh"], count=["1000"])
        assert handler.getSize() is None
        assert handler.getNumSubmissionTimes() == 1000

    def test_more_local_jobs_than_the_site_takes_are_refused(self, folder: Path) -> None:
        handler = command(folder, Site(Limits(max_local_jobs=10)), executable=["/bin/sh"], count=["11"])
        with pytest.raises(TooLarge, match=r"^count asks for 11 local jobs, but this site takes at most 10: ask"):
            handler.getNumSubmissionTimes()


class TestPythiaRequest:
    def test_the_default_is_drell_yan_at_the_tevatron(self) -> None:
        handler = pythia(events=["2000"])
        assert not list(handler.checkErrors())
        assert (handler.getSize(), handler.getNumSubmissionTimes()) == (2000, 8)
        card = render_card(handler.request).splitlines()
        assert card[1:] == [
            "Beams:idA = 2212",
            "Beams:idB = -2212",
            "Beams:eCM = 1960.0",
            "PhaseSpace:mHatMin = 60.0",
            "PhaseSpace:mHatMax = 130.0",
            "WeakSingleBoson:ffbar2gmZ = on",
            "23:onMode = off",
            "23:onIfAny = 13",
        ]

    def test_the_work_area_holds_the_payload_and_the_card(self, tmp_path: Path) -> None:
        pythia().prepareWorkArea(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {CARD, "pythia_events.py"}

    def test_the_payload_runs_under_the_sites_python_or_our_own(self) -> None:
        job = LocalJob(1, 1)
        theirs = pythia(Site(values={"python": "/opt/hep/bin/python"})).getCommandAndArguments(job)
        words = ["./pythia_events.py", "pythia.cmnd", "--mass-window", "60.0", "130.0", "--bins", "70"]
        assert theirs == ["/opt/hep/bin/python", *words]
        assert pythia().getCommandAndArguments(job) == [sys.executable, *words]

    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            pytest.param(
                {"m_min": ["100"], "m_max": ["90"]}, "m_min (100 GeV) must be below m_max (90 GeV)", id="empty window"
            ),
            pytest.param(
                {"m_max": ["2000"]},
                "m_max (2000 GeV) must not exceed the collision's energy (1960 GeV)",
                id="above the energy",
            ),
            pytest.param(
                {"settings": ["HardQCD:all"]},
                "settings must be words such as \"HardQCD:all = on\", not 'HardQCD:all'",
                id="no value",
            ),
            pytest.param(
                {"settings": ["HardQCD:all = on\n"]},
                "settings must be words such as \"HardQCD:all = on\", not 'HardQCD:all = on\\n'",
                id="a second line",
            ),
            pytest.param(
                {"settings": ["random:SEED = 5"]},
                "settings must not contain random:SEED: the attribute seed decides it",
                id="an attribute's setting",
            ),
        ],
    )
    def test_a_fault_names_the_attribute(self, words: dict[str, Any], fault: str) -> None:
        assert list(pythia(**words).checkErrors()) == [fault]


def write_outputs(folder: Path, cross_section: float, error: float, tried: int, counts: list[int]) -> Path:
    folder.mkdir()
    summary = {"events": 10, "tried": tried, "cross_section_pb": cross_section, "cross_section_error_pb": error}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "dimuon-mass.json").write_text(json.dumps({"edges": [80, 90, 100, 110], "counts": counts}))
    return folder


class TestPythiaSummary:
    def test_slices_are_combined_with_the_tried_events_as_weights(self, tmp_path: Path) -> None:
        outputs = [
            write_outputs(tmp_path / "1", 100, 3, 300, [1, 2, 0]),
            write_outputs(tmp_path / "2", 200, 12, 100, [1, 4, 2]),
        ]
        assert pythia().getSummary(outputs) == {
            "events": "20",
            "cross section": f"125.0 ± {math.hypot(900, 1200) / 400:.1f} pb",
            "dimuon mass peak": "90 to 100 GeV (6 events)",
            "mean dimuon mass": "95.00 GeV",
        }

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(None, id="missing"),
            pytest.param("", id="empty"),
            pytest.param("[1]", id="a list"),
            pytest.param("[" * 100_000, id="deeply nested"),
            pytest.param('{"events": -1}', id="an absent cross section"),
            pytest.param('{"events": 1, "tried": 1, "cross_section_pb": NaN, "cross_section_error_pb": 1}', id="NaN"),
            pytest.param(
                '{"events": 1, "tried": -5, "cross_section_pb": 1, "cross_section_error_pb": 1}', id="negative count"
            ),
            pytest.param("9" * 2_000_000, id="too large"),
        ],
    )
    def test_an_unusable_output_is_counted_and_the_others_summarised(self, tmp_path: Path, content: str | None) -> None:
        good, bad = (write_outputs(tmp_path / name, 100, 3, 300, [1, 2, 0]) for name in ("good", "bad"))
        (bad / "summary.json").unlink()
        if content is not None:
            (bad / "summary.json").write_text(content)
        summary = pythia().getSummary([bad, good])
        assert summary["cross section"] == "100.0 ± 3.0 pb"
        assert summary["events"] == "10"
        assert summary["outputs not read"] == "1 of 2"

    def test_a_link_in_an_output_is_not_followed(self, tmp_path: Path) -> None:
        good, bad = (write_outputs(tmp_path / name, 100, 3, 300, [1, 2, 0]) for name in ("good", "bad"))
        (bad / "summary.json").unlink()
        (bad / "summary.json").symlink_to(good / "summary.json")
        assert pythia().getSummary([bad]) == {"events": "0", "outputs not read": "1 of 1"}

    def test_no_output_at_all_is_no_error(self) -> None:
        assert pythia().getSummary([]) == {"events": "0"}


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
    argv = handler.getCommandAndArguments(LocalJob(2, 2))
    part = {"SAMGRID_EVENTS": "20", "SAMGRID_FIRST_EVENT": "21", "SAMGRID_SEED": "7"}
    return subprocess.run(
        argv, cwd=area, env={**os.environ, **part, **environment}, capture_output=True, text=True, timeout=60
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
        handler = pythia(Site(values={"python": str(write_limited_python(tmp_path))}))
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
