"""The Globus fork starter's messages."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.fork.protocol import (
    StartRefused,
    StartRequest,
    read_start_request,
    read_tag,
    read_wire,
    render_escaped,
    render_refusal,
    render_started,
    render_wire,
)
from batch_adapters.states import GramError
from tests.unit.batch_adapters.fork.messages import NotStarted, Started, read_answer, render_start_request


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        pytest.param("plain", "plain", id="nothing to protect"),
        pytest.param("\\", "\\\\", id="backslash"),
        pytest.param(";", "\\;", id="semicolon"),
        pytest.param(",", "\\,", id="comma"),
        pytest.param("\n", "\\n", id="linefeed"),
        pytest.param("=", "\\=", id="equals"),
        pytest.param("a\\n", "a\\\\n", id="a backslash before an n is no linefeed"),
    ],
)
def test_the_five_characters_of_the_protocol_are_escaped(text: str, escaped: str) -> None:
    assert render_escaped(text) == escaped
    assert read_start_request(f"100;t;executable={escaped}x").executable == text + "x"


def test_a_request_as_globus_perl_module_writes_it_is_read() -> None:
    line = (
        "100;perl-fork-start-1-0;directory=/home/u;environment=A=1,B=x\\=y,C=;count=2;executable=/bin/echo;"
        "arguments=a b,,c\\,d;stdin=/dev/null;stdout=/tmp/o0,/tmp/o1;stderr=/tmp/e0,/tmp/e1;\n"
    )
    assert read_start_request(line) == StartRequest(
        tag="perl-fork-start-1-0",
        executable="/bin/echo",
        arguments=("a b", "", "c,d"),
        directory="/home/u",
        environment=(("A", "1"), ("B", "x=y"), ("C", "")),
        count=2,
        stdin="/dev/null",
        stdout=("/tmp/o0", "/tmp/o1"),
        stderr=("/tmp/e0", "/tmp/e1"),
    )


def test_an_equals_sign_in_a_value_needs_no_escape() -> None:
    request = read_start_request("100;t;executable=/a=b;environment=X=1=2;arguments=--n=3")
    assert (request.executable, request.environment, request.arguments) == ("/a=b", (("X", "1=2"),), ("--n=3",))


def test_no_arguments_and_one_empty_argument_differ() -> None:
    assert read_start_request("100;t;executable=/x").arguments == ()
    assert read_start_request("100;t;executable=/x;arguments=").arguments == ("",)


@pytest.mark.parametrize(
    ("line", "tag", "error"),
    [
        pytest.param("", "", GramError.BAD_RSL, id="empty line"),
        pytest.param("101;t;executable=/x", "t", GramError.BAD_RSL, id="another message"),
        pytest.param("100", "", GramError.BAD_RSL, id="no tag"),
        pytest.param("100;;executable=/x", "", GramError.BAD_RSL, id="empty tag"),
        pytest.param("100;a\\x;executable=/x", "", GramError.BAD_RSL, id="unknown escape in the tag"),
        pytest.param("100;t", "t", GramError.RSL_EXECUTABLE, id="no executable"),
        pytest.param("100;t;executable=", "t", GramError.RSL_EXECUTABLE, id="empty executable"),
        pytest.param("100;t;executable", "t", GramError.BAD_RSL, id="attribute without value"),
        pytest.param("100;t;executable=/x,/y", "t", GramError.BAD_RSL, id="two executables"),
        pytest.param("100;t;queue=long;executable=/x", "t", GramError.PARAMETER_NOT_SUPPORTED, id="unknown attribute"),
        pytest.param("100;t;executable=/x;count=0", "t", GramError.INVALID_COUNT, id="count 0"),
        pytest.param("100;t;executable=/x;count=-1", "t", GramError.INVALID_COUNT, id="negative count"),
        pytest.param("100;t;executable=/x;count=10001", "t", GramError.INVALID_COUNT, id="count above the maximum"),
        pytest.param("100;t;executable=/x;count=two", "t", GramError.INVALID_COUNT, id="count in words"),
        pytest.param("100;t;executable=/x;count=2;stdout=/a", "t", GramError.OPENING_STDOUT, id="one stdout for two"),
        pytest.param("100;t;executable=/x;stderr=/a,/b", "t", GramError.OPENING_STDERR, id="two stderr for one"),
        pytest.param("100;t;executable=/x;environment=A", "t", GramError.BAD_RSL, id="variable without value"),
        pytest.param("100;t;executable=/x;environment==1", "t", GramError.BAD_RSL, id="value without variable"),
        pytest.param("100;t;executable=/x\\", "t", GramError.BAD_RSL, id="lone backslash at the end"),
        pytest.param("100;t;executable=/x\\y", "t", GramError.BAD_RSL, id="unknown escape"),
        pytest.param("100;t;executable=/x;arguments=a\0b", "t", GramError.BAD_RSL, id="NUL"),
    ],
)
def test_a_bad_request_is_refused_with_its_tag_and_a_gram_error(line: str, tag: str, error: GramError) -> None:
    with pytest.raises(StartRefused) as caught:
        read_start_request(line)
    assert (read_tag(line), caught.value.error) == (tag, error)
    assert "\n" not in str(caught.value)


_TEXT = st.binary().map(lambda data: read_wire(data.replace(b"\0", b"0")))
_FILLED = _TEXT.filter(bool)
_NAME = st.text(string.ascii_letters + "_;,\\\n", min_size=1)


@st.composite
def _requests(draw: st.DrawFn) -> StartRequest:
    count = draw(st.integers(1, 3))
    files = st.one_of(st.just(()), st.tuples(*[_FILLED] * count))
    return StartRequest(
        tag=draw(_FILLED),
        executable=draw(_FILLED),
        arguments=tuple(draw(st.lists(_TEXT))),
        directory=draw(_TEXT),
        environment=tuple(draw(st.lists(st.tuples(_NAME, _TEXT)))),
        count=count,
        stdin=draw(_TEXT),
        stdout=draw(files),
        stderr=draw(files),
    )


@given(_requests())
def test_any_request_survives_the_wire(request: StartRequest) -> None:
    line = render_wire(render_start_request(request))
    assert line.count(b"\n") == 1
    assert read_start_request(read_wire(line)) == request


@given(st.binary())
def test_any_bytes_survive_the_wire(data: bytes) -> None:
    assert render_wire(read_wire(data)) == data


def test_answers_are_rendered_and_read() -> None:
    line = render_started("a;b", (1, 2))
    assert (line, read_answer(line)) == ("101;a\\;b;1,2\n", Started("a;b", (1, 2)))
    line = render_refusal("t", StartRefused(GramError.EXECUTABLE_NOT_FOUND, "/x, y: none\n"))
    assert (line, read_answer(line)) == ("102;t;5;/x\\, y: none\\n\n", NotStarted("t", 5, "/x, y: none\n"))
