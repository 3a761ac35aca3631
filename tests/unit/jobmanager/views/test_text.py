"""Text that people read."""

import time

import pytest

from jobmanager.views.text import render_duration, render_local_time


@pytest.mark.parametrize(("seconds", "words"), [(1, "1 s"), (119, "119 s"), (1800, "30 min"), (9000, "2.5 h")])
def test_durations_are_short(seconds: float, words: str) -> None:
    assert render_duration(seconds) == words


def test_times_are_local_and_name_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert render_local_time(1_700_000_000) == "2023-11-15T03:43:20+05:30"
        assert render_local_time(10**12) == "second 1000000000000"
    finally:
        monkeypatch.undo()
        time.tzset()
