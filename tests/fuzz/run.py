"""Fuzzes the parsers of `targets.py` with atheris: ``python -m tests.fuzz.run SECONDS [TARGET...]``, see ``make fuzz``.

SECONDS are for all targets together. What is found is written into tests/recorded/fuzz as TARGET.SUM, and
`test_kept.py` fails over it until it is put right; what atheris has learnt stays in .venv/fuzz, for the next run.
"""

import argparse
import contextlib
import hashlib
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox", "tomllib", "lark"]
), contextlib.redirect_stderr(io.StringIO()):  # fmt: skip
    from tests.fuzz.targets import TARGETS
from tests.fuzz.test_kept import KEPT

LEARNT = Path(sys.prefix, "fuzz")
_LIMITS = ("-timeout=20", "-rss_limit_mb=3000", "-max_len=4096", "-print_final_stats=1", "-verbosity=0")
_INPUTS = re.compile(r"number_of_executed_units: (\d+)")


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which libFuzzer ends; what it says goes into a file."""
    folder = LEARNT / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    with _log(name).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # What a parser loads late, as uproot, would count as the time of its first input, which is this one.
    with contextlib.suppress(Exception):
        TARGETS[name].check(b"")
    options = (*_LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={KEPT}/{name}.", str(folder))
    atheris.Setup([name, *options], partial(_check, name))
    atheris.Fuzz()


def _check(name: str, data: bytes) -> None:
    try:
        TARGETS[name].check(data)
    except BaseException:
        # libFuzzer writes what takes too long or too much memory, but nothing in a process that Python has forked.
        (KEPT / f"{name}.{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
        raise


def _log(name: str) -> Path:
    return LEARNT / f"{name}.log"


def fuzz_all(names: Sequence[str], seconds: int, processes: int) -> int:
    """Fuzz targets, so many at once and each so long, and print what becomes of them; the number of those that fail."""
    waiting = [ForkProcess(target=fuzz, args=(name, seconds), name=name) for name in names]
    running: list[ForkProcess] = []
    faults = 0
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(waiting.pop(0))
            running[-1].start()
        wait([process.sentinel for process in running])
        for process in [process for process in running if not process.is_alive()]:
            running.remove(process)
            faults += bool(process.exitcode)
            _tell(process)
    return faults


def _tell(process: ForkProcess) -> None:
    said = _log(process.name).read_text(errors="replace")
    inputs = _INPUTS.findall(said)
    print(f"{process.name}: {inputs[-1] if inputs else 'unknown'} inputs", flush=True)
    if process.exitcode:
        print(f"{said[-4000:]}\n{process.name}: FOUND, see above and {KEPT}/{process.name}.*", flush=True)


def main() -> int:
    """Fuzz all targets, or those that are named; 1 where anything is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=int)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}: known are {', '.join(TARGETS)}")
    names = options.targets or list(TARGETS)
    processes = len(os.sched_getaffinity(0))
    seconds = max(1, options.seconds * processes // len(names))
    LEARNT.mkdir(exist_ok=True)
    faults = fuzz_all(names, seconds, processes)
    print(f"{len(names)} targets, {seconds} s each: {faults} with findings")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
