"""What GRAM describes becomes a request of ours, or is refused with GRAM's number."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Value
from batch_adapters.states import GramError, State
from gram_shims.request import (
    BadDescription,
    JobDescription,
    RefusedRequest,
    find_error,
    is_plain,
    read_description,
    read_request,
)
from gram_shims.scripts import render_old_answer
from jobmanager.gram.answers import NO_CHANGE, GramAnswer, refuse, render_answer
from jobmanager.requests.attributes import read_type

_DEFAULTS: Mapping[str, Sequence[Value]] = {
    "executable": ["/bin/echo"],
    "directory": ["/"],
    "stdin": ["/dev/null"],
    "count": ["1"],
    "jobtype": ["multiple"],
    "uniqid": ["1.2.3"],
}


def describe(**attributes: Sequence[Value]) -> JobDescription:
    """A description with GRAM's defaults, unless told otherwise."""
    return JobDescription({name: tuple(values) for name, values in {**_DEFAULTS, **attributes}.items()})


def request_of(**attributes: Sequence[Value]) -> dict[str, tuple[Value, ...]]:
    """The request of a description, by names."""
    return dict(read_request(describe(**attributes)))


def test_a_plain_job_is_a_command_in_its_directory_that_no_exit_code_fails(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("x")
    request = request_of(directory=[str(tmp_path)], stdin=["in"], arguments=["a b", ""], count=["3"])
    assert request == {
        "environment": (),
        "samgrid_type": ("command",),
        "directory": (str(tmp_path),),
        "executable": ("/bin/echo",),
        "stdin": (f"{tmp_path}/in",),
        "count": ("3",),
        "arguments": ("a b", ""),
        "min_success": ("0",),
    }


def test_the_steps_of_a_structured_grid_job_come_through_as_they_are() -> None:
    steps = (("make", ("samgrid_type", "command"), ("arguments", "-c", "a b")), ("read", ("input_step", "make")))
    request = request_of(samgridtype=["structured"], executable=[], steps=steps)
    assert request["steps"] == steps


@pytest.mark.parametrize(
    ("job_type", "count"), [("multiple", "4"), ("single", "1")], ids=["multiple: count times", "single: once"]
)
def test_the_job_type_says_how_often_a_plain_job_runs(job_type: str, count: str) -> None:
    assert request_of(jobtype=[job_type], count=["4"])["count"] == (count,)


def test_the_name_of_the_program_stays_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    assert request_of(directory=[str(tmp_path)], executable=[".//run"])["executable"] == (f"{tmp_path}/.//run",)
    assert request_of(executable=["/bin/./echo"])["executable"] == ("/bin/./echo",)


def test_names_are_seen_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert request_of(directory=["sub"])["directory"] == (str(tmp_path / "sub"),)


REFUSED: dict[str, tuple[dict[str, Sequence[Value]], int]] = {
    "directory is not there": ({"directory": ["/nowhere"]}, 4),
    "directory is a file": ({"directory": ["/etc/passwd"]}, 4),
    "directory of two words": ({"directory": ["/", "/"]}, 52),
    "directory with a NUL": ({"directory": ["/\0"]}, 4),
    "directory too long": ({"directory": ["/" + "x" * 5000]}, 4),
    "executable is not there": ({"executable": ["/bin/nowhere"]}, 5),
    "executable too long": ({"executable": ["x" * 5000]}, 5),
    "executable with a NUL": ({"executable": ["/bin/echo\0"]}, 5),
    "executable is no program": ({"executable": ["/etc/passwd"]}, 72),
    "executable is a folder": ({"executable": ["/etc"]}, 72),
    "executable is empty": ({"executable": [""]}, 55),
    "executable is a list": ({"executable": [("a",)]}, 55),
    "stdin is not there": ({"stdin": ["/nowhere"]}, 11),
    "stdin is empty": ({"stdin": [""]}, 64),
    "arguments have a list": ({"arguments": ["a", ("b",)]}, 50),
    "environment of words": ({"environment": ["A", "b"]}, 54),
    "environment of threes": ({"environment": [("A", "b", "c")]}, 54),
    "environment nested deeper": ({"environment": [("A", ("b",))]}, 54),
    "count is no number": ({"count": ["abc"]}, 14),
    "count is 0": ({"count": ["0"]}, 14),
    "count is negative": ({"count": ["-1"]}, 14),
    "count is a list": ({"count": ["1", "2"]}, 14),
    "count has too many digits": ({"count": ["9" * 5000]}, 14),
    "count in other digits": ({"count": ["٣"]}, 14),
    "job type mpi": ({"jobtype": ["mpi"]}, 26),
    "job type condor": ({"jobtype": ["condor"]}, 26),
    "part of a job type": ({"jobtype": ["mult"]}, 26),
    "two job types in one": ({"jobtype": ["single multiple"]}, 26),
    "max_time": ({"maxtime": ["soon"]}, 13),
    "max_wall_time": ({"maxwalltime": ["-1"]}, 102),
    "max_cpu_time": ({"maxcputime": ["1.5"]}, 104),
    "max_memory": ({"maxmemory": ["1", "2"]}, 87),
}


@pytest.mark.parametrize("is_ours", [False, True], ids=["plain", "ours"])
@pytest.mark.parametrize(("attributes", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_request_has_grams_number(attributes: dict[str, Sequence[Value]], error: int, is_ours: bool) -> None:
    ours: dict[str, Sequence[Value]] = {"samgridtype": ["command"]} if is_ours else {}
    # What only plain jobs have is the job type's to judge.
    if is_ours and (error in (11, 50, 64) or (error == 55)):
        return
    with pytest.raises(RefusedRequest) as refused:
        read_request(describe(**attributes, **ours))
    assert refused.value.error == error
    assert str(refused.value).split(maxsplit=1)[0].rstrip(":").replace("_", "") in attributes


def test_a_request_of_ours_keeps_what_it_says_but_for_grams_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    description = JobDescription(
        {
            "samgridtype": ("pythia",),
            "events": ("2000",),
            "count": ("1",),
            "stdin": ("/dev/null",),
            "directory": (str(tmp_path),),
            "environment": (("HOME", "/h"),),
            "uniqid": ("1",),
            "gassche": (),
            "maxtime": ("7",),
            "maxmemory": ("0",),
        }
    )
    assert not is_plain(description)
    assert dict(read_request(description)) == {
        "environment": (("HOME", "/h"),),
        "samgridtype": ("pythia",),
        "events": ("2000",),
        "gassche": (),
        "maxwalltime": ("7",),
    }


def test_an_empty_job_type_of_ours_makes_no_plain_job() -> None:
    assert not is_plain(describe(samgridtype=[]))
    assert not is_plain(describe(samgridtype=[""]))


def test_an_old_request_names_its_type_in_grams_job_type() -> None:
    old = describe(jobtype=["dzero_merge"], executable=[""], input_folder=["/data"])
    assert not is_plain(old)
    request = dict(read_request(old))
    assert read_type(list(request.items())) == "dzero_merge"
    assert "executable" not in {name for name, values in request.items() if values != ("",)}


@pytest.mark.parametrize("word", ["single", "multiple", "mpi", "condor", "mult", "single multiple", ""])
def test_grams_own_job_types_keep_their_meaning(word: str) -> None:
    assert is_plain(describe(jobtype=[word]))


def test_beside_a_samgrid_type_the_job_type_is_grams() -> None:
    assert request_of(samgridtype=["pythia"], jobtype=["single"])["samgridtype"] == ("pythia",)
    with pytest.raises(RefusedRequest, match="'dzero_merge' jobs are not for this job manager"):
        request_of(samgridtype=["pythia"], jobtype=["dzero_merge"])


def test_wall_time_comes_before_max_time() -> None:
    request = request_of(maxtime=["5"], maxwalltime=["9"])
    assert request["maxwalltime"] == ("9",)
    assert "maxtime" not in request


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("count must be an integer, at least 1 (local jobs), not 'x'", 14),
        ("environment: 'a b' is no variable's name", 54),
        ("max_wall_time must be an integer", 102),
        ("queue must be one word", 37),
        ("project must be one word", 38),
        ("stdin: no such file, or no file: /x", 11),
        ('job_type: unknown job type "x": known are command', 19),
        ('samgrid_type: unknown job type "x": known are command', 134),
        ("min_success must be a number from 0 to 1, not '2'", 134),
        ('unknown attribute "x" for job type command', 134),
        ("", 134),
    ],
)
def test_the_number_of_a_fault_is_its_attributes(fault: str, error: int) -> None:
    assert find_error(fault) == error


# descriptions

VALUES: st.SearchStrategy[Value] = st.recursive(
    st.binary(max_size=8).map(os.fsdecode), lambda v: st.tuples(v) | st.tuples(v, v), max_leaves=4
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)


def _as_perl_says(value: Value) -> object:
    if isinstance(value, str):
        return os.fsencode(value).decode("latin-1")
    return [_as_perl_says(item) for item in value]


@given(st.dictionaries(NAMES, st.lists(VALUES, max_size=3).map(tuple), max_size=3))
def test_a_description_arrives_byte_for_byte(attributes: dict[str, tuple[Value, ...]]) -> None:
    text = json.dumps(
        {"description": {name: _as_perl_says(values) for name, values in attributes.items()}, "environment": {}}
    )
    assert read_description(text).attributes == attributes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"description": {}}',
        '{"description": {"a": "b"}, "environment": {}}',
        '{"description": {"a": [1]}, "environment": {}}',
        '{"description": {"a": ["\\u20ac"]}, "environment": {}}',
        "[" * 100_000,
    ],
    ids=["empty", "list", "nothing", "no environment", "no list", "number", "no byte", "deep"],
)
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(BadDescription):
        read_description(text)


# answers


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (GramAnswer(State.PENDING, "abcdefgh"), "JOB_ID:abcdefgh\nJOB_STATE:1\n"),
        (NO_CHANGE, ""),
        (refuse(GramError.INVALID_COUNT, "no"), "GT3_FAILURE_MESSAGE:no\nERROR:14\n"),
        (
            GramAnswer(State.FAILED, error=GramError.JOB_EXECUTION_FAILED, message="it: failed"),
            "JOB_STATE:4\nGT3_FAILURE_MESSAGE:it: failed\nERROR:17\n",
        ),
    ],
    ids=["submitted", "no change", "refused", "failed"],
)
def test_an_answer_is_one_line_a_key(answer: GramAnswer, text: str) -> None:
    assert render_answer(answer) == text


@given(st.text())
def test_no_message_breaks_the_answer(message: str) -> None:
    lines = render_answer(refuse(GramError.INVALID_COUNT, message)).encode().split(b"\n")
    assert lines[-2:] == [b"ERROR:14", b""]
    assert all(lines[:-1])
    assert len(lines) <= 3


@pytest.mark.parametrize(
    ("answer", "last"),
    [
        (GramAnswer(State.PENDING, "abcdefgh"), "GRAM_SCRIPT_SUCCESS:1"),
        (NO_CHANGE, "GRAM_SCRIPT_SUCCESS:16"),
        (GramAnswer(State.DONE), "GRAM_SCRIPT_SUCCESS:8"),
        (GramAnswer(State.FAILED, error=GramError.JOB_EXECUTION_FAILED), "GRAM_SCRIPT_ERROR:17"),
    ],
    ids=["submitted", "no change: the state told last", "done", "failed"],
)
def test_the_last_line_is_the_old_answer(answer: GramAnswer, last: str) -> None:
    lines = render_old_answer(answer, State.SUSPENDED).splitlines()
    assert lines[-1] == last
    assert lines[:-1] == ([f"GRAM_SCRIPT_JOB_ID:{answer.job_id}"] if answer.job_id else [])
