"""What GRAM's job manager waits for: its own script with our module and with its fork module, in turn."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from grid_report import Row

from tests.conftest import end_processes_of
from tests.gram_interpreter import SCRIPT, Answer, GramSite, Interpreter, Words, read_lines, render_request

LOCAL_JOBS = 10_000
POLL_TARGET = 1.0
SUBMIT_TARGET = 100.0
"""Both in milliseconds."""
_OURS = "samgrid"
_FORK = "fork"
_SLEEP: Mapping[str, Words] = {"executable": ["/bin/sleep"], "arguments": ["600"]}
_PATIENCE = 60.0


class NotInstalled(Exception):
    """Globus' own script is not here."""


def measure_gram(folder: Path, polls: int, one_shots: int, submits: int) -> Iterator[Row]:
    """Polls and submits of ours and of fork, in turn.

    :raises NotInstalled: there is no GRAM.
    """
    if not SCRIPT.exists():
        raise NotInstalled("globus-gram-job-manager-scripts is not installed")
    yield from _measure_polls(folder / "polls", polls, one_shots)
    yield from _measure_submits(folder, submits)


@contextmanager
def _open_site(folder: Path) -> Iterator[GramSite]:
    folder.mkdir(parents=True)
    site = GramSite(
        folder, {"SAMGRID_SANDBOX_SCRATCH_FOLDER": str(folder / "scratch"), "SAMGRID_FORK_CANCEL_GRACE": "1"}
    )
    site.install()
    try:
        yield site
    finally:
        end_processes_of(folder)


def _start(site: GramSite, module: str) -> Interpreter:
    command = ["perl", str(SCRIPT), "-m", module, "-c", "interactive", "-l", "/usr/lib"]
    gram = Interpreter(command, site.environment(), site.home)
    # The base class answers this at once, of every module: from then on it is loaded.
    gram.ask("proxy_update", **site.describe("0"))
    return gram


def _measure_polls(folder: Path, polls: int, one_shots: int) -> Iterator[Row]:
    with _open_site(folder) as site, _start(site, _OURS) as ours, _start(site, _FORK) as fork:
        interpreters = {_OURS: ours, _FORK: fork}
        jobs = {module: _submit(site, gram, "1.1") for module, gram in interpreters.items()}
        wishes = {module: site.describe("1.1", jobid=[job]) for module, job in jobs.items()}
        _wait_until_active(ours, wishes[_OURS])
        interactive: dict[str, list[float]] = {_OURS: [], _FORK: []}
        for _ in range(polls):
            for module, gram in interpreters.items():
                interactive[module].append(_time_poll(gram, wishes[module]))
        once: dict[str, list[float]] = {_OURS: [], _FORK: []}
        for _ in range(one_shots):
            for module in interpreters:
                once[module].append(_time_one_shot(site, module, wishes[module]))
        for gram, wish in zip(interpreters.values(), wishes.values(), strict=True):
            gram.ask("cancel", **wish)
    yield Row("poll, interactive: ours", "ms", tuple(interactive[_OURS]), POLL_TARGET)
    yield Row("poll, interactive: fork", "ms", tuple(interactive[_FORK]))
    yield Row("poll, one-shot: ours", "ms", tuple(once[_OURS]), median(once[_FORK]), "target: fork's median")
    yield Row("poll, one-shot: fork", "ms", tuple(once[_FORK]))


def _measure_submits(folder: Path, submits: int) -> Iterator[Row]:
    """Each submit on a site of its own: what is being submitted in the background would be in the next one's way."""
    figures: dict[str, list[float]] = {"first": [], "next": [], "fork": []}
    for number in range(submits):
        with _open_site(folder / f"first-{number}") as site, _start(site, _OURS) as gram:
            figures["first"].append(_time_submit(site, gram, "1.1", LOCAL_JOBS))
        with _open_site(folder / f"next-{number}") as site, _start(site, _OURS) as gram:
            job = _submit(site, gram, "1.1")
            _wait_until_active(gram, site.describe("1.1", jobid=[job]))
            figures["next"].append(_time_submit(site, gram, "1.2", LOCAL_JOBS))
        with _open_site(folder / f"fork-{number}") as site, _start(site, _FORK) as gram:
            begin = time.perf_counter()
            job = _submit(site, gram, "1.1")
            figures["fork"].append((time.perf_counter() - begin) * 1e3)
            gram.ask("cancel", **site.describe("1.1", jobid=[job]))
    what = f"submit of {LOCAL_JOBS:,}, interactive: ours"
    alive = "program and monitor run already"
    yield Row(f"{what}, a next one", "ms", tuple(figures["next"]), SUBMIT_TARGET, alive)
    first = "starts the interpreter's program, makes the state folder"
    yield Row(f"{what}, the first", "ms", tuple(figures["first"]), SUBMIT_TARGET, first)
    yield Row("submit of 1, interactive: fork", "ms", tuple(figures["fork"]), None, "it would start them all itself")


def _submit(site: GramSite, gram: Interpreter, uniqid: str, count: int = 1) -> str:
    answer = dict(gram.ask("submit", **site.describe(uniqid, **{**_SLEEP, "count": [str(count)]})))
    if "JOB_ID" not in answer:
        raise ValueError(f"a submit is answered with {answer}")
    return answer["JOB_ID"]


def _time_submit(site: GramSite, gram: Interpreter, uniqid: str, count: int) -> float:
    begin = time.perf_counter()
    _submit(site, gram, uniqid, count)
    return (time.perf_counter() - begin) * 1e3


def _wait_until_active(gram: Interpreter, wish: Mapping[str, Words]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while gram.ask("poll", **wish) != [("JOB_STATE", "2")]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not active within {_PATIENCE:.0f} s")
        time.sleep(0.05)


def _time_poll(gram: Interpreter, wish: Mapping[str, Words]) -> float:
    request = render_request("poll", wish)
    begin = time.perf_counter()
    gram.send(request)
    answer = gram.read()
    seconds = time.perf_counter() - begin
    _check_active(answer)
    return seconds * 1e3


def _time_one_shot(site: GramSite, module: str, wish: Mapping[str, Words]) -> float:
    file = site.folder / "description"
    # Without the command: what follows it is Perl.
    file.write_bytes(render_request("", wish).lstrip())
    words = ["perl", str(SCRIPT), "-m", module, "-c", "poll", "-f", str(file)]
    begin = time.perf_counter()
    done = subprocess.run(words, capture_output=True, env=site.environment(), cwd=site.home, check=False)
    seconds = time.perf_counter() - begin
    _check_active(read_lines(done.stdout.splitlines(keepends=True)))
    return seconds * 1e3


def _check_active(answer: Answer) -> None:
    if answer != [("JOB_STATE", "2")]:
        raise ValueError(f"a poll is answered with {answer}")
