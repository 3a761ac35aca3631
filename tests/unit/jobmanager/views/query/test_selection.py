"""What columns choose is what XPath finds in the tree of all documents; what they cannot choose is left to the tree."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree

from batch_adapters.states import Cause, State
from jobmanager.database.database import Database
from jobmanager.database.local_job import Evidence, LocalJob, Outcome
from jobmanager.views.query.child import Question, WireItem, _answer, evaluate_xpath, find_by_columns
from jobmanager.views.query.selection import read_selection
from tests.unit.grid_jobs import make_grid_job, put

WORDS = (
    "active",
    "done",
    "fork",
    "pbs",
    "17.1",
    "succeeded",
    "signal",
    "3",
    "",
    " ",
    "it's",
    'a "word"',
    "<&>",
    "ü\t€",
)
NAMES = (
    "state",
    "batch",
    "id",
    "token",
    "array",
    "wait-reason",
    "helps",
    "outcome",
    "cause",
    "reason",
    "index",
    "host",
)
NAMES_OF_GRID_JOBS = ("id", "type", "state", "outcome", "owner", "submitted", "batch", "reason", "colour")

LIKELY = ('@state="active"', '@state="done"', '@state!="active"', '@batch="fork"', "@outcome", '@id="3"', "@host!=''")


def add(database: Database, job_id: str, owner: str, batch: str, state: State) -> None:
    """A grid job whose local jobs have of every attribute every word that may stand there, and none."""
    job = make_grid_job(job_id, 40, owner=owner, batch=batch, submitted=1000 + len(owner))
    job.state = state
    local_jobs = []
    for index in range(1, 41):
        local_job = LocalJob.new(index, batch, None)
        word = WORDS[index % len(WORDS)]
        if index % 4:
            local_job.state = (State.ACTIVE, State.DONE, State.FAILED)[index % 3]
            local_job.local_id, local_job.token, local_job.array = word, "k-1", WORDS[index % 7]
            local_job.wait_reason, local_job.helps, local_job.host = word, WORDS[index % 5], WORDS[index % 3]
            local_job.put_evidence(Evidence("log", word, 1000))
        if index % 3 == 0:
            local_job.outcome, local_job.cause, local_job.reason = Outcome.FAILED, Cause.SIGNAL, word
            etree.SubElement(local_job.element, "{urn:d0}run", batch=word)
        local_jobs.append(local_job)
    put(database, job, reversed(local_jobs))


@pytest.fixture(scope="module")
def database() -> Database:
    database = Database(None)
    add(database, "bbbbbbbb", "maria", "fork", State.ACTIVE)
    add(database, "aaaaaaaa", "it's", "pbs", State.DONE)
    add(database, "cccccccc", "jo", "fork", State.UNSUBMITTED)
    return database


def quote(word: str) -> str:
    return f"'{word}'" if '"' in word else f'"{word}"'


def predicates(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    words = st.sampled_from([word for word in WORDS if word.isascii()]).map(quote)
    comparisons = st.sampled_from(["=", "!=", "<", ">=", " = "])
    terms = st.one_of(
        st.sampled_from(LIKELY),
        st.builds("@{}{}{}".format, st.sampled_from(names), st.sampled_from(["=", "!="]), words),
        st.builds("@{}{}{}".format, st.sampled_from(names), comparisons, st.one_of(words, st.integers(0, 20).map(str))),
        st.sampled_from(names).map("@{}".format),
    )
    joined: Callable[[st.SearchStrategy[str]], st.SearchStrategy[str]] = lambda inner: st.one_of(  # noqa: E731
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner), inner.map("({})".format)
    )
    chosen = st.recursive(terms, joined, max_leaves=4).map("[{}]".format)
    return st.lists(chosen, max_size=2).map("".join)


BELOW = st.sampled_from(["", "/@id", "/@host", "/evidence/seen", "/evidence/seen/@said", "/slice", "/nothing"])
OF_GRID_JOBS = st.builds(
    "{}{}".format, st.sampled_from(["//grid-job", "/jobs/grid-job"]), predicates(NAMES_OF_GRID_JOBS)
)
PATHS = st.one_of(
    st.builds("//local-job{}{}".format, predicates(NAMES), BELOW),
    st.builds("{}/local-job{}{}".format, OF_GRID_JOBS, predicates(NAMES), BELOW),
    st.builds("{}{}".format, OF_GRID_JOBS, st.sampled_from(["/@id", "/request/attribute", "/request/@folder"])),
)
COUNTS = st.one_of(PATHS, OF_GRID_JOBS).map("count({})".format)
EXPRESSIONS = st.one_of(
    PATHS, COUNTS, st.builds("{} {} {}".format, COUNTS, st.sampled_from(["div", "+", "-", "<", "and 2 >"]), COUNTS)
)


def ask(database: Database, expression: str, job_id: str | None = None) -> list[WireItem] | None:
    """What is found without the tree; None where nothing is tried."""
    question = Question(None, job_id, expression, "XPath", 0, 0, 10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobmanager.views.query.child._open", lambda _: database)
        patch.setattr(database, "close", lambda: None)
        return find_by_columns(question, [])


@given(expression=EXPRESSIONS, job_id=st.sampled_from([None, "aaaaaaaa"]))
@example('//grid-job[@owner="maria"]/local-job[@state="active"]/@id', None)
def test_columns_choose_what_xpath_finds(database: Database, expression: str, job_id: str | None) -> None:
    found = ask(database, expression, job_id)
    if found is None:
        assert "]/local-job" in expression, "a grid job's attribute that has no column"
    else:
        assert found == list(evaluate_xpath(database.to_xml(job_id), expression))


@pytest.mark.parametrize(
    "expression",
    [
        'count(//local-job[@state="active"])',
        'count ( //local-job[@state = "active"][@batch="fork"] )',
        'count(//local-job[@outcome="succeeded"]) div count(//local-job[@outcome])',
        'count(/jobs/grid-job[@owner="maria"]/local-job)',
    ],
)
def test_what_columns_have_is_counted_without_a_document(
    database: Database, monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    expected = list(evaluate_xpath(database.to_xml(), expression))
    monkeypatch.setattr(database, "select", None)
    assert ask(database, expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        *("//local-job[1]", "(//local-job)[1]", "//local-job[last()]", "//grid-job[2]/local-job", "//local-job/.."),
        *("//grid-job", "//*", "/jobs", "//local-job/*", "//local-job[not(@id)]", "//local-job[@id]|//grid-job/@id"),
        *("count(//local-job) * 2", "count(//local-job", "count(//local-job)) + sum(//@done)", "12 div 2", ""),
        *(f"//local-job[{'(' * 200}@id{')' * 200}]", f"//local-job[@id{' or @id' * 2000}]"),
        *("//local-job[@state=@batch]", '//local-job["active"=@state]', "//local-job[@index=1.5]", "//local-job]"),
        *(
            '//local-job[@id="ü"]',
            '//local-job[@id="\x00"]',
            "//local-job[@x:id]",
            "//local-job[@state='a]",
            "//local-job[",
        ),
    ],
    ids=lambda expression: ascii(expression[:30]),
)
def test_all_else_is_left_to_the_tree(expression: str) -> None:
    assert read_selection(expression) is None


def test_what_is_in_quarantine_is_left_out_and_said(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.db")
    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        add(database, job_id, "maria", "fork", State.ACTIVE)
    question = Question(str(tmp_path / "jobs.db"), None, "//grid-job/@id", "XPath", 0, 0, 10**9)
    with database.transaction():
        database._store.write("UPDATE grid_job SET document = substr(document, 1, 60) WHERE id = 'aaaaaaaa'")
    assert find_by_columns(question, []) is None, "a damage that nobody knows of is told by the tree"
    (damage,) = database.find_damages()
    with database.transaction():
        database.quarantine.put(damage, 1000)
    left_out: list[str] = []
    assert find_by_columns(question, left_out) == [("attribute", "bbbbbbbb", [("id", "bbbbbbbb")])]
    assert left_out == [str(damage)]
    assert '"left_out": ["the document' in _answer(question)
    database.close()
