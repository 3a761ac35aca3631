"""A request of each job type, and what Condor-G and GRAM 1.5 say beside it whatever the type."""

import tarfile
from pathlib import Path

STAND_IN = Path(__file__).parent / "stand_ins" / "mc_runjob"

_MONTE_CARLO = "(events_per_local_job=2)(jobfiles=FOLDER/jobfiles.tar.gz)"
REQUESTS = {
    "pythia": "(events=4)(events_per_local_job=2)",
    "dzero_monte_carlo": f"(runjob_requestid=1)(runjob_numevts=4)(d0_release_version=p14.07.00){_MONTE_CARLO}",
    "cdf_monte_carlo": f"(request_id=5)(events=4)(cdf_release_version=6.1.4mc){_MONTE_CARLO}",
    "dzero_reconstruction": "(input_folder=FOLDER/inputs)(processid=9)(appversion=p17.09.06)(events_per_file=10)"
    "(d0_release_version=p17.09.06)(jobfiles=FOLDER/jobfiles.tar.gz)",
    "dzero_merge": "(input_folder=FOLDER/inputs)(concatenate=yes)",
    "cdf_concatenate": "(input_folder=FOLDER/inputs)(concatenate=yes)",
    "structured": "(steps=(one (samgrid_type command)(executable /bin/true)))",
}
"""What a submit file's ``globus_rsl`` says beside the type, by job type; FOLDER is that of `write_files`."""


def write_files(folder: Path) -> None:
    """The files that these requests name."""
    (folder / "inputs").mkdir(parents=True)
    for number in range(2):
        (folder / "inputs" / f"{number}.dat").write_text(f"events {number}\n")
    with tarfile.open(folder / "jobfiles.tar.gz", "w:gz") as tar:
        tar.add(STAND_IN, "mc_runjob/mc_runjob")
        tar.add(STAND_IN, "mcproduction/run")


def render_globus_rsl(job_type: str, folder: Path) -> str:
    """The ``globus_rsl`` of a submit file for this job type."""
    return f"(samgrid_type={job_type}){REQUESTS.get(job_type, '')}".replace("FOLDER", str(folder))
