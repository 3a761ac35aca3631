"""The list of grid jobs on a terminal."""

import io
import sys

import pytest

from jobmanager.database.database import Overview
from jobmanager.views.grid_jobs import render_table

ROWS = [
    Overview("k3f9zq2m", "cdf_concatenate", "unsubmitted", None, "physicist", "2026-11-22T08:30:00Z", {"pending": 8}),
    Overview("aaaaaaaa", "command", "done", "cancelled", "physicist", "2026-11-22T08:31:00Z", {}, name="Z to mumu"),
]


def test_the_list_stays_a_table_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")
    heading, *_ = lines = render_table(ROWS).splitlines()
    assert heading.split()[:6] == ["ID", "NAME", "TYPE", "STATE", "OWNER", "SUBMITTED"]
    assert max(map(len, lines)) <= 80
    monkeypatch.undo()
    assert "2026-11-22T08:30:00Z" in render_table(ROWS), "one word for programs"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
