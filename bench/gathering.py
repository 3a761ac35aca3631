"""The benchmark of gathering: what the one tar of a grid job's outputs costs, beside tar, cp and sha256sum.

Each of the others does a part of it: tar takes no sums, cp makes no tar, sha256sum neither; none of them sees to it
that no link is followed, that a file that changes meanwhile breaks nothing, and that all of it is on the disk at the
end. Small files are those of 1 000 local jobs, three texts and an output folder with six files each. CPU time of whole
processes (ours a fork of this one), the least of some runs in turn; system calls as strace counts them.
"""

import argparse
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

_BENCH = Path(__file__).resolve().parent
# The job manager is no installed package of this name.
sys.path.insert(1, str(_BENCH.parent))

from sandbox.files import TarLimits  # noqa: E402
from sandbox.gather import EXPECTED, End, write_output  # noqa: E402

_JOB = "k3f9zq2m"
_RUNS = 3
_LIMITS = TarLimits(1_000_000, 10_000_000_000)
_SMALL, _LARGE = "small file", "MiB of a large file"
_MIB = 128
_GOALS = {(_SMALL, "ours"): "≤ 15"}


def make_small(folder: Path, local_jobs: int = 1_000, outputs: int = 6) -> int:
    """Local jobs with their three texts and a folder with some files; how many files those are."""
    for number in range(local_jobs):
        stem = f"{_JOB}.{_JOB}-1.{number}"
        for what in EXPECTED:
            (folder / f"{stem}.{what}").write_text(f"{what} of {number}\n" * 10)
        (folder / f"{stem}.output").mkdir()
        for name in range(outputs):
            (folder / f"{stem}.output" / f"events-{name}.dat").write_bytes(b"%d" % number * 200)
    return local_jobs * (len(EXPECTED) + outputs)


def make_large(folder: Path) -> int:
    """One local job with one large file; its MiB."""
    output = folder / f"{_JOB}.{_JOB}-1.0.output"
    output.mkdir()
    block = os.urandom(1 << 20)
    with open(output / "events.root", "wb") as file:
        for _ in range(_MIB):
            file.write(block)
    return _MIB


def gather(folder: Path) -> None:
    """Our own, as the job manager calls it."""
    count = sum(1 for path in folder.iterdir() if path.name.endswith(".output"))
    ends = [End(number + 1, f"{_JOB}-1.{number}", "succeeded", None) for number in range(count)]
    write_output(_JOB, folder, lambda: ends, {}, folder.parent / "out.tar", _LIMITS)


def find_peers(folder: Path) -> dict[str, tuple[str, ...]]:
    """The peers; each does a part of what we do."""
    out = folder.parent
    return {
        "tar": ("tar", "-cf", str(out / "peer.tar"), "-C", str(folder), "."),
        "cp -r": ("cp", "-r", str(folder), str(out / "copy")),
        "sha256sum": ("sh", "-c", f"cd {folder} && find . -type f -print0 | xargs -0 sha256sum > ../sums"),
    }


def measure(work: Callable[[], object]) -> float:
    """CPU seconds of some work in a process of its own."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise ChildProcessError("the work failed")
    return usage.ru_utime + usage.ru_stime


def count_calls(argv: Sequence[str], folder: Path) -> int:
    """System calls of a command with all its children, as strace counts them."""
    report = folder.parent / "calls"
    subprocess.run(["strace", "-f", "-c", "-U", "calls", "-o", str(report), *argv], check=True)
    return max(int(line) for line in report.read_text().split() if line.isdigit())


def measure_all(folder: Path, make: Callable[[Path], int], unit: str) -> list[str]:
    """A row per program."""
    results = folder / "results"
    results.mkdir()
    count = make(results)
    ours = (sys.executable, __file__, "--gather")
    argvs = {"ours": (*ours, str(results)), **find_peers(results)}
    best = dict.fromkeys(argvs, math.inf)
    for _ in range(_RUNS):
        for name, argv in argvs.items():
            shutil.rmtree(folder / "copy", ignore_errors=True)
            work = partial(gather, results) if name == "ours" else partial(os.execvp, argv[0], argv)
            best[name] = min(best[name], measure(work))
    rows = []
    for name, argv in argvs.items():
        shutil.rmtree(folder / "copy", ignore_errors=True)
        calls = ""
        if shutil.which("strace"):
            to_start = count_calls((*ours, ""), results) if name == "ours" else 0
            calls = f"{(count_calls(argv, results) - to_start) / count:.1f}"
        least, of_tar = best[name] / count * 1e6, best[name] / best["tar"]
        rows.append(f"| {unit} | {name} | {least:.1f} | {of_tar:.2g} | {calls} | {_GOALS.get((unit, name), '')} |")
    return rows


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the files lie while it runs (default: the temporary folder)")
    parser.add_argument("--gather", help=argparse.SUPPRESS)
    parser.add_argument("--no-write", action="store_true", help="only print")
    options = parser.parse_args()
    if options.gather is not None:
        if options.gather:
            gather(Path(options.gather))
        return 0
    lines = [
        "| of what | program | CPU µs each | beside tar | system calls each | goal |",
        "|---|---|---:|---:|---:|---|",
    ]
    for make, unit in ((make_small, _SMALL), (make_large, _LARGE)):
        with tempfile.TemporaryDirectory(prefix="samgrid-gather-", dir=options.folder) as name:
            lines += measure_all(Path(name), make, unit)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = " ".join(f"{figure:.1f}" for figure in os.getloadavg())
    note = f"{date}, Python {platform.python_version()}, {os.cpu_count()} cores, load {load}."
    report = f"# Gathering\n\n{(__doc__ or '').strip()}\n\n" + "\n".join(lines) + f"\n\n{note}\n"
    print(report)
    if not options.no_write:
        (_BENCH / "GATHERING.md").write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
