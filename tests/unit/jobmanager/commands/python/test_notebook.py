"""What a notebook shows of a grid job, and where progress is shown."""

import sys
import threading
import types
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from jobmanager.commands.python.notebook import render_html, render_missing, show_progress
from jobmanager.commands.python.statuses import JobStatus, PhaseProgress, StepStatus

STATUS = JobStatus(
    id="k3f9zq2m",
    name=None,
    type="command",
    state="active",
    outcome=None,
    reason=None,
    owner="anna",
    batch="slurm",
    submitted=datetime(2026, 11, 22, 8, 30, tzinfo=UTC),
    ended=None,
    may_end=None,
    local_jobs=2000,
    counts={"active": 700, "done": 1200, "failed": 100},
    blocked=0,
    blocks=(),
    stalled=(),
    phases=(),
    steps=(),
    parent=None,
    repeats=None,
    being_cancelled=False,
    problem=None,
    retries=0,
    not_tried_again={},
    credentials=(),
    silent_since=None,
    quarantined=None,
    summary={},
    no_summary=None,
)


class _Reader(HTMLParser):
    """The text of a page without its tags, and which elements there are."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.open, self.tags = "", list[str](), set[str]()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_a_card_has_state_bars_and_what_is_worth_a_look() -> None:
    status = replace(
        STATUS,
        name="Z to mumu",
        phases=(PhaseProgress("simulate", "events", 300, 1000, 1000),),
        steps=(StepStatus("merge", None, None, None),),
        blocked=2,
        stalled=(1, 7),
        may_end=datetime(2026, 11, 22, 9, 30, tzinfo=UTC),
        problem="the disk is full",
        summary={"cross section": "2.1 nb"},
    )
    shown = " ".join(_Reader(render_html(status)).text.split())
    assert shown.startswith("Z to mumu k3f9zq2m : active (command on slurm)")
    for words in (
        *("local jobs 1,300 of 2,000 ended (700 active, 1,200 done, 100 failed)", "simulate 300 of 2,000 events"),
        *("step merge has not begun", "blocked 2 local jobs", "stalled 2 local jobs", "may end 2026-11-22T"),
        *("problem the disk is full", "cross section 2.1 nb"),
    ):
        assert words in shown
    assert '<progress aria-label="simulate" value="300" max="2000">' in render_html(status)


def test_a_card_says_nothing_of_what_is_not() -> None:
    assert " ".join(_Reader(render_html(replace(STATUS, local_jobs=0))).text.split()) == (
        "k3f9zq2m : active (command on slurm)"
    )


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (replace(STATUS, being_cancelled=True), "being cancelled"),
        (replace(STATUS, state="failed", outcome="cancelled"), "cancelled"),
        (replace(STATUS, state="done", outcome="done"), "done"),
    ],
)
def test_a_card_calls_it_what_it_is_for_people(status: JobStatus, word: str) -> None:
    assert f": {word} (" in " ".join(_Reader(render_html(status)).text.split())


EVIL = "<script>alert(1)</script>\x1b[31m & \"'"


def test_no_text_of_a_job_is_markup() -> None:
    status = replace(
        STATUS,
        name=EVIL,
        type=EVIL,
        batch=EVIL,
        reason=EVIL,
        problem=EVIL,
        quarantined=EVIL,
        no_summary=EVIL,
        summary={EVIL: EVIL},
        phases=(PhaseProgress(EVIL, EVIL, 1, 1, 1),),
        steps=(StepStatus(EVIL, EVIL, EVIL, None),),
    )
    for html in (render_html(status), render_missing(EVIL, EVIL)):
        read = _Reader(html)
        assert "script" not in read.tags
        assert "<script>alert(1)</script>" in read.text
        assert "\x1b" not in html


def test_progress_is_shown_where_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = dict[str, str]()

    def look(name: str, is_wanted: bool = True) -> None:
        with show_progress(is_wanted) as show:
            shown[name] = getattr(show, "__qualname__", "")

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    look("pipe")
    with monkeypatch.context() as without:
        without.setattr(sys, "stdout", None)
        look("nothing")
        without.setattr(sys, "stdout", types.SimpleNamespace(write=print))
        look("somebody's own")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    look("terminal")
    look("not wanted", False)
    thread = threading.Thread(target=look, args=["thread"])
    thread.start()
    thread.join()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    look("notebook")
    del shell.kernel
    look("IPython's terminal")
    assert shown == {
        "pipe": "_show_nothing",
        "nothing": "_show_nothing",
        "somebody's own": "_show_nothing",
        "terminal": "show_progress.<locals>.<lambda>",
        "not wanted": "_show_nothing",
        "thread": "_show_nothing",
        "notebook": "_Card.show",
        "IPython's terminal": "show_progress.<locals>.<lambda>",
    }
