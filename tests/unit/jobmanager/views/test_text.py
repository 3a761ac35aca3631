"""Text that people read."""

import io
import sys
import time

import pytest

from jobmanager.views.text import render_columns, render_duration, render_listing, render_moment, terminal_width


@pytest.mark.parametrize(("seconds", "words"), [(1, "1 s"), (119, "119 s"), (1800, "30 min"), (9000, "2.5 h")])
def test_durations_are_short(seconds: float, words: str) -> None:
    assert render_duration(seconds) == words


def test_times_are_those_of_documents_wherever_the_reader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert render_moment(1_700_000_000) == "2023-11-14T22:13:20Z"
        assert render_moment(10**12) == "second 1000000000000"
    finally:
        monkeypatch.undo()
        time.tzset()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def put_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))


HEADING = ("ID", "NAME", "REASON")
ROWS = [("aaaaaaaa", "Z to mumu, tune 7", "it failed"), ("bbbbbbbb", "", "the program ended with exit code 1")]


def test_a_pipe_gets_a_line_per_row_with_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() is None
    lines = render_listing(HEADING, [*ROWS, ("c", "x " * 500, "")]).splitlines()
    assert len(lines) == 4
    assert lines[3].count("x") == 500


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        pytest.param(
            80,
            """\
ID        NAME               REASON
aaaaaaaa  Z to mumu, tune 7  it failed
bbbbbbbb                     the program ended with exit code 1""",
            id="fits",
        ),
        pytest.param(
            40,
            """\
ID        NAME            REASON
aaaaaaaa  Z to mumu,      it failed
          tune 7
bbbbbbbb                  the program
                          ended with
                          exit code 1""",
            id="wraps at words",
        ),
        pytest.param(
            22,
            """\
ID      aaaaaaaa
NAME    Z to mumu,
        tune 7
REASON  it failed

ID      bbbbbbbb
REASON  the program
        ended with
        exit code 1""",
            id="a block per row",
        ),
    ],
)
def test_a_table_fits_the_terminal(columns: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_terminal(monkeypatch, columns)
    assert render_listing(HEADING, ROWS) == expected


def test_columns_wrap_where_no_word_has_to_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    put_terminal(monkeypatch, 40)
    path = "/a/path/that/is/longer/than/the/line/has/room/for"
    assert render_columns([("state", "done"), ("tar", f"in {path}")]).splitlines() == [
        "state  done",
        "tar    in",
        f"       {path}",
    ]
    rows = [("  2026-11-23T08:53:17+00:00", "log", "→ nothing new: pending already")]
    assert render_columns(rows).splitlines() == [
        "  2026-11-23T08:53:17+00:00 log →",
        "    nothing new: pending already",
    ]
    assert render_columns([["one sentence that is longer than forty letters"]]).splitlines() == [
        "one sentence that is longer than forty",
        "letters",
    ]


def test_wide_letters_and_accents_take_their_places() -> None:
    lines = render_columns([("中間子", "|"), ("e\u0301te\u0301", "|"), ("meson", "|")]).splitlines()
    assert lines == ["中間子  |", "e\u0301te\u0301     |", "meson   |"]
