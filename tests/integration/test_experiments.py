"""Grid jobs of D0's and CDF's job types, to their end, with a stand-in for the experiments' program."""

import configparser
import gzip
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.test_grid_jobs import read_tar
from tests.samgrid import Samgrid
from tests.waiting import wait_until

STAND_IN = Path(__file__).parents[1] / "stand_ins" / "mc_runjob"
RUNJOB_TYPES = ("dzero_monte_carlo", "dzero_reconstruction", "cdf_monte_carlo")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's datasets: job files with the stand-in in each experiment's place, an overlay, and raw data."""
    folder = tmp_path_factory.mktemp("datasets")
    (folder / "jms_set14").mkdir()
    with tarfile.open(folder / "jms_set14" / "mc_runjob_v06-02-02.tar.gz", "w:gz") as tar:
        tar.add(STAND_IN, "mc_runjob/mc_runjob")
        tar.add(STAND_IN, "mcproduction/run")
    (folder / "raw").mkdir()
    for number in range(5):
        (folder / "raw" / f"run{number}.raw").write_text(f"raw {number}\n")
    (folder / "overlap.list").write_text(f"# minimum bias\n{folder}/raw/run0.raw\n")
    return folder


@pytest.fixture(scope="module")
def site(module_samgrid: Samgrid, datasets: Path) -> Samgrid:
    """The command line of a site with these datasets."""
    values = f'datasets = "{datasets}"\nfacilityname = "cluster at home"\nsamgroup = "dzero"\n'
    tables = "".join(f"[type.{name}]\n{values}" for name in RUNJOB_TYPES)
    tables += f'[type.dzero_merge]\ndatasets = "{datasets}"\n'
    (datasets / "samgrid.toml").write_text(f'[site]\nbatch_system = "fork"\n{tables}')
    return replace(module_samgrid, settings={"SAMGRID_CONFIG": str(datasets / "samgrid.toml")})


def run_to_its_end(site: Samgrid, request: str) -> tuple[str, dict[str, bytes]]:
    """The id and the files of a grid job that must be done."""
    job_id = site.submit(request)
    done = site("watch", job_id)
    assert done.returncode == 0, done.stdout + site("output", job_id).stdout
    return job_id, read_tar(site, job_id)


def read_ini(files: dict[str, bytes], job_id: str, index: int) -> configparser.SectionProxy:
    """What the stand-in was told."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(files[f"{job_id}.{job_id}-1.{index}.output/got.ini"].decode())
    return parser["jdl"]


def test_d0_monte_carlo_is_told_everything_by_its_ini_file_and_counts_its_phases(site: Samgrid) -> None:
    job_id, files = run_to_its_end(
        site,
        """&(samgrid_type = dzero_monte_carlo)(runjob_requestid = 13669)(runjob_numevts = 25)(seed = 7)
            (events_per_local_job = 10)(d0_release_version = p14.07.00)(jobfiles_dataset = jms_set14)
            (minbias_dataset = overlap)(group = mcc99)""",
    )
    ini = dict(read_ini(files, job_id, 2))
    scratch = ini.pop("minbidir").removesuffix("/minbias")
    assert scratch.startswith(str(site.scratch))
    assert ini == {
        "requestid": "13669",
        "distro": "p14.07.00",
        "phases": "generator,d0gstar,d0sim,d0reco,recoanalyze",
        "facilityname": "cluster at home",
        "samgroup": "mcc99",
        "optionalmonitors": "jim",
        "jimglobaljobid": job_id,
        "jimclusterjobid": f"{job_id}-1",
        "jimlocaljobid": f"{job_id}-1.2",
        "jobname": f"{job_id}-2",
        "numevents": "8",
        "firstevent": "9",
        "seed": "8",
        "destinationpath": f"{scratch}/output",
    }
    assert files[f"{job_id}.{job_id}-1.3.output/d0reco_{job_id}-3.root"] == b"d0reco"
    shown = site("status", job_id).stdout
    for phase in ("generator", "d0gstar", "d0sim", "d0reco", "recoanalyze"):
        assert re.search(rf"^phase {phase} +25 of 25 events\b", shown, re.MULTILINE), shown
    wait_until(lambda: not list(site.scratch.iterdir()))


OLD_FILE = """
# as SAMGrid's users wrote it
executable = placeholder
job_type = dzero_monte_carlo
sam_universe = prd
runjob_requestid = 13669
runjob_numevts = 2
d0_release_version = p14.07.00
jobfiles_dataset = jms_set14
station_name = samgrid-home
phases = d0gstar d0sim
+notify_user = "somebody@fnal.gov"
"""


def test_an_old_job_description_file_is_a_request(site: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "request.jdf").write_text(OLD_FILE)
    done = site("run", str(tmp_path / "request.jdf"))
    assert done.returncode == 0, done.stdout + done.stderr
    nobody = "samgrid: notify: nobody is notified, as the configuration names no [notification] command\n"
    assert done.stderr == f"samgrid: ignored: executable, sam_universe\n{nobody}"
    job_id = done.stdout.split()[2]
    ini = read_ini(read_tar(site, job_id), job_id, 1)
    assert (ini["requestid"], ini["stationname"], ini["phases"]) == ("13669", "samgrid-home", "d0gstar,d0sim")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(
            "= 2\n", "2\n", ["standard input: line 7, column 16", 'expected "=" behind runjob_numevts'], id="syntax"
        ),
        pytest.param("= 2\n", "= two\n", ["runjob_numevts must be an integer", "not 'two'"], id="value"),
        pytest.param("phases", "phase", ['unknown attribute "phase" for job type dzero_monte_carlo'], id="unknown"),
        pytest.param("dzero_monte", "monte", ['unknown job type "monte_carlo"', "dzero_monte_carlo"], id="type"),
        pytest.param("job_type", "jobs", ["samgrid_type is missing"], id="no type"),
        pytest.param("jms_set14", "jms_set15", ["dataset 'jms_set15' was not found"], id="dataset"),
    ],
)
def test_a_fault_of_an_old_file_is_one_clear_error(site: Samgrid, old: str, new: str, words: list[str]) -> None:
    done = site("submit", "-", stdin=OLD_FILE.replace(old, new, 1))
    assert (done.returncode, done.stdout) == (1, "")
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_d0_reconstruction_shares_a_dataset_among_local_jobs(site: Samgrid) -> None:
    job_id, files = run_to_its_end(
        site,
        """&(samgrid_type = dzero_reconstruction)(input_dataset = raw)(files_per_local_job = 2)(processid = 99)
            (appversion = p17.09.06)(d0_release_version = p17.09.06)(jobfiles_dataset = jms_set14)
            (events_per_file = 10)(phases = d0reco)""",
    )
    results = [files[f"{job_id}.{job_id}-1.{index}.output/d0reco_{job_id}-{index}.root"] for index in (1, 2, 3)]
    assert results == [b"raw 0\nraw 1\n", b"raw 2\nraw 3\n", b"raw 4\n"]
    ini = read_ini(files, job_id, 1)
    assert "requestid" not in ini
    assert [ini[name] for name in ("processid", "appversion", "appfamily", "appname")] == [
        "99", "p17.09.06", "reconstruction", "d0reco",
    ]  # fmt: skip
    assert "50 of 50 events" in site("status", job_id).stdout


def test_cdf_monte_carlo_takes_job_files_that_the_request_brings(site: Samgrid, datasets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "request"
    folder.mkdir()
    shutil.copy(datasets / "jms_set14" / "mc_runjob_v06-02-02.tar.gz", folder / "mcproduction.tgz")
    (folder / "cdf.rsl").write_text(
        """&(samgrid_type = cdf_monte_carlo)(request_id = 5)(events = 6)(cdf_release_version = 6.1.4mc)
            (run_number = 203265)(jobfiles = mcproduction.tgz)"""
    )
    done = site("run", str(folder / "cdf.rsl"))
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = done.stdout.split()[2]
    ini = read_ini(read_tar(site, job_id), job_id, 1)
    assert (ini["requestid"], ini["runnumber"], ini["numevents"]) == ("5", "203265", "6")
    assert ini["phases"] == "cdfgen,cdfsim,trgsim,production"
    assert "6 of 6 events" in site("status", job_id).stdout


def test_merging_makes_large_files_of_small_ones(site: Samgrid, tmp_path: Path) -> None:
    folder = tmp_path / "produced"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.evt.gz").write_bytes(gzip.compress(f"events {number}\n".encode()))
    (folder / "summary.json").write_text("{}")
    size = (folder / "0.evt.gz").stat().st_size
    request = f"&(samgrid_type = dzero_merge)(input_folder = {folder})(input_pattern = *.gz)(concatenate = yes)"
    job_id, files = run_to_its_end(site, f"{request}(target_size = {size * 2 / 1e6})")
    merged = [files[f"{job_id}.{job_id}-1.{index}.output/merged-{index}.evt.gz"] for index in (1, 2, 3)]
    assert [gzip.decompress(content) for content in merged] == [
        b"events 0\nevents 1\n",
        b"events 2\nevents 3\n",
        b"events 4\n",
    ]
    assert files[f"{job_id}.{job_id}-1.3.output/merged-3.evt.gz.inputs"] == f"{size} {folder}/4.evt.gz\n".encode()
    assert f"merged: 3 files, {5 * size:,} bytes" in site("output", job_id).stdout


def test_a_damaged_input_fails_its_local_job_and_is_named(site: Samgrid, tmp_path: Path) -> None:
    folder = tmp_path / "produced"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.gz").write_bytes(gzip.compress(b"x" * 1000))
    (folder / "1.gz").write_bytes((folder / "1.gz").read_bytes()[:-4])
    job_id = site.submit(f"&(samgrid_type = cdf_concatenate)(input_folder = {folder})(concatenate = yes)")
    done = site("watch", job_id)
    assert done.returncode == 1
    assert f"the input {folder}/1.gz is damaged" in done.stdout
    assert not [name for name in read_tar(site, job_id) if "merged" in name]


def test_root_files_are_merged_with_uproot(site: Samgrid, tmp_path: Path) -> None:
    uproot = pytest.importorskip("uproot")
    numpy = pytest.importorskip("numpy")
    names = []
    for number in range(3):
        names.append(str(tmp_path / f"{number}.root"))
        with uproot.recreate(names[-1]) as file:
            file.mktree("events", {"number": "int32"})
            file["events"].extend({"number": numpy.arange(number + 1, dtype="int32")})
            file["mass"] = numpy.histogram([91.0] * (number + 1), bins=2, range=(60, 120))
    job_id, files = run_to_its_end(site, f"&(samgrid_type = dzero_merge)(input_files = {' '.join(names)})")
    (tmp_path / "merged.root").write_bytes(files[f"{job_id}.{job_id}-1.1.output/merged-1.root"])
    with uproot.open(tmp_path / "merged.root") as merged:
        assert merged["events"]["number"].array(library="np").tolist() == [0, 0, 1, 0, 1, 2]
        assert merged["mass"].values().tolist() == [0, 6]


def test_production_and_merge_are_one_structured_grid_job(site: Samgrid) -> None:
    _, files = run_to_its_end(
        site,
        """&(samgrid_type = structured)(steps =
            (production (samgrid_type dzero_monte_carlo) (runjob_requestid 13669) (runjob_numevts 4)
                (events_per_local_job 2) (d0_release_version p14.07.00) (jobfiles_dataset jms_set14) (phases d0reco))
            (merge (job_type dzero_merge) (input_step production) (input_pattern *.root) (concatenate yes)))""",
    )
    (merged,) = (content for name, content in files.items() if re.fullmatch("merge/.*/merged-1.root", name))
    assert merged == b"d0recod0reco"
