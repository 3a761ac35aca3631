"""A grid job as notebooks show it, and its progress where somebody looks: in a notebook, or on a terminal."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from jobmanager import render_number
from jobmanager.commands.python.statuses import JobStatus, PhaseProgress
from jobmanager.views.text import render_line, render_moment

if TYPE_CHECKING:
    from jobmanager.views.watching import Snapshot


def render_html(status: JobStatus) -> str:
    """A card: state, a bar for the local jobs and one for each phase, and what is worth a look."""
    name = f"<b>{_text(status.name)}</b> " if status.name else ""
    state = "being cancelled" if status.being_cancelled else status.outcome or status.state
    counts = ", ".join(f"{number:,} {state}" for state, number in status.counts.items())
    ended = f"ended ({counts})" if counts else "ended"
    rows = [_bar("local jobs", status.local_jobs_ended, status.local_jobs, ended)] if status.local_jobs else []
    rows += [_render_phase(phase, status.local_jobs) for phase in status.phases]
    rows += [_row(f"step {_text(step.name)}", _text(step.state or "has not begun")) for step in status.steps]
    facts = {
        "blocked": render_number(status.blocked, "local job") if status.blocked else None,
        "stalled": render_number(len(status.stalled), "local job") if status.stalled else None,
        "may end": f"{render_moment(status.may_end.timestamp())} (estimate)" if status.may_end else None,
        "reason": status.reason,
        "problem": status.problem,
        "quarantined": status.quarantined,
        **status.summary,
        "no summary": status.no_summary,
    }
    rows += [_row(_text(name), _text(fact)) for name, fact in facts.items() if fact]
    return (
        f'<div style="border-left: 4px solid; padding-left: 1em">{name}<code>{status.id}</code>: {_text(state)} '
        f'<span style="opacity: 0.7">({_text(status.type)} on {_text(status.batch)})</span>'
        f'<table style="color: inherit">{"".join(rows)}</table></div>'
    )


def render_missing(job_id: str, why: str) -> str:
    """A grid job of which nothing can be told."""
    return f"<div><code>{_text(job_id)}</code>: {_text(why)}</div>"


def _render_phase(phase: PhaseProgress, local_jobs: int) -> str:
    total = round(phase.total * local_jobs / phase.local_jobs) if phase.local_jobs else phase.total
    return _bar(_text(phase.name), phase.done, total, _text(phase.unit))


def _bar(name: str, done: int, total: int, words: str) -> str:
    bar = f'<progress aria-label="{name}" value="{done}" max="{max(total, 1)}"></progress>'
    return _row(name, f"{bar} {done:,} of {total:,} {words}")


def _row(name: str, what: str) -> str:
    style = "text-align: left; vertical-align: top"
    return f'<tr><th style="{style}">{name}</th><td style="{style}">{what}</td></tr>'


def _text(text: str | None) -> str:
    return escape(render_line(text or ""))


@contextmanager
def show_progress(is_wanted: bool) -> "Iterator[Callable[[Snapshot, JobStatus], object]]":
    """What shows the progress that is wanted, where somebody looks."""
    from jobmanager.views.watching import Bars, can_have_bars

    # A terminal has one place for bars only, and a notebook's cells belong to its main thread.
    is_wanted = is_wanted and threading.current_thread() is threading.main_thread()
    if is_wanted and _is_notebook():
        yield _Card().show
    elif is_wanted and can_have_bars():
        with Bars() as bars:
            yield lambda snapshot, status: bars.show(snapshot)
    else:
        yield _show_nothing


def _show_nothing(*_: object) -> None:
    """Nobody looks."""


def _is_notebook() -> bool:
    """True in a kernel of Jupyter, which shows HTML."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


class _Card:
    """Below a notebook's cell, and replaced whenever something has changed; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    def show(self, _: object, status: JobStatus) -> None:
        from IPython import display

        html = render_html(status)
        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(display.HTML(html))
        elif html != self._shown:
            self._handle.update(display.HTML(html))
        self._shown = html
