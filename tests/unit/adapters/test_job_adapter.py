"""How many local jobs a grid job becomes, and that their slices cover its events exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import Limits, TooLarge
from adapters.job_adapter import HIGHEST_SEED, count_local_jobs, cut_slice

NO_RULE = Limits()


@pytest.mark.parametrize(
    ("events", "cpu_per_event", "per_local_job", "limits", "count"),
    [
        pytest.param(1, 0, 0, NO_RULE, 1, id="one event"),
        pytest.param(250, 0, 0, NO_RULE, 1, id="rule of thumb, full"),
        pytest.param(251, 0, 0, NO_RULE, 2, id="rule of thumb, one more"),
        pytest.param(2000, 0, 0, NO_RULE, 8, id="rule of thumb, the demonstration"),
        pytest.param(2000, 0, 0, Limits(events_per_local_job=500), 4, id="the site's own rule of thumb"),
        pytest.param(2000, 0, 100, NO_RULE, 20, id="the request's events a local job"),
        pytest.param(2000, 10, 100, Limits(recommended_cpu_time=100), 20, id="the request before the recommendation"),
        pytest.param(2000, 10, 0, Limits(recommended_cpu_time=5000), 4, id="recommended CPU time"),
        pytest.param(2000, 10, 0, Limits(max_cpu_time=4000), 5, id="maximum CPU time where none is recommended"),
        pytest.param(
            2000, 10, 0, Limits(recommended_cpu_time=1000, max_cpu_time=4000), 20, id="recommended before maximum"
        ),
        pytest.param(2000, 10, 1000, Limits(max_cpu_time=4000), 5, id="the maximum binds the request too"),
        pytest.param(3, 10, 0, Limits(recommended_cpu_time=5), 3, id="one event even above the recommendation"),
        pytest.param(2000, 10, 0, NO_RULE, 8, id="CPU per event, but no CPU time of the site"),
        pytest.param(2000, 0, 0, Limits(max_cpu_time=1), 8, id="CPU time of the site, but none per event"),
        pytest.param(2000, 0, 1, Limits(max_local_jobs=2000), 2000, id="exactly as many as the site takes"),
    ],
)
def test_the_number_of_local_jobs_follows_the_first_rule_that_is_known(
    events: int, cpu_per_event: float, per_local_job: int, limits: Limits, count: int
) -> None:
    assert count_local_jobs(events, cpu_per_event, per_local_job, limits) == count


def test_an_event_longer_than_the_site_allows_is_too_large() -> None:
    with pytest.raises(TooLarge) as caught:
        count_local_jobs(10, 3601, 0, Limits(max_cpu_time=3600))
    assert str(caught.value) == "one event takes 3601 s of CPU, but a local job may take 3600 s here"


def test_more_local_jobs_than_the_site_takes_are_too_many_and_the_way_out_is_named() -> None:
    with pytest.raises(TooLarge) as caught:
        count_local_jobs(10**12, 0, 0, Limits(max_local_jobs=1000))
    assert str(caught.value) == (
        "1000000000000 events at 250 a local job make 4000000000 local jobs, but this site takes at most 1000: "
        "ask for fewer events or for more events a local job"
    )


@given(
    events=st.integers(1, 10**12),
    cpu_per_event=st.floats(0.001, 1e5),
    per_local_job=st.integers(0, 10**6),
    max_cpu_time=st.floats(1e5, 1e9),
)
def test_no_local_job_exceeds_its_share_or_the_maximum_cpu_time(
    events: int, cpu_per_event: float, per_local_job: int, max_cpu_time: float
) -> None:
    limits = Limits(max_cpu_time=max_cpu_time, max_local_jobs=10**12)
    count = count_local_jobs(events, cpu_per_event, per_local_job, limits)
    assert 1 <= count <= events
    largest = max(cut_slice(index, count, events, 1).events for index in (1, count))
    assert largest * cpu_per_event <= max_cpu_time * (1 + 1e-9)
    assert not per_local_job or largest <= per_local_job


COUNTS = st.integers(1, 200)
SEEDS = st.integers(1, HIGHEST_SEED)


@given(count=COUNTS, more=st.integers(0, 10**12), seed=SEEDS)
def test_slices_cover_each_event_once_and_differ_by_one_event_at_most(count: int, more: int, seed: int) -> None:
    events = count + more
    slices = [cut_slice(index, count, events, seed) for index in range(1, count + 1)]
    expected = 1
    for part in slices:
        assert part.first_event == expected
        expected += part.events
    assert expected == events + 1
    sizes = {part.events for part in slices}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(count=COUNTS, seed=SEEDS)
def test_the_seeds_of_one_grid_job_are_distinct_and_in_pythias_range(count: int, seed: int) -> None:
    seeds = [cut_slice(index, count, count, seed).seed for index in range(1, count + 1)]
    assert seeds[0] == seed
    assert len(set(seeds)) == count
    assert all(1 <= one <= HIGHEST_SEED for one in seeds)


def test_the_seed_after_the_highest_is_the_first() -> None:
    assert [cut_slice(index, 3, 3, HIGHEST_SEED - 1).seed for index in (1, 2, 3)] == [HIGHEST_SEED - 1, HIGHEST_SEED, 1]
