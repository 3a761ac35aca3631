"""Old job description files: what they say, and where one is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.command import CommandAdapter
from handlers.production import DzeroMonteCarloAdapter
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.files import (
    drop_meaningless,
    is_job_description,
    read_job_description,
    read_request_file,
)
from jobmanager.requests.job_types import HandlerError, load_handlers
from jobmanager.requests.rsl import RslError

OLD = """\
# Request 13669
executable    = mc_runjob
sam_experiment = d0
job_type = dzero_monte_carlo   # the type
runjob_requestid=13669
phases = d0gstar  'd0sim'
cardfiles = "v00 ""06"" 00"
+notify_user = somebody@fnal.gov
\t
"""


def test_every_line_is_an_attribute_with_its_words_and_place() -> None:
    relations = read_job_description(OLD)
    assert [(one.name, one.values) for one in relations] == [
        ("executable", ("mc_runjob",)),
        ("sam_experiment", ("d0",)),
        ("job_type", ("dzero_monte_carlo",)),
        ("runjob_requestid", ("13669",)),
        ("phases", ("d0gstar", "d0sim")),
        ("cardfiles", ('v00 "06" 00',)),
        ("notify_user", ("somebody@fnal.gov",)),
    ]
    assert [(one.line, one.column) for one in relations][::3] == [(2, 1), (5, 1), (8, 2)]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        pytest.param("a = b#c", ("b#c",), id="a # inside a word"),
        pytest.param("a = b #c", ("b",), id="a comment behind"),
        pytest.param("a = 'b # c'", ("b # c",), id="a # in quotes"),
        pytest.param('a = ""', ("",), id="empty"),
        pytest.param("a=b\r", ("b",), id="line end of another system"),
        pytest.param("  + a = (b) =c $(HOME)", ("(b)", "=c", "$(HOME)"), id="nothing else is special"),
        pytest.param("a = 'it''s' \"'\"", ("it's", "'"), id="quotes in quotes"),
    ],
)
def test_a_value_is_words(line: str, values: tuple[str, ...]) -> None:
    (relation,) = read_job_description(line)
    assert relation.values == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a = b\n = c", "line 2, column 2: expected an attribute's name", id="no name"),
        pytest.param("a = b\n4 = c", "line 2, column 1: expected an attribute's name", id="name that is none"),
        pytest.param("a b", 'line 1, column 3: expected "=" behind a', id="no equals sign"),
        pytest.param("a = # b", 'line 1, column 5: a has no value: an empty one is written ""', id="no value"),
        pytest.param("a = b 'c", "line 1, column 7: the text quoted here is not closed", id="quote not closed"),
        pytest.param("a = 'b'c", "line 1, column 5: the text quoted here is not closed by ' and a blank", id="glued"),
        pytest.param("a = b'c", "line 1, column 5: a word with a quote in it", id="quote in a word"),
        pytest.param("a = \x07", "line 1, column 5: the character U+0007 cannot be part of a request", id="bell"),
    ],
)
def test_an_error_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(RslError) as caught:
        read_job_description(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    ["&(a=b)", "(* c *)\n&(a=b)", " (a=b)", "+(&(a=b))(&(a=b))", "+ &(a=b)", "|(a=b)", "", "\n"],
    ids=["conjunction", "comment", "relation", "multi", "multi with blank", "disjunction", "empty", "blank"],
)
def test_rsl_is_no_job_description(text: str) -> None:
    assert not is_job_description(text)


@pytest.mark.parametrize("text", [OLD, "+notify_user = x", "\n\n a = b", "a = (b)", "anything"])
def test_what_begins_otherwise_is_a_job_description(text: str) -> None:
    assert is_job_description(text)


def test_what_means_nothing_to_the_job_type_is_dropped_and_named() -> None:
    attributes = [("Executable", ("x",)), ("sam_universe", ("prd",)), ("station_name", ("s",)), ("count", ("1",))]
    kept, ignored = drop_meaningless(attributes, DzeroMonteCarloAdapter)
    assert ([name for name, _ in kept], ignored) == (["station_name", "count"], ["Executable", "sam_universe"])
    kept, ignored = drop_meaningless(attributes, CommandAdapter)
    assert ([name for name, _ in kept], ignored) == (["Executable", "count"], ["sam_universe", "station_name"])


WORDS = st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f")), min_size=1)


@given(WORDS, st.sampled_from("\"'"))
def test_any_words_survive_in_quotes(words: list[str], quote: str) -> None:
    quoted = " ".join(quote + word.replace(quote, quote * 2) + quote for word in words)
    (relation,) = read_job_description(f"name = {quoted}")
    assert list(relation.values) == words


@given(st.text(alphabet="ab =#'\"\n+\\\t(", max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        relations = read_job_description(text)
    except RslError:
        return
    assert all(relation.values for relation in relations)


@pytest.mark.parametrize(
    "text",
    ["&(samgrid_type = command)\n(name = a)(NA_ME = b)", "samgrid_type = command\n+NA_ME = b\nname = a"],
    ids=["RSL", "job description"],
)
def test_a_file_that_gives_an_attribute_twice_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "request").write_text(text)
    with pytest.raises(BadRequest, match=r"request: line [23], column \d+: (NA_ME|name) is given twice"):
        read_request_file(str(tmp_path / "request"), ())


@pytest.mark.parametrize("file", ["/dev/null", "/"])
def test_what_is_no_regular_file_is_no_request(file: str) -> None:
    with pytest.raises(BadRequest, match=rf"'{file}' is not a regular file; standard input is named -"):
        read_request_file(file, ())


def test_a_mark_of_utf_8_at_the_beginning_is_no_part_of_a_request(tmp_path: Path) -> None:
    (tmp_path / "request").write_text("&(samgrid_type = command)", encoding="utf-8-sig")
    assert read_request_file(str(tmp_path / "request"), ()) == ([("samgrid_type", ("command",))], tmp_path)


def test_standard_input_that_is_closed_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(BadRequest, match="standard input is closed: name a file"):
        read_request_file("-", ())


def test_what_is_no_regular_file_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "handler.py").symlink_to("/dev/null")
    with pytest.raises(HandlerError, match=r"handler\.py is no Python file"):
        load_handlers(str(tmp_path / "handler.py"))
