"""How declared attributes are read: tables of values, and what a fault says."""

from pathlib import Path
from typing import Any

import pytest

from adapters import Attribute, Kind, RequestFile, Value, canonical_name

FOLDER = Path("/home/user/request")


def read(kind: Kind, *values: Value, **limits: Any) -> Any:
    return Attribute("thing", "A thing.", kind, **limits).read(values, FOLDER)


def fault(kind: Kind, *values: Value, **limits: Any) -> str:
    with pytest.raises(ValueError, match=r"^must be ") as caught:
        read(kind, *values, **limits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "values", "value"),
    [
        pytest.param(Kind.TEXT, ("a b",), "a b", id="text"),
        pytest.param(Kind.TEXT, ("",), "", id="empty text"),
        pytest.param(Kind.INTEGER, ("250",), 250, id="integer"),
        pytest.param(Kind.INTEGER, ("-3",), -3, id="negative integer"),
        pytest.param(Kind.INTEGER, ("1000000000000",), 10**12, id="large integer"),
        pytest.param(Kind.NUMBER, ("1.5e3",), 1500.0, id="number"),
        pytest.param(Kind.NUMBER, ("7",), 7.0, id="whole number"),
        pytest.param(Kind.FLAG, ("Yes",), True, id="yes"),
        pytest.param(Kind.FLAG, ("0",), False, id="no"),
        pytest.param(Kind.WORDS, (), (), id="no words"),
        pytest.param(Kind.WORDS, ("a", "b c"), ("a", "b c"), id="words"),
        pytest.param(Kind.PAIRS, (("A", "1"), ("B", "")), (("A", "1"), ("B", "")), id="pairs"),
        pytest.param(Kind.FILE, ("/bin/sh",), RequestFile("/bin/sh", Path("/bin/sh")), id="absolute file"),
        pytest.param(Kind.FILE, ("a/b.sh",), RequestFile("a/b.sh", FOLDER / "a/b.sh"), id="file beside the request"),
        pytest.param(Kind.FILES, (), (), id="no files"),
        pytest.param(
            Kind.FILES,
            ("a", "/b"),
            (RequestFile("a", FOLDER / "a"), RequestFile("/b", Path("/b"))),
            id="files",
        ),
    ],
)
def test_a_value_becomes_the_type_of_its_kind(kind: Kind, values: tuple[Value, ...], value: object) -> None:
    assert read(kind, *values) == value


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        pytest.param(Kind.TEXT, (), id="no text"),
        pytest.param(Kind.TEXT, ("a", "b"), id="two texts"),
        pytest.param(Kind.TEXT, (("a",),), id="a sequence as text"),
        pytest.param(Kind.INTEGER, ("many",), id="a word as integer"),
        pytest.param(Kind.INTEGER, ("1.5",), id="a fraction as integer"),
        pytest.param(Kind.INTEGER, ("1_000",), id="an integer with underscore"),
        pytest.param(Kind.INTEGER, ("٣",), id="an Arabic digit"),
        pytest.param(Kind.INTEGER, ("9" * 5000,), id="an endless integer"),
        pytest.param(Kind.NUMBER, ("nan",), id="not a number"),
        pytest.param(Kind.NUMBER, ("1e999",), id="an infinite number"),
        pytest.param(Kind.NUMBER, ("1_000",), id="a number with underscore"),
        pytest.param(Kind.FLAG, ("maybe",), id="neither yes nor no"),
        pytest.param(Kind.WORDS, ("a", ("b",)), id="a sequence among words"),
        pytest.param(Kind.PAIRS, ("A",), id="a word as pair"),
        pytest.param(Kind.PAIRS, (("A", "1", "2"),), id="a triple as pair"),
        pytest.param(Kind.FILE, ("",), id="an empty file name"),
        pytest.param(Kind.FILE, ("a\0b",), id="a file name with NUL"),
        pytest.param(Kind.FILES, ("a", ""), id="an empty name among files"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name_and_kind(kind: Kind, values: tuple[Value, ...]) -> None:
    assert f"must be {kind.value}, not " in fault(kind, *values)


@pytest.mark.parametrize(
    ("kind", "text", "limits", "message"),
    [
        pytest.param(
            Kind.INTEGER,
            "0",
            {"minimum": 1, "unit": "events"},
            "an integer, at least 1 (events), not 0",
            id="too small",
        ),
        pytest.param(
            Kind.INTEGER,
            "900000001",
            {"minimum": 1, "maximum": 900_000_000},
            "an integer from 1 to 900000000, not 900000001",
            id="too large by one",
        ),
        pytest.param(Kind.NUMBER, "2.5", {"maximum": 2}, "a number, at most 2, not 2.5", id="number too large"),
        pytest.param(Kind.TEXT, "blue", {"choices": ("red", "green")}, "one of red, green, not 'blue'", id="no choice"),
        pytest.param(
            *(Kind.WORDS, "blue", {"choices": ("red", "green")}, "any of red, green, not 'blue'"),
            id="none of the choices",
        ),
        pytest.param(Kind.INTEGER, "x" * 90, {}, f"an integer, not '{'x' * 57}...'", id="long value cut"),
    ],
)
def test_a_fault_says_what_was_expected_and_what_was_found(
    kind: Kind, text: str, limits: dict[str, Any], message: str
) -> None:
    assert fault(kind, text, **limits) == f"must be {message}"


@pytest.mark.parametrize("value", ["1", "10"])
def test_both_ends_of_a_range_are_allowed(value: str) -> None:
    assert read(Kind.INTEGER, value, minimum=1, maximum=10) == int(value)


def test_a_file_travels_unless_its_name_is_absolute() -> None:
    assert read(Kind.FILE, "run.sh").travels
    assert not read(Kind.FILE, "/bin/true").travels


@pytest.mark.parametrize("name", ["maxCpuTime", "max_cpu_time", "MAX__CPU_TIME_"])
def test_names_are_compared_as_globus_compares_them(name: str) -> None:
    assert canonical_name(name) == "maxcputime"
