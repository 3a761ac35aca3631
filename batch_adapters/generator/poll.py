"""Events without a log: queries the batch system for all local jobs once per interval, by its batch adapter.

``samgrid-scheduler-event-generator -s poll -l FILE``. FILE is written by the job manager, mode 0600 because it says
which programs are run, in JSON with exactly these keys::

    {"batch_system": "fork", "tables": {}, "variables": {"python": "/usr/bin/python3", …},
     "limiter": "/home/d0/.local/state/samgrid/batch-fork.json", "interval": 30}

``batch_system`` is a batch adapter's name, ``tables`` are the site's ``[batch.NAME]``, ``variables`` the site's
variables for templates, ``limiter`` is the file of the account's rate limiter, ``interval`` the time in seconds from an
answer to the next query. A change of state is an event with the second in which the query began. Without an answer
nothing changes; a job that is not in the answer may or may not have ended, so it has no event.
"""

import contextlib
import json
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jinja2

from adapters.attributes import Attribute, Kind, read_table
from batch_adapters.adapter import BatchError, LocalStatus
from batch_adapters.generator.module import FeedSettings, LogNotKnown
from batch_adapters.registry import BadAdapter, Tables, UnknownBatchSystem
from batch_adapters.running.batch_system import BatchSystem
from batch_adapters.running.commands import render_argv
from batch_adapters.running.rate_limiter import RateLimiter
from batch_adapters.site_adapter import find_adapter
from batch_adapters.states import Event, State, render_event

_DAY = 86_400


def _read_tables(value: object) -> Tables:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ValueError("must be an object of objects")
    return value


def _read_variables(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "batch_system": Attribute("", "").read_plain,
    "tables": _read_tables,
    "variables": _read_variables,
    "limiter": Attribute("", "").read_plain,
    "interval": Attribute("", "", Kind.NUMBER, minimum=0.01, maximum=_DAY).read_plain,
}


def read_polling(path: Path) -> tuple[BatchSystem, float]:
    """The batch system to query and the interval, from the file that this module's docstring describes.

    :raises OSError: it cannot be read; LogNotKnown: its content is wrong, in one sentence.
    """
    try:
        found = json.loads(path.read_text(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise LogNotKnown(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise LogNotKnown(f"{path} is no JSON object with the keys {', '.join(_READERS)}")
    values, faults = read_table(found, _READERS)
    faults += [f"{key} is missing" for key in _READERS if key not in found]
    if faults:
        raise LogNotKnown(f"{path}: {'; '.join(faults)}")
    name, variables = values["batch_system"], values["variables"]
    try:
        adapter = find_adapter(name, values["tables"])
        # Rendered now, so that a missing variable ends the generator at its start.
        render_argv(adapter.queue, {"user": "", "ids": (), **variables})
    except (UnknownBatchSystem, BadAdapter) as error:
        raise LogNotKnown(f"{path}: {error}") from error
    except jinja2.UndefinedError as error:
        raise LogNotKnown(f"{path}: a variable of the batch system {name} is missing: {error}") from error
    limiter = RateLimiter(Path(values["limiter"]), adapter.commands_per_minute, adapter.longest_pause)
    return BatchSystem(adapter, variables, limiter), values["interval"]


class JobStates:
    """The states of jobs in recent answers, by which an answer is turned into events."""

    FORGET_AFTER = 10
    """Answers without a job after which it is forgotten; if it comes back later, it has an event again."""

    def __init__(self) -> None:
        """At first no job is known: all jobs in the first answer have events."""
        self.unknown: frozenset[str] = frozenset()
        """Native states in the latest answer that the adapter does not know."""
        self._seen: dict[str, tuple[State, int]] = {}
        self._answers = 0

    def __len__(self) -> int:
        return len(self._seen)

    def read_changes(self, statuses: Iterable[LocalStatus], asked: int) -> list[Event]:
        """The events of the jobs whose state has changed."""
        answer = {status.local_id: status for status in statuses}
        self._answers += 1
        self.unknown = frozenset(status.native_state for status in answer.values() if status.state is None)
        events = []
        for local_id, status in answer.items():
            last = self._seen[local_id][0] if local_id in self._seen else None
            is_open = status.state is not None and not status.state.is_final
            # A job that is being removed keeps its last state, if one is known.
            state = last or status.state if status.state is None or (status.is_leaving and is_open) else status.state
            if state is None:
                continue
            if state is not last:
                events.append(Event(asked, local_id, state, status.exit_code or 0))
            self._seen[local_id] = (state, self._answers)
        oldest = self._answers - self.FORGET_AFTER
        self._seen = {local_id: seen for local_id, seen in self._seen.items() if seen[1] > oldest}
        return events


class _Question:
    """A query that runs in a thread of its own; it is stopped when the object is deleted or the program ends."""

    def __init__(self, system: BatchSystem) -> None:
        self.asked = int(time.time())
        self._answer: Future[list[LocalStatus]] = Future()
        # A daemon: a batch system that does not answer must not keep the program from ending.
        self._thread = threading.Thread(target=_run_question, args=(self._answer, system), daemon=True)
        self._thread.start()
        weakref.finalize(self, _kill_command_of, self._thread)

    @property
    def is_over(self) -> bool:
        """True when the command has ended or was killed."""
        return not self._thread.is_alive()

    def read_answer(self) -> list[LocalStatus]:
        """The result of `BatchSystem.query`; raises BatchError."""
        # No waiting: a thread without a result has a bug, and its traceback is on stderr.
        return self._answer.result(0)


def _run_question(answer: "Future[list[LocalStatus]]", system: BatchSystem) -> None:
    try:
        answer.set_result(system.query())
    except BatchError as error:
        answer.set_exception(error)


def _kill_command_of(thread: threading.Thread) -> None:
    """Kill the command that the thread waits for, if it still runs."""
    if not thread.is_alive():
        return
    with contextlib.suppress(FileNotFoundError):
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


class PollFeed:
    """The events of a batch system that is queried at intervals; never waits for an answer."""

    folders: tuple[Path, ...] = ()

    def __init__(self, system: BatchSystem, interval: float) -> None:
        """The first query starts with the first `read_events`; ``interval``: as in this module's docstring."""
        self._system = system
        self._interval = interval
        self._states = JobStates()
        self._question: _Question | None = None
        self._next_question = 0.0
        self._outage = ""

    def read_events(self, look_for_files: bool) -> Iterator[bytes]:
        """Start a query if it is time, and yield the changes of an answer that has come; see `Feed`."""
        del look_for_files
        if self._question is None and time.monotonic() >= self._next_question:
            self._question = _Question(self._system)
        if self._question is not None and self._question.is_over:
            question, self._question = self._question, None
            self._next_question = time.monotonic() + self._interval
            yield "".join(map(render_event, self._read_answer(question))).encode()

    def _read_answer(self, question: _Question) -> list[Event]:
        # Not yesterday's: readers of day files have gone on to today's file.
        asked = max(question.asked, int(time.time()) // _DAY * _DAY)
        try:
            events = self._states.read_changes(question.read_answer(), asked)
        except BatchError as error:
            # The first error stays until there is an answer, so that the warning does not change.
            self._outage = self._outage or " ".join(str(error).split())
            return []
        self._outage = ""
        return events

    def render_warnings(self) -> tuple[str, ...]:
        """Warn of an outage, and of unknown native states."""
        warnings = []
        if self._outage:
            warnings.append(f"{self._system.adapter.name} does not answer, nothing changes until then: {self._outage}")
        if self._states.unknown:
            words = ", ".join(map(repr, sorted(self._states.unknown)[:9]))
            warnings.append(f"jobs in unknown native states keep the state they had: {words}")
        return tuple(warnings)


class PollModule:
    """The module ``poll``."""

    def open_feed(self, settings: FeedSettings) -> PollFeed:
        """A feed for the description that ``-l`` names.

        :raises OSError: it cannot be read; LogNotKnown: none is named, or it is wrong.
        """
        if settings.log is None:
            raise LogNotKnown("what to poll is needed: --log FILE, a JSON description of the batch system")
        return PollFeed(*read_polling(settings.log))


POLL = PollModule()
