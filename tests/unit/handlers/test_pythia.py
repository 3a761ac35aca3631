"""Job type ``pythia``: its card, its command line, faults of a request, and the summary of what its slices made."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters import PlannedJob
from handlers.pythia import CARD, PythiaAdapter, render_card
from tests.unit.handlers.experiments import make_handler


def pythia(table: Mapping[str, str] | None = None, **words: Any) -> PythiaAdapter:
    return make_handler(PythiaAdapter, Path("/"), table, **{"events": ["100"], **words})


def test_the_default_is_drell_yan_at_the_tevatron() -> None:
    handler = pythia(events=["2000"])
    assert not list(handler.checkErrors())
    assert (handler.getSize(), handler.getNumSubmissionTimes()) == (2000, 8)
    card = render_card(handler.request).splitlines()
    assert card[1:] == [
        "Beams:idA = 2212",
        "Beams:idB = -2212",
        "Beams:eCM = 1960.0",
        "PhaseSpace:mHatMin = 60.0",
        "PhaseSpace:mHatMax = 130.0",
        "WeakSingleBoson:ffbar2gmZ = on",
        "23:onMode = off",
        "23:onIfAny = 13",
    ]


def test_the_work_area_holds_the_payload_and_the_card(tmp_path: Path) -> None:
    pythia().prepareWorkArea(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {CARD, "pythia_events.py"}


def test_the_payload_runs_under_the_sites_python_or_our_own() -> None:
    job = PlannedJob(1, 1)
    theirs = pythia({"python": "/opt/hep/bin/python"}).getCommandAndArguments(job)
    words = ["./pythia_events.py", "pythia.cmnd", "--mass-window", "60.0", "130.0", "--bins", "70"]
    assert theirs == ["/opt/hep/bin/python", *words]
    assert pythia().getCommandAndArguments(job) == [sys.executable, *words]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param(
            {"m_min": ["100"], "m_max": ["90"]}, "m_min (100 GeV) must be below m_max (90 GeV)", id="empty window"
        ),
        pytest.param(
            {"m_max": ["2000"]},
            "m_max (2000 GeV) must not exceed the collision's energy (1960 GeV)",
            id="above the energy",
        ),
        pytest.param(
            {"settings": ["HardQCD:all"]},
            "settings must be words such as \"HardQCD:all = on\", not 'HardQCD:all'",
            id="no value",
        ),
        pytest.param(
            {"settings": ["HardQCD:all = on\n"]},
            "settings must be words such as \"HardQCD:all = on\", not 'HardQCD:all = on\\n'",
            id="a second line",
        ),
        pytest.param(
            {"settings": ["random:SEED = 5"]},
            "settings must not contain random:SEED: the attribute seed decides it",
            id="an attribute's setting",
        ),
    ],
)
def test_a_fault_names_the_attribute(words: dict[str, Any], fault: str) -> None:
    assert list(pythia(**words).checkErrors()) == [fault]


def write_outputs(folder: Path, cross_section: float, error: float, tried: int, counts: list[int]) -> Path:
    folder.mkdir()
    summary = {"events": 10, "tried": tried, "cross_section_pb": cross_section, "cross_section_error_pb": error}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "dimuon-mass.json").write_text(json.dumps({"edges": [80, 90, 100, 110], "counts": counts}))
    return folder


def test_slices_are_combined_with_the_tried_events_as_weights(tmp_path: Path) -> None:
    outputs = [
        write_outputs(tmp_path / "1", 100, 3, 300, [1, 2, 0]),
        write_outputs(tmp_path / "2", 200, 12, 100, [1, 4, 2]),
    ]
    assert pythia().getSummary(outputs) == {
        "events": "20",
        "cross section": f"125.0 ± {math.hypot(900, 1200) / 400:.1f} pb",
        "dimuon mass peak": "90 to 100 GeV (6 events)",
        "mean dimuon mass": "95.00 GeV",
    }


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param("", id="empty"),
        pytest.param("[1]", id="a list"),
        pytest.param("[" * 100_000, id="deeply nested"),
        pytest.param('{"events": -1}', id="an absent cross section"),
        pytest.param('{"events": 1, "tried": 1, "cross_section_pb": NaN, "cross_section_error_pb": 1}', id="NaN"),
        pytest.param(
            '{"events": 1, "tried": -5, "cross_section_pb": 1, "cross_section_error_pb": 1}', id="negative count"
        ),
        pytest.param("9" * 2_000_000, id="too large"),
    ],
)
def test_an_unusable_output_is_counted_and_the_others_summarised(tmp_path: Path, content: str | None) -> None:
    good, bad = (write_outputs(tmp_path / name, 100, 3, 300, [1, 2, 0]) for name in ("good", "bad"))
    (bad / "summary.json").unlink()
    if content is not None:
        (bad / "summary.json").write_text(content)
    summary = pythia().getSummary([bad, good])
    assert summary["cross section"] == "100.0 ± 3.0 pb"
    assert summary["events"] == "10"
    assert summary["outputs not read"] == "1 of 2"


def test_a_link_in_an_output_is_not_followed(tmp_path: Path) -> None:
    good, bad = (write_outputs(tmp_path / name, 100, 3, 300, [1, 2, 0]) for name in ("good", "bad"))
    (bad / "summary.json").unlink()
    (bad / "summary.json").symlink_to(good / "summary.json")
    assert pythia().getSummary([bad]) == {"events": "0", "outputs not read": "1 of 1"}


def test_no_output_at_all_is_no_error() -> None:
    assert pythia().getSummary([]) == {"events": "0"}
