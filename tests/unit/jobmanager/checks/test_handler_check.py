from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from adapters import Attribute, Kind, Site
from handlers.command import CommandAdapter
from jobmanager.checks import handler_trial
from jobmanager.checks.handler_check import find_misspelt_methods, make_sample
from jobmanager.database.grid_job import GridJob
from jobmanager.requests.job_types import KNOWN_TYPES, find_job_type
from jobmanager.site.account import Account
from jobmanager.states.program_reports import LINES_TIME_LIMIT


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.SEQUENCES], ids=lambda kind: kind.name)
def test_a_request_made_from_declarations_has_a_value_of_each_kind(tmp_path: Path, kind: Kind) -> None:
    thing = Attribute("thing", "A thing.", kind, required=True)
    handler = type("Sample", (CommandAdapter,), {"attributes": (thing,)})
    assert thing.read(dict(make_sample(handler, tmp_path))["thing"], tmp_path) is not None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("getNumSubmissionsTimes", ["getNumSubmissionTimes"]),
        ("prepare_work_area", ["prepareWorkArea"]),
        ("getsummary", ["getSummary"]),
        ("getSummary", []),
        ("getGeometry", []),
    ],
)
def test_a_method_whose_name_is_almost_one_that_is_called_is_warned_of(written: str, meant: list[str]) -> None:
    handler = type("Sample", (CommandAdapter,), {written: lambda self: None})
    found = [(finding.text, finding.remedy) for finding in find_misspelt_methods(handler)]
    assert found == [(f"nothing calls its method {written}", f"did you mean {name}?") for name in meant]


@pytest.mark.parametrize("name", KNOWN_TYPES)
def test_no_method_of_our_own_handlers_is_taken_for_a_misspelt_one(name: str) -> None:
    assert list(find_misspelt_methods(find_job_type(name, ()))) == []


def test_a_handler_has_no_more_time_for_lines_than_in_production(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def limited(seconds: float) -> AbstractContextManager[None]:
        limits.append(seconds)
        return nullcontext()

    monkeypatch.setattr(handler_trial, "limited", limited)
    job = GridJob.new("aaaaaaaa", "command", "physicist", "fork", 1000)
    trial = handler_trial.Trial(account, job, CommandAdapter({}, Site()), ())
    assert handler_trial._ask_about_lines(trial, ["a line"]) == ({}, [])
    assert limits == [LINES_TIME_LIMIT]
