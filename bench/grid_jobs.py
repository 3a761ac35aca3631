"""The benchmark of whole grid jobs: on a real Slurm and HTCondor, beside GRAM's fork, and in scheduler commands.

Prints tables and writes them to bench/GRID_JOBS.md, with every figure in bench/grid_jobs.json. Needs the packages of
the extra "test", and root for Slurm and HTCondor, which the tests' scripts bring up and take down again.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BENCH = Path(__file__).resolve().parent
# The job manager and its tests are no installed packages of these names.
sys.path.insert(1, str(_BENCH.parent))

from cluster_rows import measure_ends, measure_registration  # noqa: E402
from end_rows import NoPeer, measure_gram_ends  # noqa: E402
from gram_rows import NotInstalled, measure_gram  # noqa: E402
from grid_report import (  # noqa: E402
    Row,
    Section,
    read_date,
    read_results,
    read_sections,
    render_json,
    render_report,
    render_section,
)
from status_rows import measure_status  # noqa: E402
from traffic_rows import COMMANDS_PER_MINUTE, measure_traffic  # noqa: E402
from web_rows import measure_web  # noqa: E402

from tests.real.conftest import write_configuration  # noqa: E402
from tests.real.site import Site, install_package  # noqa: E402

_REGISTRATION = """\
From the start of `samgrid submit` until the last local job of one grid job is registered (its id is in the database),
beside a loop of `sbatch` by the same account. All local jobs are submitted held, so that none runs, and are cancelled
afterwards. Slurm's MaxArraySize (1001 here) decides how many arrays a grid job becomes; MaxJobCount is raised.
The very first submit starts the account's monitor, too."""
_TRAFFIC = f"""\
What the monitor's looks at the batch system cost while all grid jobs are open: the tests' fake Slurm, whose clock
moves from look to look (reconcile_interval, as by default). Whatever happens, commands_per_minute bounds all commands
of an account: {COMMANDS_PER_MINUTE} a minute, {COMMANDS_PER_MINUTE * 60:,} an hour. The target with many is what was
counted with few."""
_ENDS = """\
From the time that a local job writes itself, as the last thing it does, until its state in the job database is done:
single local jobs, one at a time. Looked at every 2 ms."""
_GRAM = """\
globus-job-manager-script.pl as GRAM's job manager runs it, from the request's last byte to the answer's, with our
module and with Globus' own for fork, in turn in the same run; the embedded batch system runs the local jobs."""
_STATUS = """\
`samgrid status` in a process of its own, from its start to its end: a line for each grid job, or for one."""
_WEB = """\
The status page of one grid job in the middle of its work, each run a first visit, with nothing kept from the last."""
_GRAM_ENDS = """\
A whole GRAM: from the time that a program writes itself, as the last thing it does, until its client, which waits
(`globusrun`), has ended. First in poll mode, twenty clients at once, whose programs end anywhere between two polls of
theirs. Then in SEG mode: ours with the embedded batch system and the collector, and fork with its starter and Globus'
own C generator, in turn. GRAM looks at its day files every 2 s. Last, how long it takes to submit (`globusrun -b`), in
SEG mode, too, each when the one before has been dealt with; and the same with a module that does nothing but answer:
what no module can save. Of a single submit, two waits of 42 ms are between GRAM and its client (TCP's delayed
acknowledgements, whatever the module); until our module answers, 12 ms pass."""


def measure(title: str, words: str, rows: Callable[[], Iterator[Row]]) -> Section:
    """One section; what cannot be measured is named with its reason."""
    load = os.getloadavg()[0]
    print(f"{title} …", file=sys.stderr, flush=True)
    found: list[Row] = []
    missing = ""
    try:
        found.extend(rows())
    except (pytest.skip.Exception, NotInstalled, NoPeer) as reason:
        missing = str(reason)
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        missing = f"{type(error).__name__}: {error}"
    section = Section(title, words, tuple(found), missing, load, os.getloadavg()[0], read_date())
    print(render_section(section), file=sys.stderr, flush=True)
    return section


class Ground:
    """A folder that every account can enter, and our programs in it, installed when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self) -> Path:
        """The folder of our programs."""
        if os.geteuid() != 0:
            pytest.skip("real systems are installed and started by root")
        if not (self._folder / "venv" / "bin" / "samgrid").exists():
            install_package(self._folder)
        return self._folder / "venv" / "bin"

    @contextmanager
    def start(self, name: str) -> Iterator[Site]:
        """A real batch system, with the configuration that a site has by default."""
        self.install()
        configuration = write_configuration(self._folder, name, name)
        settings = {"SAMGRID_CONFIG": str(configuration)}
        site = Site(name, name, self._folder / name, self._folder / "venv" / "bin", settings)
        site.folder.mkdir(exist_ok=True)
        try:
            site.run_script("start")
            shutil.rmtree(site.home, ignore_errors=True)
            site.make_home()
            yield site
        finally:
            site.end_processes()
            site.run_script("stop")


def run_bench(options: argparse.Namespace, ground: Ground, folder: Path) -> Iterator[Section]:
    """The sections that are asked for."""

    def registration() -> Iterator[Row]:
        with ground.start("slurm") as site:
            yield from measure_registration(site, options.runs, options.loop)

    def ends(name: str) -> Iterator[Row]:
        with ground.start(name) as site:
            yield from measure_ends(site, options.ends)

    def gram_ends() -> Iterator[Row]:
        yield from measure_gram_ends(ground.install(), folder / "gram-ends", options.client_ends)

    sections: dict[str, Callable[[], Section]] = {
        "registration": lambda: measure("Registration on Slurm", _REGISTRATION, registration),
        "slurm": lambda: measure("From an end to the database: Slurm", _ENDS, lambda: ends("slurm")),
        "condor": lambda: measure("From an end to the database: HTCondor", _ENDS, lambda: ends("condor")),
        "gram": lambda: measure("GRAM", _GRAM, lambda: measure_gram(folder, options.polls, options.once, options.runs)),
        "gram-ends": lambda: measure("From an end to GRAM's client", _GRAM_ENDS, gram_ends),
        "status": lambda: measure("Status", _STATUS, lambda: measure_status(folder / "status", options.looks)),
        "web": lambda: measure("Status page", _WEB, lambda: measure_web(folder / "web", options.looks)),
        "traffic": lambda: measure(
            "Scheduler commands", _TRAFFIC, lambda: measure_traffic(folder / "traffic", options.minutes * 60)
        ),
    }
    for name in options.only or sections:
        yield sections[name]()


def make_arguments() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each submit (default: 3)")
    parser.add_argument("--loop", type=int, default=100, help="sbatch commands in the loop (default: 100)")
    parser.add_argument("--ends", type=int, default=20, help="local jobs whose end is timed (default: 20)")
    parser.add_argument("--polls", type=int, default=300, help="interactive polls (default: 300)")
    parser.add_argument("--once", type=int, default=30, help="one-shot polls (default: 30)")
    parser.add_argument("--client-ends", type=int, default=11, help="jobs that a client waits for (default: 11)")
    parser.add_argument("--looks", type=int, default=5, help="runs of samgrid status and the page (default: 5)")
    parser.add_argument("--minutes", type=float, default=3, help="simulated minutes of looks (default: 3)")
    parser.add_argument("--folder", type=Path, help="keep what is installed for Slurm and HTCondor there")
    parser.add_argument("--no-write", action="store_true", help="only print")
    names = ("registration", "slurm", "condor", "gram", "gram-ends", "status", "web", "traffic")
    parser.add_argument("only", nargs="*", metavar="SECTION", help=f"of {', '.join(names)} (default: all)")
    return parser


def main() -> int:
    """Measure, print, and write each section when it is measured: a run that is ended loses nothing."""
    options = make_arguments().parse_args()
    # What was started is stopped, also where this is ended by a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Whoever runs this has an account and a configuration of their own.
    for name in [name for name in os.environ if name.startswith("SAMGRID_")]:
        del os.environ[name]
    # Below /tmp, a job of another account's service may see a /tmp of its own.
    with tempfile.TemporaryDirectory(prefix="samgrid-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ground = options.folder or folder
        ground.mkdir(exist_ok=True)
        # What is not measured now stays as it was, with its date.
        file = _BENCH / "grid_jobs.json"
        measured = read_sections(file.read_text())
        for section in run_bench(options, Ground(ground), folder):
            measured[section.title] = section
            results = read_results(os.cpu_count() or 0, measured.values())
            if not options.no_write:
                (_BENCH / "GRID_JOBS.md").write_text(render_report(results))
                file.write_text(render_json(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
