"""Where a worker is killed, one point after the other: the tasks of submission, cancellation and gathering by name.

A point is a function of ours, by the name under which it is called there, and whether the worker dies before or after
it. The worker is a process of its own that wraps the function and kills itself with SIGKILL.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest


@dataclass(frozen=True)
class Point:
    """A moment in a worker's life."""

    task: str
    """What the worker does: submit, cancel, collect or reconcile."""
    name: str
    """Dotted name of the function."""
    when: str
    """``before`` or ``after`` it."""
    call: int = 1
    """At which of its calls."""
    in_doubt: bool = False
    """A submission was made before of which nobody knows what became."""
    is_inside: bool = False
    """Batch systems have no part in what comes next: one of them will do."""

    def __str__(self) -> str:
        doubt = ", in doubt" if self.in_doubt else ""
        return f"{self.task}: {self.when} {self.name}{f' #{self.call}' if self.call > 1 else ''}{doubt}"


_SYSTEM = "batch_adapters.running.batch_system.BatchSystem"

# What lies between two neighbours is the same for the next worker: each point is another state of the world.
SUBMISSION = [
    Point("submit", "jobmanager.run_grid_job.pack_sandbox", "before", is_inside=True),
    # The tar is there, the table and the driver are not.
    Point("submit", "jobmanager.submission.packing.write_sandbox", "after", is_inside=True),
    Point("submit", "jobmanager.run_grid_job.pack_sandbox", "after", is_inside=True),
    Point("submit", "jobmanager.run_grid_job.create_local_jobs", "after", is_inside=True),
    # Inside the transaction of the intent, and when it is committed.
    Point("submit", "jobmanager.database.local_jobs.LocalJobs.to_submit", "after", call=2, is_inside=True),
    Point("submit", "jobmanager.submission.submit.write_intent", "after"),
    # While the submit command runs, and when it has ended.
    Point("submit", "batch_adapters.running.commands._wait", "before", call=2),
    Point("submit", f"{_SYSTEM}.submit", "after"),
    # Inside the transaction of the registration, and when it is committed.
    Point("submit", "jobmanager.states.registration.put_local_jobs", "after"),
    Point("submit", "jobmanager.submission.submit.register_local_jobs", "after"),
    # When a part is registered.
    Point("submit", f"{_SYSTEM}.submit", "before", call=2),
    Point("submit", f"{_SYSTEM}.submit", "after", call=2),
    # While it is found out what became of a submission.
    Point("submit", "jobmanager.submission.submit.adopt", "before", in_doubt=True),
    Point("submit", f"{_SYSTEM}.find", "after", in_doubt=True),
    Point("submit", "jobmanager.submission.submit.adopt", "after", in_doubt=True),
]
CANCELLATION = [
    Point("cancel", f"{_SYSTEM}.cancel", "before"),
    Point("cancel", f"{_SYSTEM}.cancel", "after"),
    Point("cancel", "jobmanager.control.cancellation._fail_unsubmitted", "after"),
    Point("cancel", "jobmanager.control.cancellation.adopt", "before", in_doubt=True),
    Point("cancel", "jobmanager.control.cancellation.adopt", "after", in_doubt=True),
    Point("cancel", f"{_SYSTEM}.cancel", "after", in_doubt=True),
]
GATHERING = [
    Point("reconcile", f"{_SYSTEM}.query", "after"),
    Point("reconcile", "jobmanager.states.reconciliation._apply", "after"),
    Point("collect", "jobmanager.completion.collection.prove_ends", "after", is_inside=True),
    Point("collect", "jobmanager.completion.collection._ask_for_summary", "after", is_inside=True),
    # The tar is written, but has not its name yet; then it has.
    Point("collect", "sandbox.gather._render_manifest", "after", is_inside=True),
    Point("collect", "jobmanager.completion.collection.write_output", "after", is_inside=True),
    # Inside the transaction of the end.
    Point("collect", "jobmanager.completion.collection._end", "after", is_inside=True),
]
RETRYING = [
    # Inside the transaction that makes failed local jobs new, and when it is committed.
    Point("submit", "jobmanager.completion.retries.ask_for_causes", "after"),
    Point("submit", "jobmanager.completion.retries.find_last_token", "after"),
    Point("submit", "jobmanager.completion.retries.put_local_jobs", "after"),
    Point("submit", "jobmanager.run_grid_job.judge_failures", "after"),
    # Of the second attempt: the intent is committed; the batch system has it, and we do not know.
    Point("submit", "jobmanager.submission.submit.write_intent", "after"),
    Point("submit", f"{_SYSTEM}.submit", "after"),
]
ADVANCING = [
    # While the outputs of the first step are laid out for the second.
    Point("advance", "sandbox.unpack.unpack", "after"),
    Point("advance", "sandbox.unpack.sync_tree", "after"),
    Point("advance", "jobmanager.workflow.lay_out", "after"),
    # Inside the transaction: the step's grid job is written, the whole is not; and when it is committed.
    Point("advance", "jobmanager.workflow.add_grid_job", "after"),
    Point("advance", "jobmanager.monitor.worker.advance_grid_job", "after"),
    # The one tar is written, but has not its name yet; then it has.
    Point("collect", "sandbox.gather._render_manifest", "after"),
    Point("collect", "jobmanager.workflow.write_bundle", "after"),
    # Inside the transaction of the end.
    Point("collect", "jobmanager.workflow.put_end", "after"),
]


def run_and_die(point: Point, work: Callable[[], object]) -> None:
    """Run a worker in a process of its own that is killed at that point; it fails where the point is not reached."""
    worker = os.fork()
    if worker == 0:
        try:
            _arm(point)
            work()
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if status != -signal.SIGKILL:
        pytest.fail(f"no worker has come to the point {point}: it ended with status {status}")


def _arm(point: Point) -> None:
    owner, name = _find_owner(point.name)
    function = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        is_it = calls == point.call
        if is_it and point.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **named)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def _find_owner(dotted: str) -> tuple[Any, str]:
    """The module or class that has the function, and the function's name in it."""
    *path, name = dotted.split(".")
    if path[-1].lstrip("_")[0].isupper():
        return getattr(import_module(".".join(path[:-1])), path[-1]), name
    return import_module(".".join(path)), name
