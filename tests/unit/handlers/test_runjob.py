"""Job types of DØRunjob and its like: what their requests may say, their ini files, and the payload that runs them."""

import configparser
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters import JobAdapter, PlannedJob, TooLarge
from handlers.production import CdfMonteCarloAdapter, DzeroMonteCarloAdapter, DzeroReconstructionAdapter
from tests.unit.handlers.experiments import faults_of, local_jobs, make_handler, run_local_job

PROGRAM = """#!/bin/sh
mkdir d0gstar d0sim
echo 7 >d0gstar/events.read
echo 4 >d0gstar/events-out.write
echo 3 >d0sim/events.read
cp "$1" "$SAMGRID_OUTPUT/ini"
ls .. >"$SAMGRID_OUTPUT/files"
exit "${CODE:-0}"
"""
MONTE_CARLO = {"runjob_requestid": 13669, "runjob_numevts": 10, "d0_release_version": "p14.07.00"}
SLICE = {"SAMGRID_EVENTS": "10", "SAMGRID_FIRST_EVENT": "1", "SAMGRID_SEED": "77"}
RECONSTRUCTION = {"processid": 3, "appversion": "p17", "d0_release_version": "p17"}


def write_job_file(tar: Path, program: str = PROGRAM) -> None:
    """A tar with the program at its place."""
    script = tar.parent / "script"
    script.write_text(program)
    script.chmod(0o755)
    with tarfile.open(tar, "w:gz") as archive:
        archive.add(script, "mc_runjob/mc_runjob")
    script.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A request's folder with a job file."""
    place = tmp_path / "request"
    place.mkdir()
    write_job_file(place / "mc_runjob.tar.gz")
    return place


def monte_carlo(folder: Path, table: Mapping[str, Any] | None = None, **words: Any) -> DzeroMonteCarloAdapter:
    return make_handler(
        DzeroMonteCarloAdapter, folder, table, **{**MONTE_CARLO, "jobfiles": ["mc_runjob.tar.gz"], **words}
    )  # fmt: skip


def test_monte_carlo_is_cut_like_any_type_with_events(folder: Path) -> None:
    handler = monte_carlo(folder, runjob_numevts=1001, events_per_local_job=100)
    assert (handler.getSize(), handler.getNumSubmissionTimes()) == (1001, 11)


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        (DzeroMonteCarloAdapter, "runjob_requestid"),
        (CdfMonteCarloAdapter, "request_id"),
        (DzeroReconstructionAdapter, "processid"),
    ],
)
def test_the_request_id_by_which_grid_jobs_are_found_is_an_attribute(kind: type[JobAdapter], attribute: str) -> None:
    assert kind.requestIdAttribute == attribute
    assert attribute in {one.name for one in kind.attributes}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param({"phases": ["d0sim", "d0gstar"]}, "phases must be some of generator, d0gstar", id="other order"),
        pytest.param({"phases": ["d0sim", "d0sim"]}, "each once and in this order, not 'd0sim d0sim'", id="twice"),
        pytest.param({"phases": ["geant"]}, "not 'geant'", id="unknown phase"),
        pytest.param({"cardfiles": "v1\nseed = 1"}, "cardfiles must be printable text without line breaks", id="break"),
        pytest.param({"group": "d0\u2028x"}, "group must be printable text", id="line separator"),
        pytest.param({"station_name": "\x1b[2J"}, "station_name must be printable text", id="control character"),
        pytest.param({"group": "\udcff"}, "group must be printable text", id="broken UTF-8"),
        pytest.param({"jobfiles": []}, "jobfiles_dataset or jobfiles is missing", id="no software"),
        pytest.param({"jobfiles": ["no.tgz"]}, "job file 'no.tgz' was not found", id="no job file"),
        pytest.param(
            {"jobfiles": ["mc_runjob.tar.gz", "{folder}/mc_runjob.tar.gz"]},
            "two job files are called 'mc_runjob.tar.gz'",
            id="two of one name",
        ),
        pytest.param({"jobfiles_dataset": "set"}, "[type.dzero_monte_carlo] datasets names", id="no datasets"),
        pytest.param({"minbias_dataset": "set"}, "dataset 'set': this site has no datasets", id="no overlay"),
    ],
)
def test_a_fault_is_one_sentence_that_names_it(folder: Path, words: dict[str, Any], fault: str) -> None:
    filled: dict[str, Any] = {
        name: [word.replace("{folder}", str(folder)) for word in value] if isinstance(value, list) else value
        for name, value in words.items()
    }
    text = faults_of(monte_carlo(folder, **filled))
    assert fault in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        pytest.param(["a/1.dat", "b/1.dat"], "two files of minimum-bias events are called '1.dat'", id="twice"),
        pytest.param(["a/1\n2.dat"], "has a line break", id="line break"),
    ],
)
def test_an_overlay_that_no_local_job_could_lay_out_is_refused(folder: Path, names: list[str], fault: str) -> None:
    for name in names:
        (folder / "sets/overlay" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sets/overlay" / name).touch()
    handler = monte_carlo(folder, {"datasets": str(folder / "sets")}, minbias_dataset="overlay")
    assert fault in faults_of(handler)


def test_a_value_of_the_site_that_would_break_the_ini_file_is_refused(folder: Path) -> None:
    handler = monte_carlo(folder, {"facilityname": "a\n[other]"})
    assert faults_of(handler).startswith("[type.dzero_monte_carlo] facilityname must be printable text")


def test_the_ini_file_has_the_requests_and_the_sites_values_and_no_empty_ones(folder: Path, tmp_path: Path) -> None:
    table = {"stationname": "home", "producedbyname": "a = b; 50% ü", "destinationpath": "/pnfs"}
    area = tmp_path / "area"
    area.mkdir()
    monte_carlo(folder, table, phases=["d0gstar", "d0sim"]).prepareWorkArea(area)
    assert (area / "runjob.ini").read_text() == (
        "[jdl]\nrequestid = 13669\ndistro = p14.07.00\nphases = d0gstar,d0sim\nstationname = home\n"
        "destinationpath = /pnfs\nproducedbyname = a = b; 50% ü\noptionalmonitors = jim\n"
    )


def test_reconstruction_takes_so_many_files_a_local_job(folder: Path) -> None:
    for number in range(7):
        (folder / f"{number}.raw").write_text("raw")
    words: dict[str, Any] = {
        **RECONSTRUCTION,
        "jobfiles": ["mc_runjob.tar.gz"],
        "input_folder": folder,
        "input_pattern": "*.raw",
    }
    handler = make_handler(DzeroReconstructionAdapter, folder, files_per_local_job=3, **words)
    assert not faults_of(handler)
    assert [len(group) for group in handler.groups] == [3, 3, 1]
    assert (handler.getSize(), handler.getNumSubmissionTimes()) == (None, 3)
    with pytest.raises(TooLarge):
        make_handler(DzeroReconstructionAdapter, folder, most=6, **words).getNumSubmissionTimes()


SHELLS = [[found] for name in ("dash", "bash") if (found := shutil.which(name))]


class TestPayload:
    @pytest.mark.parametrize("shell", SHELLS, ids=str)
    def test_the_program_finds_its_ini_file_and_its_phases_are_reported(
        self, folder: Path, tmp_path: Path, shell: list[str]
    ) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "samgrid-report").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/reports\n')
        (tools / "samgrid-report").chmod(0o755)
        done = run_local_job(
            tmp_path / "area", monte_carlo(folder), shell=shell, environment={**SLICE, "PATH": f"{tools}:/usr/bin:/bin"}
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(tmp_path / "area/output/ini")
        told = parser["jdl"]
        names = ("jimglobaljobid", "jimclusterjobid", "jimlocaljobid", "jobname", "numevents", "firstevent", "seed")
        assert [told[name] for name in names] == ["k3f00000", "123", "123_1", "k3f00000-1", "10", "1", "77"]
        reports = (tmp_path / "reports").read_text().splitlines()
        assert reports[-2:] == ["phase d0gstar 4/10 events", "phase d0sim 3/10 events"]

    def test_the_exit_code_is_the_programs(self, folder: Path, tmp_path: Path) -> None:
        assert run_local_job(tmp_path / "area", monte_carlo(folder), environment={**SLICE, "CODE": "7"}).returncode == 7

    def test_files_that_are_no_tar_lie_beside_what_was_unpacked(self, folder: Path, tmp_path: Path) -> None:
        (folder / "my cards.txt").write_text("cards")
        write_job_file(folder / "mc_runjob.tar.gz", '#!/bin/sh\ncat "my cards.txt" >"$SAMGRID_OUTPUT/cards"\n')
        handler = monte_carlo(folder, jobfiles=["mc_runjob.tar.gz", "my cards.txt"])
        assert run_local_job(tmp_path / "area", handler, environment=SLICE).returncode == 0
        assert (tmp_path / "area/output/cards").read_text() == "cards"

    def test_the_overlay_is_one_folder(self, folder: Path, tmp_path: Path) -> None:
        (folder / "overlay.list").write_text("/etc/hostname\n/etc/passwd\n")
        handler = monte_carlo(folder, {"datasets": str(folder)}, minbias_dataset="overlay")
        assert run_local_job(tmp_path / "area", handler, environment=SLICE).returncode == 0
        assert sorted(path.name for path in (tmp_path / "area/minbias").iterdir()) == ["hostname", "passwd"]
        assert f"minbidir = {tmp_path}/area/minbias\n" in (tmp_path / "area/output/ini").read_text()

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            pytest.param({"runjob_program": "no/run"}, "no program no/run: runjob_program names it", id="no program"),
            pytest.param({"jobfiles": ["bad.tar.gz"]}, "bad.tar.gz cannot be unpacked", id="damaged"),
        ],
    )
    def test_what_cannot_run_says_why_in_one_line(
        self, folder: Path, tmp_path: Path, words: dict[str, Any], message: str
    ) -> None:
        (folder / "bad.tar.gz").write_bytes((folder / "mc_runjob.tar.gz").read_bytes()[:40])
        done = run_local_job(tmp_path / "area", monte_carlo(folder, **words), environment=SLICE)
        assert done.returncode == 1
        assert done.stderr.startswith("runjob.sh: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize("shell", SHELLS, ids=str)
    def test_a_signal_is_passed_on_and_nothing_goes_on_running(
        self, folder: Path, tmp_path: Path, shell: list[str]
    ) -> None:
        program = "#!/bin/sh\ntrap 'echo ended; exit 9' TERM\nkill -TERM \"$PPID\"\nwhile :; do sleep 0.1; done\n"
        write_job_file(folder / "mc_runjob.tar.gz", program)
        done = run_local_job(tmp_path / "area", monte_carlo(folder), shell=shell, environment=SLICE)
        # Standard output is a pipe here: it is closed only when the last process that was started has ended.
        assert (done.returncode, done.stdout) == (9, "ended\n")

    def test_reconstruction_reads_the_local_jobs_own_files(self, folder: Path, tmp_path: Path) -> None:
        for number in range(3):
            (folder / f"{number}.raw").write_text("raw")
        words: dict[str, Any] = {
            **RECONSTRUCTION,
            "jobfiles": ["mc_runjob.tar.gz"],
            "input_files": ["0.raw", "1.raw", f"{folder}/2.raw"],
        }
        handler = make_handler(DzeroReconstructionAdapter, folder, files_per_local_job=2, **words)
        assert not faults_of(handler)
        for index, names in (
            (1, f"{folder}/2.raw,{tmp_path}/area1/inputs/0.raw"),
            (2, f"{tmp_path}/area2/inputs/1.raw"),
        ):
            assert run_local_job(tmp_path / f"area{index}", handler, index).returncode == 0
            assert f"inputfiles = {names}\n" in (tmp_path / f"area{index}/output/ini").read_text()

    def test_reconstruction_of_a_file_that_has_gone_names_it(self, folder: Path, tmp_path: Path) -> None:
        (folder / "0.raw").write_text("raw")
        words: dict[str, Any] = {**RECONSTRUCTION, "jobfiles": ["mc_runjob.tar.gz"], "input_files": [f"{folder}/0.raw"]}
        handler = make_handler(DzeroReconstructionAdapter, folder, **words)
        assert local_jobs(handler) == [PlannedJob(1, 1)]
        (folder / "0.raw").unlink()
        done = run_local_job(tmp_path / "area", handler)
        assert done.stderr == f"runjob.sh: the input {folder}/0.raw is gone or cannot be read\n"
