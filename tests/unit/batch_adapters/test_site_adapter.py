"""A site's tables change batch adapters and make new ones; whatever is wrong with them is told in one sentence each."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Garbled, Job, Lines, Meaning, Submission
from batch_adapters.fork.adapter import FORK
from batch_adapters.naming import Naming
from batch_adapters.registry import ADAPTERS, BadAdapter, UnknownBatchSystem
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import State

OAR = """
submit = { argv = ["oarsub", "-n", "{{ token }}", "{{ driver }} {{ token }}"], timeout = 30, attempts = 1 }
queue = { argv = ["oarstat"], outcomes = [
    { exit_code = 0, answer = "ok" }, { pattern = "cannot connect", answer = "transient" },
    { exit_code = 7, pattern = "no such", answer = "absent" } ] }
find = { argv = ["oarstat", "{{ token }}"] }
status = { argv = ["oarstat", "-j", "{{ id }}"] }
cancel = { argv = ["oardel", "{{ ids* }}"] }
version = { argv = ["oarstat", "-V"] }
jobs = '(?P<id>\\d+) (?P<state>\\w+) (?P<token>\\S+)'
jobs_others = 'Job id.*'
ended = '(?P<id>\\d+) (?P<state>\\w+) (?P<exit>\\d+)'
history = { argv = ["oarstat", "--history", "{{ token }}"] }
naming = { submitted = 'OAR_JOB_ID=(?P<id>\\d+)', single = "{id}", element = "{id}_{n}", array = "{id}", first = 0 }
states = { Waiting = "pending", Running = "active", Terminated = "done", Error = "failed", Suspended = "suspended" }
local_id_words = "$OAR_JOB_ID"
index_words = "1"
max_array = 1
leaving = ["Finishing"]
settle_time = 12.5
longest_pause = 30
options = ["-q", "grid"]
request_options = ["-l .*"]
ignored_variables = ["OAR_"]
carries_files = true
"""

assert isinstance(FORK.read_jobs, Lines)
FORK_LINES = FORK.read_jobs


def read(table: Mapping[str, Any], name: str = "oar") -> BatchAdapter:
    return find_adapter(name, {name: table})


def faults_of(table: Mapping[str, Any], name: str = "oar") -> list[str]:
    with pytest.raises(BadAdapter) as caught:
        read(table, name)
    assert str(caught.value) == "; ".join(caught.value.faults)
    return caught.value.faults


def test_a_table_makes_a_new_batch_system_without_code() -> None:
    adapter = read(tomllib.loads(OAR))
    assert (adapter.name, adapter.max_array, adapter.settle_time, adapter.carries_files) == ("oar", 1, 12.5, True)
    assert adapter.submit == Command(
        ("oarsub", "-n", "{{ token }}", "{{ driver }} {{ token }}"), timeout=30, attempts=1
    )
    assert adapter.queue.outcomes == (
        Meaning(0, "", Answer.OK),
        Meaning(None, "cannot connect", Answer.TRANSIENT),
        Meaning(7, "no such", Answer.ABSENT),
    )
    assert adapter.naming == Naming(r"OAR_JOB_ID=(?P<id>\d+)", "{id}", "{id}_{n}", "{id}", 0)
    assert adapter.states["Suspended"] is State.SUSPENDED
    assert list(adapter.read_jobs("Job id  S\n7 Running t-1\n")) == [Job("7", "Running", token="t-1")]
    assert list(adapter.read_history("7 Terminated 3\n")) == [Job("7", "Terminated", 3)]
    assert (adapter.leaving, adapter.options) == (frozenset({"Finishing"}), ("-q", "grid"))
    assert (adapter.event_module, adapter.commands_per_minute, adapter.longest_pause) == ("", 120, 30)


def test_a_question_about_no_ids_needs_no_list_of_them() -> None:
    before = find_adapter("pbs", {}).queue
    assert before.listing is not None
    assert read({"queue": {"timeout": 5}}, "pbs").queue == replace(before, timeout=5)
    own = ("/opt/qstat", "-E", "{{ ids* }}")
    assert read({"queue": {"argv": [*own]}}, "pbs").queue == replace(before, argv=own)
    assert read({"queue": {"argv": ["myqstat"]}}, "pbs").queue == replace(before, argv=("myqstat",), listing=None)
    before = find_adapter("condor", {}).queue
    assert before.waiting
    assert read({"queue": {"argv": ["myq"]}}, "condor").queue == replace(before, argv=("myq",), waiting=())


@pytest.mark.parametrize(
    ("naming", "words"),
    [({"span": "{id}[{n}-{last}].{server}"}, ""), ({"span": "{id}[{n}-{end}]"}, "span has {end}, but there is only")],
)
def test_the_id_of_consecutive_elements_is_made_of_what_there_is(naming: dict[str, str], words: str) -> None:
    if words:
        assert words in faults_of({"naming": naming}, "torque")[0]
    else:
        assert read({"naming": naming}, "torque").naming.fold(["7[1].a", "7[2].a"]) == ["7[1-2].a"]


def test_a_new_batch_system_works(tmp_path: Path) -> None:
    program = tmp_path / "oarsub"
    program.write_text('#!/bin/sh\necho "$*" >"${0%/*}/argv"\necho OAR_JOB_ID=41\n')
    program.chmod(0o700)
    table = tomllib.loads(OAR)
    table["submit"]["argv"][0] = str(program)
    system = BatchSystem(read(table), {}, RateLimiter(tmp_path / "limiter", 60))
    assert system.submit(Submission("t-1", 1, "/driver", "/results")) == {1: "41"}
    assert (tmp_path / "argv").read_text() == "-n t-1 /driver t-1\n"


@pytest.mark.parametrize("key", ["submit", "naming", "queue", "find", "status", "jobs", "cancel", "states",
                                 "local_id_words", "index_words"])  # fmt: skip
def test_what_a_new_batch_system_must_have_is_told(key: str) -> None:
    table = {name: value for name, value in tomllib.loads(OAR).items() if name != key}
    assert faults_of(table) == [f"{key} is missing"]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"max_array": 7}, {"max_array": 7}, id="a number"),
        pytest.param({"commands_per_minute": 9}, {"commands_per_minute": 9}, id="a rate limit"),
        pytest.param({"queue": {"timeout": 5}}, {"queue": replace(FORK.queue, timeout=5)}, id="a command's timeout"),
        pytest.param({"queue": {"argv": ["q"]}}, {"queue": replace(FORK.queue, argv=("q",))}, id="a command's words"),
        pytest.param({"submit": {"stdin": "x"}}, {"submit": replace(FORK.submit, stdin="x")}, id="a command's input"),
        pytest.param({"submit": {"outcomes": []}}, {"submit": replace(FORK.submit, outcomes=(OK,))}, id="no outcomes"),
        pytest.param(
            {"version": {"argv": ["v"]}}, {"version": Command(("v",))}, id="a command that the adapter does not have"
        ),
        pytest.param({"naming": {"first": 0}}, {"naming": replace(FORK.naming, first=0)}, id="a part of the naming"),
        pytest.param(
            {"states": {"odd": "active", "lost": "done"}},
            {"states": {**FORK.states, "odd": State.ACTIVE, "lost": State.DONE}},
            id="states are added",
        ),
        pytest.param({"jobs_others": "#.*"}, {"read_jobs": Lines(FORK_LINES.pattern, "#.*")}, id="lines to be skipped"),
        pytest.param(
            {"ended": "(?P<id>x)(?P<state>y)", "ended_others": "z"},
            {"read_history": Lines("(?P<id>x)(?P<state>y)", "z")},
            id="a reader that the adapter does not have",
        ),
    ],
)
@pytest.mark.parametrize("name", ["fork", "toy"])
def test_a_site_changes_what_it_names_and_nothing_else(
    name: str, table: dict[str, object], expected: dict[str, object]
) -> None:
    changed = find_adapter(name, {name: {**table, "based_on": "fork"}})
    assert changed.name == name
    differences = {
        field.name: getattr(changed, field.name)
        for field in fields(BatchAdapter)
        if getattr(changed, field.name) != getattr(FORK, field.name) and field.name != "name"
    }
    assert differences == expected


def test_a_table_of_a_known_batch_system_is_based_on_it() -> None:
    assert find_adapter("fork", {"fork": {"max_array": 7}}) == replace(FORK, max_array=7)
    assert find_adapter("fork", {"other": {}}) is FORK


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        pytest.param(
            {"qeue": 1}, "has no key 'qeue'; the keys are analyze, array_limit, based_on, blocks, cancel,", id="key"
        ),
        pytest.param({"name": "x"}, "has no key 'name'", id="the name is the table's"),
        pytest.param({"read_jobs": "x"}, "has no key 'read_jobs'", id="a reader by its field's name"),
        pytest.param(
            {"queue": "q"}, "queue must be a table with the keys argv, outcomes, stdin, timeout", id="command"
        ),
        pytest.param({"queue": {"arg": []}}, "queue has no key 'arg'; the keys are argv", id="command's key"),
        pytest.param({"queue": {"argv": "q -u"}}, "queue argv must be a list of words, not 'q -u'", id="argv"),
        pytest.param({"queue": {"argv": [1]}}, "queue argv must be a list of words, not [1]", id="argv of numbers"),
        pytest.param({"version": {"timeout": 5}}, "version has no argv", id="no argv"),
        pytest.param({"version": {"argv": []}}, "version argv must be the program and its arguments", id="empty argv"),
        pytest.param({"queue": {"argv": ["{{ a"]}}, "queue argv is no template: '{{ a'", id="template"),
        pytest.param(
            {"queue": {"stdin": "{% if %}"}}, "queue stdin is no template: '{% if %}'", id="template of stdin"
        ),
        pytest.param({"event_log": "{{"}, "event_log is no template", id="template of the log"),
        pytest.param(
            {"queue": {"timeout": 0}}, "queue timeout must be a number from 0.01 to 3600, not 0", id="timeout"
        ),
        pytest.param(
            {"queue": {"timeout": True}}, "queue timeout must be a number from 0.01 to 3600, not True", id="boolean"
        ),
        pytest.param(
            {"queue": {"attempts": 11}}, "queue attempts must be an integer from 1 to 10, not 11", id="attempts"
        ),
        pytest.param({"queue": {"outcomes": {}}}, "queue outcomes must be a list of tables, not {}", id="outcomes"),
        pytest.param(
            {"queue": {"outcomes": [{"answer": "yes"}]}},
            "queue outcomes answer must be one of ok, absent, transient, later, too-many, permanent, unknown, "
            "not 'yes'",
            id="answer",
        ),
        pytest.param({"queue": {"outcomes": [{}]}}, "outcomes has no answer", id="no answer"),
        pytest.param({"queue": {"outcomes": [{"answer": "ok", "code": 1}]}}, "has no key 'code'", id="outcome's key"),
        pytest.param(
            {"queue": {"outcomes": [{"answer": "ok", "exit_code": 256}]}}, "from 0 to 255, not 256", id="exit code"
        ),
        pytest.param(
            {"queue": {"outcomes": [{"answer": "ok", "pattern": "("}]}},
            "queue outcomes pattern is no pattern: '('",
            id="pattern",
        ),
        pytest.param({"jobs": "(?P<id>x)"}, "jobs has no group (?P<state>...)", id="no state"),
        pytest.param({"ended": "(?P<state>x)"}, "ended has no group (?P<id>...)", id="no id"),
        pytest.param({"jobs_others": "("}, "jobs_others is no pattern", id="other lines"),
        pytest.param({"jobs": 1}, "jobs must be a text, quoted if it has spaces, not 1", id="number as pattern"),
        pytest.param({"naming": {"simple": "x"}}, "naming has no key 'simple'", id="naming's key"),
        pytest.param(
            {"naming": {"single": 1}},
            "naming single must be a text, quoted if it has spaces, not 1",
            id="naming's value",
        ),
        pytest.param({"naming": {"first": 2}}, "naming first must be an integer from 0 to 1, not 2", id="first"),
        pytest.param({"naming": {"single": "{jd}"}}, "naming single has {jd}, but there is only id, n", id="name"),
        pytest.param({"naming": {"element": "{last}.{n}"}}, "element has {last}", id="last is no part of an id"),
        pytest.param({"naming": {"array": "{n}"}}, "naming array has {n}, but there is only id", id="array's number"),
        pytest.param({"naming": {"element": "{id}"}}, "naming element has no {n}", id="elements without a number"),
        pytest.param({"naming": {"single": "{id"}}, "naming is no format: '{id'", id="format"),
        pytest.param({"naming": {"submitted": "("}}, "naming submitted is no pattern: '('", id="naming's pattern"),
        pytest.param(
            {"states": {"R": "running"}},
            "states must give each native state one of pending, active, failed, done, suspended, not {'R': 'running'}",
            id="state",
        ),
        pytest.param({"states": ["R"]}, "states must give each native state", id="list of states"),
        pytest.param({"max_array": 0}, "max_array must be an integer from 1 to 1000000, not 0", id="max_array"),
        pytest.param({"commands_per_minute": -1}, "commands_per_minute must be an integer from 0", id="rate limit"),
        pytest.param({"settle_time": "60"}, "settle_time must be a number from 0 to 86400, not '60'", id="settle"),
        pytest.param({"leaving": "CG"}, "leaving must be a list of words", id="leaving"),
        pytest.param({"carries_files": 1}, "carries_files must be yes or no, not 1", id="switch"),
        pytest.param({"request_options": ["("]}, "request_options is no pattern: '('", id="request's options"),
        pytest.param(
            {"read_array_limit": "x"}, "read_array_limit has no group (...) around what is wanted", id="limit"
        ),
    ],
)
def test_a_fault_is_one_sentence_that_names_its_key(table: dict[str, object], sentence: str) -> None:
    (fault,) = faults_of(table, "fork")
    assert sentence in fault
    assert next(iter(table)) in fault
    assert "\n" not in fault


def test_every_fault_is_told_at_once() -> None:
    assert len(faults_of({"qeue": 1, "max_array": 0, "states": 3}, "fork")) == 3


# --- the registry


@pytest.mark.parametrize(
    ("name", "tables", "words"),
    [
        pytest.param("fax", {}, 'unknown batch system "fax": known are condor, fork', id="unknown"),
        pytest.param("fax", {"oar": {}}, "lsf, oar, pbs", id="the site's own are known"),
        pytest.param("a", {"a": {"based_on": "fax"}}, 'unknown batch system "fax"', id="based on nothing"),
        pytest.param(
            "a", {"a": {"based_on": "b"}, "b": {"based_on": "fork"}}, '"b": known are condor', id="on the site's own"
        ),
        pytest.param("a", {"a": {"based_on": 7}}, 'unknown batch system "7"', id="on a number"),
    ],
)
def test_a_batch_system_that_nobody_knows_is_told(name: str, tables: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(UnknownBatchSystem, match=words):
        find_adapter(name, tables)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_every_registered_adapter_is_there_under_its_name(name: str) -> None:
    adapter = find_adapter(name, {})
    assert adapter.name == name
    assert find_adapter(name, {name: {}}) == adapter


def test_a_word_of_another_kind_in_a_column_is_garbled() -> None:
    adapter = read({**tomllib.loads(OAR), "ended": r"(?P<id>\d+) (?P<state>\w+) (?P<exit>\S+)"})
    with pytest.raises(Garbled, match="no number: '0:0'"):
        list(adapter.read_history("7 Terminated 0:0\n"))
