"""The payload of job type pythia: makes a slice of the events and the histogram of their dimuon mass.

``pythia_events.py CARD --mass-window LOW HIGH --bins N``, run in the scratch folder of a local job, with the slice in
``SAMGRID_EVENTS``, ``SAMGRID_FIRST_EVENT`` and ``SAMGRID_SEED``. It needs only Python and pythia8mc, and writes

- ``output/events.lhe``: the hard processes in the Les Houches event format (hep-ph/0609017), numbered by comments;
- ``output/dimuon-mass.json``: the mass of the hardest μ+ and μ- of the final state, after showers, in bins of GeV;
- ``output/summary.json``: events, cross section with its statistical error, seed, version.
"""

import argparse
import bisect
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

OUTPUT = Path("output")
REPORTS = 20
"""Most reports of progress in one phase."""
FAILURES_IN_A_ROW = 10
"""Events that Pythia cannot complete, one after the other, before the local job fails."""
PICOBARN = 1e9
"""Picobarns in a millibarn, Pythia's unit."""
PROCESS = 9999
"""The one process number of the event file, as Pythia's own writer has it."""


class PayloadError(Exception):
    """Why the events cannot be made, in one line."""


@dataclass(frozen=True)
class EventSlice:
    """The events this local job makes, numbered from ``first``."""

    first: int
    events: int
    seed: int


def read_slice(environment: Mapping[str, str]) -> EventSlice:
    """The slice from the environment; raises PayloadError naming a variable that is missing or not a number."""
    numbers = []
    for name in ("SAMGRID_FIRST_EVENT", "SAMGRID_EVENTS", "SAMGRID_SEED"):
        text = environment.get(name, "")
        if not text.isdecimal() or int(text) < 1:
            raise PayloadError(f"{name} must be a number from 1, not {text!r}")
        numbers.append(int(text))
    return EventSlice(*numbers)


class Phase:
    """Reports the progress of a phase a bounded number of times, if ``samgrid-report`` is on PATH."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        # One of the reports is that of the beginning.
        self.step = -(-total // (REPORTS - 1))
        self.program = shutil.which("samgrid-report")
        self.run_report(0)

    def run_report(self, done: int) -> None:
        """Report that ``done`` events have passed this phase, if a report is due."""
        if self.program and (done % self.step == 0 or done == self.total):
            words = ["phase", self.name, f"{done}/{self.total}", "events"]
            # A report that fails does no harm, and prints why on stderr.
            subprocess.run([self.program, *words], check=False)


def run_initialisation(card: Path, seed: int) -> Any:
    """Pythia, initialised; raises PayloadError if the module is missing, or a setting or the process is wrong."""
    try:
        import pythia8mc
    except ImportError as error:
        raise PayloadError(f"{sys.executable} cannot import pythia8mc ({error}): pip install pythia8mc") from error
    pythia = pythia8mc.Pythia("", False)
    own = ["Print:verbosity = 1", "Next:numberShowInfo = 0", "Next:numberShowProcess = 0", "Next:numberShowEvent = 0"]
    seeding = ["Random:setSeed = on", f"Random:seed = {seed}"]
    for line in [*own, *card.read_text(encoding="ascii").splitlines(), *seeding]:
        if not pythia.readString(line):
            raise PayloadError(f"Pythia does not accept the setting {line!r}")
    if not pythia.init():
        raise PayloadError(f"Pythia cannot be initialised with {card}: it says why on the standard output")
    return pythia


class EventFile:
    """A Les Houches event file that is being written; the cross section is filled in at the end."""

    def __init__(self, file: BinaryIO, pythia: Any) -> None:
        self.file = file
        self._write('<LesHouchesEvents version="1.0">\n<init>\n')
        beams = [pythia.settings.mode(name) for name in ("Beams:idA", "Beams:idB")]
        energy = pythia.settings.parm("Beams:eCM") / 2
        # Zeros: the PDF sets are the generator's; 3: events of weight one; 1: one process.
        self._write(f"{beams[0]} {beams[1]} {energy:.6e} {energy:.6e} 0 0 0 0 3 1\n")
        self.cross_section_at = file.tell()
        self.write_cross_section(0, 0)
        self._write("</init>\n")

    def write_cross_section(self, value: float, error: float) -> None:
        """Write the line with cross section and error, converted from mb to pb; its length never changes."""
        self._write(f"{value * PICOBARN:.6e} {error * PICOBARN:.6e} {1:.6e} {PROCESS}\n")

    def write_event(self, number: int, process: Any, info: Any) -> None:
        """Append the hard process of the event with this number."""
        # Entries 0 to 2 of Pythia's record are the system and the beams, which the format leaves out.
        lines = [render_particle(process[index]) for index in range(3, process.size())]
        scales = f"{info.QRen():.6e} {info.alphaEM():.6e} {info.alphaS():.6e}"
        self._write(f"<event>\n{len(lines)} {PROCESS} {1:.6e} {scales}\n{''.join(lines)}# event {number}\n</event>\n")

    def write_end(self, info: Any) -> None:
        """Close the list of events and fill in the cross section."""
        self._write("</LesHouchesEvents>\n")
        self.file.seek(self.cross_section_at)
        self.write_cross_section(info.sigmaGen(), info.sigmaErr())

    def _write(self, text: str) -> None:
        self.file.write(text.encode("ascii"))


STATUS_CODES = {-21: -1, -22: 2}
"""Les Houches status of Pythia's incoming and intermediate particles; all others are outgoing, 1."""


def render_particle(particle: Any) -> str:
    """The particle's line of an event: code, status, mothers, colours, momentum and mass in GeV, lifetime, spin."""
    mothers = [max(0, mother - 2) for mother in (particle.mother1(), particle.mother2())]
    status = STATUS_CODES.get(particle.status(), 1)
    momentum = [particle.px(), particle.py(), particle.pz(), particle.e(), particle.m()]
    words = [particle.id(), status, *mothers, particle.col(), particle.acol(), *(f"{part:.10e}" for part in momentum)]
    return " ".join(str(word) for word in words) + f" {particle.tau():.6e} {particle.pol():g}\n"


def run_one_event(pythia: Any) -> int:
    """Make the next event; gives the number of failures before it. Raises PayloadError if Pythia gives up."""
    for failures in range(FAILURES_IN_A_ROW):
        if pythia.next():
            return failures
    raise PayloadError(f"Pythia failed to make an event {FAILURES_IN_A_ROW} times in a row")


def generate(pythia: Any, share: EventSlice) -> tuple[list[float], int]:
    """Write the events; gives their dimuon masses in GeV (NaN without a pair), and the number of failed events."""
    masses: list[float] = []
    failed = 0
    phase = Phase("generate", share.events)
    with (OUTPUT / "events.lhe").open("wb") as file:
        events = EventFile(file, pythia)
        for done in range(1, share.events + 1):
            failed += run_one_event(pythia)
            info = pythia.infoPython()
            if info.weight() != 1:
                raise PayloadError(f"event of weight {info.weight():g}: settings that weight events are not supported")
            events.write_event(share.first + done - 1, pythia.process, info)
            masses.append(compute_dimuon_mass(pythia.event))
            phase.run_report(done)
        events.write_end(info)
    return masses, failed


def compute_dimuon_mass(event: Any) -> float:
    """The mass in GeV of the μ+ and μ- of highest transverse momentum; NaN if one is missing."""
    muons = [particle for particle in event if particle.isFinal() and particle.idAbs() == 13]
    sides = [[muon for muon in muons if muon.id() == code] for code in (13, -13)]
    if not all(sides):
        return math.nan
    one, other = (max(side, key=lambda muon: float(muon.pT())) for side in sides)
    return float((one.p() + other.p()).mCalc())


def fill_histogram(masses: Sequence[float], low: float, high: float, bins: int) -> dict[str, Any]:
    """The histogram as JSON: bins of equal width; a mass on an edge belongs to the bin above it."""
    edges = [low + (high - low) * index / bins for index in range(bins + 1)]
    # The first and the last count are underflow and overflow.
    counts = [0] * (bins + 2)
    without_pair = 0
    phase = Phase("histogram", len(masses))
    for done, mass in enumerate(masses, 1):
        if math.isnan(mass):
            without_pair += 1
        else:
            counts[bisect.bisect_right(edges, mass)] += 1
        phase.run_report(done)
    return {
        "quantity": "mass of the hardest mu+ and mu- of the final state",
        "unit": "GeV",
        "edges": edges,
        "counts": counts[1:-1],
        "underflow": counts[0],
        "overflow": counts[-1],
        "events_without_pair": without_pair,
    }


def summarise(pythia: Any, share: EventSlice, failed: int) -> dict[str, Any]:
    """The summary as JSON; ``tried`` is the number of trials of the hard process, the sample of the cross section."""
    info = pythia.infoPython()
    return {
        "generator": "Pythia",
        "version": f"{pythia.settings.parm('Pythia:versionNumber'):.3f}",
        "seed": share.seed,
        "first_event": share.first,
        "events": share.events,
        "failed": failed,
        "tried": info.nTried(),
        "cross_section_mb": info.sigmaGen(),
        "cross_section_error_mb": info.sigmaErr(),
        "cross_section_pb": info.sigmaGen() * PICOBARN,
        "cross_section_error_pb": info.sigmaErr() * PICOBARN,
    }


def write_json(name: str, content: Mapping[str, Any]) -> None:
    (OUTPUT / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def run_slice(arguments: argparse.Namespace) -> None:
    """Write the events, the histogram and the summary of this local job."""
    share = read_slice(os.environ)
    pythia = run_initialisation(arguments.card, share.seed)
    OUTPUT.mkdir(exist_ok=True)
    masses, failed = generate(pythia, share)
    low, high = arguments.mass_window
    write_json("dimuon-mass.json", fill_histogram(masses, low, high, arguments.bins))
    write_json("summary.json", summarise(pythia, share, failed))


def main(words: Sequence[str]) -> int:
    """Run the local job; 1 with one line on stderr where it cannot be done."""
    parser = argparse.ArgumentParser(description="Make one slice of a grid job's events with Pythia 8.")
    parser.add_argument("card", type=Path, help="file of Pythia settings")
    parser.add_argument("--mass-window", type=float, nargs=2, required=True, metavar=("LOW", "HIGH"), help="in GeV")
    parser.add_argument("--bins", type=int, required=True, help="bins of the histogram over the mass window")
    arguments = parser.parse_args(words)
    try:
        run_slice(arguments)
    except (PayloadError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
