"""Job type ``pythia``: makes Monte-Carlo events of a hadron collider with Pythia 8, and summarises the results."""

import importlib.util
import json
import math
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters import EVENTS, SLICING, Attribute, JobAdapter, Kind, PlannedJob

PAYLOAD = Path(__file__).parent / "payload" / "pythia_events.py"
CARD = "pythia.cmnd"

BEAMS = {"ppbar": (2212, -2212), "pp": (2212, 2212)}
"""PDG codes of the two beams."""

DRELL_YAN_TO_MUONS = ("WeakSingleBoson:ffbar2gmZ = on", "23:onMode = off", "23:onIfAny = 13")

DECIDED_ELSEWHERE = {
    "beams:ida": "beams",
    "beams:idb": "beams",
    "beams:ecm": "energy",
    "phasespace:mhatmin": "m_min",
    "phasespace:mhatmax": "m_max",
    "main:numberofevents": "events",
    "random:seed": "seed",
    "random:setseed": "seed",
}
"""Pythia settings, in lower case, that have an attribute of their own."""

# "Name:word = value" or "particle:word = value"; printable ASCII, because each becomes one line of the card.
_SETTING = re.compile(r"([\w+-]+:[\w:+-]+)\s*=[ -~]*[!-~][ -~]*", re.ASCII)


class PythiaAdapter(JobAdapter):
    """Makes events; by default Drell-Yan events at the Tevatron."""

    jobType = "pythia"
    usesDirectory = False
    attributes = (
        EVENTS,
        *SLICING,
        Attribute("beams", "The colliding particles.", default="ppbar", choices=tuple(BEAMS)),
        Attribute("energy", "Energy of the collision in the centre of mass.", Kind.NUMBER, "GeV", default=1960.0,
                  minimum=10, maximum=200_000),
        Attribute("settings", "Pythia's settings, each one word such as \"HardQCD:all = on\": process and decays; "
                  "by default γ*/Z to a pair of muons.", Kind.WORDS, default=DRELL_YAN_TO_MUONS),
        Attribute("m_min", "Lowest mass of the hard process; also the histogram's lower edge.", Kind.NUMBER, "GeV",
                  default=60.0, minimum=4),
        Attribute("m_max", "Highest mass of the hard process; also the histogram's upper edge.", Kind.NUMBER, "GeV",
                  default=130.0, minimum=4),
        Attribute("bins", "Bins of the dimuon mass histogram.", Kind.INTEGER, default=70, minimum=1, maximum=10_000),
    )  # fmt: skip
    siteAttributes = (
        Attribute("python", "Python program that can import pythia8mc on the worker nodes; by default the one that "
                  "runs the job manager."),
    )  # fmt: skip

    def checkErrors(self) -> Iterable[str]:
        faults = [fault for line in self.request["settings"] for fault in _check_setting(line)]
        low, high, energy = (self.request[name] for name in ("m_min", "m_max", "energy"))
        if low >= high:
            faults.append(f"m_min ({low:g} GeV) must be below m_max ({high:g} GeV)")
        if high > energy:
            faults.append(f"m_max ({high:g} GeV) must not exceed the collision's energy ({energy:g} GeV)")
        if not self.site.values.get("python") and importlib.util.find_spec("pythia8mc") is None:
            faults.append("Pythia is not installed: install pythia8mc, or name a python that has it in [type.pythia]")
        return faults

    def prepareWorkArea(self, workArea: Path) -> None:
        shutil.copyfile(PAYLOAD, workArea / PAYLOAD.name)
        (workArea / CARD).write_text(render_card(self.request), encoding="ascii")

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        python = self.site.values.get("python") or sys.executable
        window = (repr(self.request["m_min"]), repr(self.request["m_max"]))
        return [python, f"./{PAYLOAD.name}", CARD, "--mass-window", *window, "--bins", str(self.request["bins"])]

    def getSummary(self, outputs: Sequence[Path]) -> Mapping[str, str]:
        """What the results say together; those that cannot be used are counted."""
        results = []
        for folder in outputs:
            with suppress(*UNUSABLE):
                results.append(read_result(folder))
        summary = {"events": str(sum(result.events for result in results))}
        if any(result.tried for result in results):
            value, error = combine_cross_sections(results)
            summary["cross section"] = f"{value:.1f} ± {error:.1f} pb"
        summary |= describe_histogram(results)
        if unread := len(outputs) - len(results):
            summary["outputs not read"] = f"{unread} of {len(outputs)}"
        return summary


def render_card(request: Mapping[str, Any]) -> str:
    """The settings card: beams, energy and mass window of the request, then its own settings."""
    first, second = BEAMS[request["beams"]]
    lines = [
        "! The random seed is the local job's own and is set by the payload.",
        f"Beams:idA = {first}",
        f"Beams:idB = {second}",
        f"Beams:eCM = {request['energy']!r}",
        f"PhaseSpace:mHatMin = {request['m_min']!r}",
        f"PhaseSpace:mHatMax = {request['m_max']!r}",
        *request["settings"],
    ]
    return "\n".join(lines) + "\n"


def _check_setting(line: str) -> list[str]:
    match = _SETTING.fullmatch(line)
    if match is None:
        return [f'settings must be words such as "HardQCD:all = on", not {line!r}']
    owner = DECIDED_ELSEWHERE.get(match[1].lower())
    return [f"settings must not contain {match[1]}: the attribute {owner} decides it"] if owner else []


LARGEST_FILE = 1_000_000
"""Bytes of a local job's result that are read at most."""

# What reading a file that is damaged, or was written by another program, may raise.
UNUSABLE = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class SliceResult:
    """One local job's result; the cross section and its error in pb."""

    events: int
    tried: int
    cross_section: float
    error: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def read_result(folder: Path) -> SliceResult:
    """The result in one output folder; raises one of ``UNUSABLE`` where there is none."""
    summary, histogram = _read_json(folder / "summary.json"), _read_json(folder / "dimuon-mass.json")
    edges = tuple(_finite(edge) for edge in histogram["edges"])
    counts = tuple(_natural(count) for count in histogram["counts"])
    if len(edges) != len(counts) + 1:
        raise ValueError("a histogram has one edge more than bins")
    value, error = _finite(summary["cross_section_pb"]), _finite(summary["cross_section_error_pb"])
    return SliceResult(_natural(summary["events"]), _natural(summary["tried"]), value, error, edges, counts)


def combine_cross_sections(results: Sequence[SliceResult]) -> tuple[float, float]:
    """The weighted mean σ = Σ nᵢσᵢ / Σ nᵢ and its error √(Σ nᵢ²δᵢ²) / Σ nᵢ, in pb, with nᵢ the events tried.

    Weights 1/δᵢ² would pull the mean down: an estimate that fluctuates low has a small estimated error as well.
    """
    tried = sum(result.tried for result in results)
    value = sum(result.tried * result.cross_section for result in results) / tried
    error = math.hypot(*(result.tried * result.error for result in results)) / tried
    return value, error


def describe_histogram(results: Sequence[SliceResult]) -> Mapping[str, str]:
    """The highest bin and the mean (from bin centres) of the dimuon mass in GeV; empty if no event is in a bin."""
    edges = results[0].edges if results else ()
    same = [result.counts for result in results if result.edges == edges]
    counts = [sum(column) for column in zip(*same, strict=True)]
    if not any(counts):
        return {}
    peak = counts.index(max(counts))
    mean = sum(count * (edges[i] + edges[i + 1]) / 2 for i, count in enumerate(counts)) / sum(counts)
    return {
        "dimuon mass peak": f"{edges[peak]:g} to {edges[peak + 1]:g} GeV ({counts[peak]} events)",
        "mean dimuon mass": f"{mean:.2f} GeV",
    }


def _read_json(path: Path) -> Any:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
        raise ValueError(f"{path} is no small regular file")
    return json.loads(path.read_bytes())


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _natural(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 10**15:
        raise ValueError(f"{value!r} is no count")
    return value
