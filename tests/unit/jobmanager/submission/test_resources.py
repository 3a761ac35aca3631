"""An attempt is given more of what the ones before may have lacked, and no more."""

from collections.abc import Mapping
from typing import Any

import pytest

from batch_adapters.states import Cause
from jobmanager.database.local_job import LocalJob
from jobmanager.submission.submit import Resources, choose_resources

REQUEST: Mapping[str, Any] = {
    **{"max_memory": 1000, "max_cpu_time": 60, "max_wall_time": 90},
    **{"retry_memory_factor": 1.5, "retry_time_factor": 2.0, "retry_elsewhere": True},
}


def after(*ends: Cause | None, host: str | None = "node7.site.org") -> LocalJob:
    """A local job whose attempts have ended for these causes."""
    job = LocalJob.new(1, "toy", None)
    for cause in ends:
        job.cause, job.host = cause, host
        job.begin_attempt()
    return job


def test_the_first_attempt_has_what_the_request_says() -> None:
    assert choose_resources(after(), REQUEST) == Resources(1000, 60, 90, "")


@pytest.mark.parametrize(
    ("ends", "memory", "cpu", "wall"),
    [
        pytest.param([Cause.MEMORY_LIMIT], 1500, 60, 90, id="memory"),
        pytest.param([Cause.EXIT_CODE], 1500, 60, 90, id="a program may say so by its exit code"),
        pytest.param([Cause.TIME_LIMIT], 1000, 120, 180, id="time"),
        pytest.param([Cause.CPU_LIMIT, Cause.TIME_LIMIT], 1000, 240, 360, id="time, twice"),
        pytest.param([Cause.SIGNAL], 1500, 120, 180, id="nobody knows"),
        pytest.param([Cause.NODE_LOST, Cause.PENDING_LIMIT, None], 1000, 60, 90, id="no fault of the program's"),
        pytest.param([Cause.MEMORY_LIMIT, Cause.NODE_LOST, Cause.MEMORY_LIMIT], 2250, 60, 90, id="what is given stays"),
        pytest.param([Cause.SIGNAL] * 100, 10_000_000, 10_000_000, 10_000_000, id="without end"),
    ],
)
def test_what_an_attempt_may_have_lacked_the_next_has_more_of(
    ends: list[Cause | None], memory: int, cpu: int, wall: int
) -> None:
    needs = choose_resources(after(*ends), REQUEST)
    assert (needs.memory_mb, needs.cpu_minutes, needs.wall_minutes) == (memory, cpu, wall)


def test_parts_of_a_megabyte_are_rounded_up() -> None:
    assert choose_resources(after(Cause.MEMORY_LIMIT), {**REQUEST, "max_memory": 1}).memory_mb == 2


def test_what_has_no_limit_does_not_grow() -> None:
    request = {**REQUEST, "max_memory": None, "max_cpu_time": None, "max_wall_time": None}
    assert choose_resources(after(Cause.SIGNAL), request) == Resources(0, 0, 0, "node7")


def test_a_limit_that_is_above_all_growth_stays() -> None:
    assert choose_resources(after(Cause.MEMORY_LIMIT), {**REQUEST, "max_memory": 20_000_000}).memory_mb == 20_000_000


@pytest.mark.parametrize(
    ("host", "excluded"),
    [("node7.site.org", "node7"), ("node-7", "node-7"), (None, ""), ("'; rm -rf", ""), ("", "")],
    ids=str,
)
def test_the_host_of_the_attempt_before_is_named_by_its_first_part(host: str | None, excluded: str) -> None:
    assert choose_resources(after(Cause.SIGNAL, host=host), REQUEST).excluded_host == excluded


def test_only_the_last_host_is_excluded_and_only_where_that_is_wanted() -> None:
    job = after(Cause.SIGNAL, host="node1")
    job.host = "node2"
    job.begin_attempt()
    assert choose_resources(job, REQUEST).excluded_host == "node2"
    assert choose_resources(job, {**REQUEST, "retry_elsewhere": False}).excluded_host == ""
