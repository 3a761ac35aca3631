"""Rows of a whole GRAM: how soon clients have submitted, and know of an end, with ours and with Globus' own parts."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from grid_report import Row

from tests.gram.gram_site import FORK, OUR_PROGRAMS, OURS, GramSite, configured, own_configuration, sh
from tests.gram.seg_mode import collecting, read_events
from tests.real.site import ACCOUNT

SHARE_TARGET = 50.0
"""Milliseconds from the program's end to the event that GRAM reads: what is ours of the client's wait."""
_REFERENCE = 1.04
"""Seconds to the client, measured once of fork with the C generator (GRAM looks at its events every 2 s)."""
_CLIENTS, _ROUNDS, _WAITING = 50, 3, 20
"""Clients that submit at once, and how often they do; clients that wait at once in poll mode."""
_SUBMITS, _REST = 25, 2.0
"""Single submits of each; seconds before each for what the last one has left to do: its program, its outputs."""
_POLL_INTERVAL = 10
"""Seconds between GRAM's polls of one job. Of the type fork it polls none: it looks for their processes itself."""
_SUBMIT_RATIO = 1.1
"""At most so many times as long as with fork."""
_SERVICE = Path("/etc/grid-services") / FORK
_POLLED_TYPE, _EMPTY_TYPE = "samgridbenchpolled", "samgridbenchempty"
_POLLED = "jobmanager-samgrid-bench-polled"
"""Fork's module under another name, by which GRAM polls it as it polls ours and every batch system's."""
_POLLED_MODULE = f"""
use Globus::GRAM::JobManager::fork;
package Globus::GRAM::JobManager::{_POLLED_TYPE}; our @ISA = ('Globus::GRAM::JobManager::fork'); 1;
"""
_EMPTY = "jobmanager-samgrid-bench-empty"
"""A module that does nothing: what is left is GRAM's and its clients', and no module can be faster."""
_EMPTY_MODULE = f"""
use Globus::GRAM::JobManager;
package Globus::GRAM::JobManager::{_EMPTY_TYPE}; our @ISA = ('Globus::GRAM::JobManager');
my $number = 0;
sub submit {{ return {{ JOB_ID => "$$." . ++$number, JOB_STATE => 1 }}; }}
1;
"""
_MODULES = Path("/usr/share/perl5/Globus/GRAM/JobManager")
_GENERATOR = "globus-scheduler-event-generator"
_MODULE = "libglobus_seg_fork.so"
_FORK_EVENTS = Path("/var/lib/globus/globus-seg-fork")
_FORK_LOG = Path("/var/log/globus/globus-fork.log")
_PATIENCE = 120.0
_OFTEN = 0.002


class NoPeer(Exception):
    """Globus' own generator is not here."""


@dataclass(frozen=True)
class Ending:
    """When one job ended, in seconds since 1970, by one machine's clock."""

    by_program: float
    """What it wrote itself, the last thing it did."""
    by_event: float
    """When DONE stood in GRAM's day file; of fork 0, which nobody watches."""
    by_client: float
    """When the client that waited for it was told."""


def measure_gram_ends(programs: Path, folder: Path, runs: int) -> Iterator[Row]:
    """Jobs of ours and of fork, in turn, each of one process and with a client that waits.

    :param programs: ours, installed; folder: a new one, where every account can go.
    :raises NoPeer: Globus' generator with its module for fork is not installed.
    """
    if not any(Path("/usr/lib").rglob(_MODULE)):
        raise NoPeer(f"{_MODULE} is not installed (bench/run.py --install, as root)")
    endings: dict[str, list[Ending]] = {OURS: [], FORK: []}
    with _open_gram(programs, folder) as gram:
        with _module(_POLLED, _POLLED_TYPE, _POLLED_MODULE):
            yield from _measure_poll_ends(gram)
        gram.end_job_managers()
        gram.register("install", "--seg", "--state", str(gram.state))
        with _event_mode(gram, folder), _c_generator():
            # The first job of each brings up its job manager, its interpreter, and our monitor.
            for number in range(-1, runs):
                for service, found in endings.items():
                    ending = _run_to_end(gram, service, number)
                    if number >= 0:
                        found.append(ending)
            yield from _render(endings[OURS], endings[FORK])
            # After fork's service file has got its SEG module.
            with _module(_EMPTY, _EMPTY_TYPE, _EMPTY_MODULE):
                yield from _compare_submits(gram, "`globusrun -b`", _SUBMITS, 1)
                yield from _compare_submits(gram, f"`globusrun -b`, {_CLIENTS} clients at once", _ROUNDS, _CLIENTS)


def _compare_submits(gram: GramSite, what: str, rounds: int, clients: int) -> Iterator[Row]:
    """Ours, fork's and the empty module in turn, in seconds; the first of each is not counted."""
    found: dict[str, list[float]] = {OURS: [], FORK: [], _EMPTY: []}
    for number in range(-1, rounds):
        for service, figures in found.items():
            time.sleep(_REST)
            seconds = _time_submits(gram, service, clients)
            if number >= 0:
                figures.append(seconds)
    limit = _SUBMIT_RATIO * median(found[FORK])
    yield Row(f"{what}: ours", "s", tuple(found[OURS]), limit, f"target: fork's median × {_SUBMIT_RATIO:g}")
    yield Row(f"{what}: fork", "s", tuple(found[FORK]))
    yield Row(f"{what}: an empty module", "s", tuple(found[_EMPTY]), None, "the limit: it answers at once")


def _time_submits(gram: GramSite, service: str, clients: int) -> float:
    """Seconds until so many clients have submitted a job each, at once."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda _: gram.submit(service, "(executable=/bin/true)"), range(clients)))
    return time.perf_counter() - begin


def _measure_poll_ends(gram: GramSite) -> Iterator[Row]:
    ours, polled, fork = (_poll_ends(gram, service) for service in (OURS, _POLLED, FORK))
    what = "poll mode, from the program's end to the client"
    yield Row(f"{what}: ours", "s", ours, median(polled), "target: that of fork's module, polled")
    yield Row(f"{what}: fork's module, polled", "s", polled, None, "by GRAM, every 10 s, as ours is")
    yield Row(f"{what}: fork", "s", fork, None, "never polled: GRAM looks for its processes every second")


def _poll_ends(gram: GramSite, service: str) -> tuple[float, ...]:
    """Seconds from a program's end until its client knows, each."""
    gram.globusrun(service, "(executable=/bin/true)")

    def wait(number: int) -> float:
        mark = gram.home / f"polled-{service}-{number}"
        # The ends lie evenly between two polls, wherever these are.
        script = _render_script(mark, 1 + number * _POLL_INTERVAL / _WAITING)
        done = gram.run("globusrun", "-r", gram.contact(service), f"&{sh(script)}")
        by_client = time.time()
        if done.status != 0:
            raise ValueError(f"{service}: a client ended with status {done.status}: {done.words}")
        return by_client - float(mark.read_text().split()[0])

    with ThreadPoolExecutor(_WAITING) as pool:
        return tuple(pool.map(wait, range(_WAITING)))


def _render(ours: list[Ending], fork: list[Ending]) -> Iterator[Row]:
    waits = {name: tuple(end.by_client - end.by_program for end in ends) for name, ends in (("", fork), ("o", ours))}
    limit = max(_REFERENCE, median(waits[""]))
    shares = tuple((end.by_event - end.by_program) * 1e3 for end in ours)
    yield Row("from the program's end to the client: ours", "s", waits["o"], limit, "target: fork's, at least 1.04")
    yield Row("from the program's end to the client: fork, C generator", "s", waits[""])
    yield Row("from the program's end to GRAM's event: ours", "ms", shares, SHARE_TARGET, "our share of it")


def _run_to_end(gram: GramSite, service: str, number: int) -> Ending:
    mark = gram.home / f"ended-{service}-{number}"
    # GRAM looks every 2 s: the ends are to lie anywhere between two looks. Before 2 s it may not know of the job yet.
    script = _render_script(mark, 2.5 + number * 0.37 % 2)
    by_event = 0.0
    deadline = time.monotonic() + _PATIENCE
    with gram.start("globusrun", "-r", gram.contact(service), f"&{sh(script)}") as client:
        while client.poll() is None:
            if time.monotonic() > deadline:
                client.kill()
                raise TimeoutError(f"{service}: a client still waits after {_PATIENCE:.0f} s")
            if service == OURS and not by_event and mark.exists() and _is_told(mark.read_text().split()[1]):
                by_event = time.time()
            time.sleep(_OFTEN)
        by_client = time.time()
        if client.returncode != 0:
            raise ValueError(f"{service}: the client ended with status {client.returncode}: {client.communicate()!r}")
    return Ending(float(mark.read_text().split()[0]), by_event or by_client, by_client)


def _render_script(mark: Path, seconds: float) -> str:
    return f'sleep {seconds:.2f}; echo "$(date +%s.%N) $SAMGRID_GRID_JOB" >{mark}.new; mv {mark}.new {mark}'


def _is_told(grid_job: str) -> bool:
    return f";{grid_job};8;" in read_events()


def _today() -> str:
    return datetime.now(UTC).strftime("%Y%m%d")


@contextmanager
def _open_gram(programs: Path, folder: Path) -> Iterator[GramSite]:
    """A gatekeeper, with our job manager and GRAM's own for fork."""
    gram = GramSite(folder / "gram", programs, folder / "home")
    for own in (folder, gram.folder, gram.home):
        own.mkdir(mode=0o755)
    with own_configuration():
        try:
            gram.run_script("start")
            shutil.chown(gram.home, ACCOUNT, ACCOUNT)
            gram.register("install", "--poll", "--state", str(gram.state))
            yield gram
        finally:
            gram.run_script("stop")
            gram.kill_ours(*OUR_PROGRAMS)
            gram.kill_jobs(str(gram.home))
            gram.register("uninstall")


@contextmanager
def _module(service: str, service_type: str, text: str) -> Iterator[None]:
    """A service like fork's, with a module of this text."""
    module, file = _MODULES / f"{service_type}.pm", _SERVICE.with_name(service)
    try:
        module.write_text(text)
        file.write_text(_SERVICE.read_text().replace("-type fork", f"-type {service_type}"))
        yield
    finally:
        file.unlink(missing_ok=True)
        module.unlink(missing_ok=True)


@contextmanager
def _event_mode(gram: GramSite, folder: Path) -> Iterator[None]:
    """Our side as a site with many accounts has it: events go by way of the collector."""
    with collecting(folder / "collector") as text, configured(gram, text):
        yield


@contextmanager
def _c_generator() -> Iterator[None]:
    """Fork's side as its package has it: its starter writes a log, which the C program turns into day files."""
    _SERVICE.write_text(_SERVICE.read_text().rstrip() + " -seg-module fork\n")
    had_log, had_events = _FORK_LOG.exists(), _FORK_EVENTS.exists()
    _FORK_EVENTS.mkdir(exist_ok=True)
    # The C program makes it with the first event, and GRAM, which was here before, would look for it after 30 s only.
    (_FORK_EVENTS / _today()).touch()
    _FORK_LOG.touch()
    _FORK_LOG.chmod(0o666)
    command = (f"/usr/sbin/{_GENERATOR}", "-s", "fork", "-d", str(_FORK_EVENTS))
    generator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/")
    try:
        yield
    finally:
        generator.kill()
        generator.communicate()
        if not had_log:
            _FORK_LOG.unlink(missing_ok=True)
        if not had_events:
            shutil.rmtree(_FORK_EVENTS, ignore_errors=True)
