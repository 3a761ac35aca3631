"""Whatever a command prints, a reader makes jobs of it or it is garbled, soon, and the text is kept."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_adapters.adapter import MOST_ELEMENTS, Garbled, Job, read_range
from batch_adapters.running import batch_system
from batch_adapters.running.batch_system import read_answer
from tests.fuzz import targets
from tests.fuzz.targets import BATCH_SYSTEMS, check_answer
from tests.unit.batch_adapters.recordings import RECORDED, read_recordings

READERS = [read for adapter in BATCH_SYSTEMS.values() for read in (adapter.read_jobs, adapter.read_history)]
MANY_DIGITS = "9" * 5000
DEEP = 100_000 * "["
GOOD = [
    *(recording.stdout for recording in read_recordings("sge", "sge-commands.txt") if "qacct" in recording.command)
][:3] + [
    *(recording.stdout for recording in read_recordings("sge", "sge-commands.txt") if "-xml" in recording.command)
][:2]
GOOD += [*targets.GOOD, (RECORDED / "torque" / "qstat.xml").read_text()]
GOOD += [(RECORDED / "pbs" / "pbs-qstat-x-history-on.json").read_text()[:4000]]

HOSTILE = [
    *(f"4_[{tasks}]|CANCELLED|0:0\n" for tasks in ("1-9:0", "1-99999999999", f"1-{MANY_DIGITS}", MANY_DIGITS, "9-1")),
    *(f"{MANY_DIGITS}_{MANY_DIGITS}|FAILED|{code}:0\n" for code in ("1", MANY_DIGITS, "9" * 30)),
    f"4_1|FAILED|{MANY_DIGITS}|None|t|4_1\n",
    *(
        "<job_info><job_list><JB_job_number>4</JB_job_number><state>qw</state>"
        f"<tasks>{tasks}</tasks></job_list></job_info>"
        for tasks in ("1-4294967296:2", "1-9:0", f"1-{MANY_DIGITS}:1", MANY_DIGITS, "1-3", "1-3:1,")
    ),
    "<a>" * 100_000,
    "<Data>" * 10_000 + "</Data>" * 10_000,
    DEEP,
    '{"Jobs":' * 100_000,
    *(f'[{{"ClusterId": {number}, "ProcId": 0, "JobStatus": 4}}]' for number in ("Infinity", "NaN", "1e999", "[]")),
    *(f'[{{"ClusterId": 1, "ProcId": 0, "JobStatus": {word}}}]' for word in (MANY_DIGITS, "null", "{}", "-Infinity")),
    *(
        f'[{{"ClusterId": 1, "ProcId": 0, "JobStatus": 5, "HoldReasonCode": {code}}}]'
        for code in ("[]", "{}", "NaN", "1e999")
    ),
    f'[{{"ClusterId": 1, "ProcId": 0, "JobStatus": 4, "ExitCode": {"9" * 40}}}]',
    *(f'{{"Jobs": {{"1[1].vm": {{"Job_Name": "k3f9zq2m-1", "job_state": {word}}}}}}}' for word in ("[]", "{}", "1e9")),
    '{"Jobs": {"1.vm": {"Job_Name": "k3f9zq2m-1", "Exit_status": {"a": 1}, "job_state": "F", "comment": []}}}',
    f"a-1.1 ended {MANY_DIGITS}\n",
    f"a-1.{MANY_DIGITS} ended 1\n",
    f"100|0|EXIT|{MANY_DIGITS}|k3f9zq2m-1|-|-\n",
    f"7 X {MANY_DIGITS}\n",
    f"{'=' * 62}\njobnumber {MANY_DIGITS}\ntaskid 1\njobname t\nfailed 0\nexit_status 0\n",
    f"{'=' * 62}\njobnumber 1\ntaskid 1\njobname t\nfailed 37\nexit_status 1\ncategory -l h_rt=1e9,h_cpu=::\n",
    f"{'=' * 62}\njobnumber 1\ntaskid 1\njobname t\nfailed \nexit_status  \n",
    f"{'=' * 62}\njobname{' ' * 100_000}x\n",
]


@pytest.mark.parametrize("printed", HOSTILE, ids=[f"{number}: {text[:40]}" for number, text in enumerate(HOSTILE)])
def test_hostile_answers_are_garbled_or_read(printed: str) -> None:
    for read in READERS:
        check_answer(read, printed)


@given(
    st.one_of(
        st.text(max_size=200),
        st.sampled_from(HOSTILE),
        st.builds(
            lambda good, start, stop, other: good[:start] + other + good[stop:],
            st.sampled_from(GOOD),
            st.integers(0, 4000),
            st.integers(0, 4000),
            st.text(max_size=20) | st.sampled_from(["\n", MANY_DIGITS, "1e999", "[1-9:0]", "null", "{}", "]]>", "\0"]),
        ),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["Jobs", "1[2].vm", "Job_Name", "job_state", "ClusterId", "ProcId", "JobStatus"]),
                    inner,
                    max_size=4,
                )
            ),
        ).map(json.dumps),
    )
)
@example("")
def test_no_answer_at_all_makes_a_reader_fail_in_another_way(printed: str) -> None:
    for read in READERS:
        check_answer(read, printed)


def test_what_a_reader_does_wrong_is_garbled_with_the_text() -> None:
    def read(printed: str) -> list[Job]:
        raise RecursionError(printed)

    with pytest.raises(Garbled, match=r"^RecursionError: what it printed: 'what it printed'$"):
        read_answer(read, "what it printed")


def test_an_answer_without_an_end_is_garbled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_system, "_MOST_JOBS", 10)

    def read(printed: str) -> Iterator[Job]:
        while True:
            yield Job(printed, "R")

    with pytest.raises(Garbled, match="more than 10 jobs: '7'"):
        read_answer(read, "7")


def test_the_elements_of_an_array_are_bounded() -> None:
    assert list(read_range("3")) == [3]
    assert list(read_range("1-9:4")) == [1, 5, 9]
    assert len(read_range(f"1-{MOST_ELEMENTS}")) == MOST_ELEMENTS
    for text in (f"1-{MOST_ELEMENTS + 1}", "2-1", "1-9:0", "1-", "x", "1-9:", ""):
        with pytest.raises(Garbled):
            read_range(text)
