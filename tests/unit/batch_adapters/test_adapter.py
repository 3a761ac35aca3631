"""Texts become jobs line by line, or are garbled: nothing in between."""

import pytest

from batch_adapters.adapter import Answer, Garbled, Job, Lines, LocalStatus, Meaning

READ = Lines(
    r"(?P<id>\d+) (?P<state>[A-Z]+)(?: (?P<exit>-|\d+))?(?: (?P<token>[a-z-]\S*))?(?: \((?P<reason>.*)\))?",
    others=r"JOBID.*|",
)


@pytest.mark.parametrize(
    ("printed", "jobs"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("7 PD\n8 R\n", [Job("7", "PD"), Job("8", "R")], id="states only"),
        pytest.param("7 CD 0\n8 F 137\n", [Job("7", "CD", 0), Job("8", "F", 137)], id="exit codes"),
        pytest.param("7 PD t-1 (Resources)\n", [Job("7", "PD", None, "Resources", "t-1")], id="token and reason"),
        pytest.param("7 PD ()\n", [Job("7", "PD")], id="no reason"),
        pytest.param("JOBID STATE\n\n7 R\n", [Job("7", "R")], id="a heading and an empty line"),
    ],
)
def test_each_line_is_a_job(printed: str, jobs: list[Job]) -> None:
    assert list(READ(printed)) == jobs


@pytest.mark.parametrize(
    ("printed", "quoted"),
    [
        pytest.param("Maintenance on Monday!\n7 R\n", "'Maintenance on Monday!\\\\n'", id="a banner before"),
        pytest.param("7 R\nConnection closed.\n", "'Connection closed.\\\\n'", id="a banner after"),
        pytest.param("7 R\n8 CD 1", "'8 CD 1'", id="torn in the last line"),
        pytest.param("7 R\nJOB", "'JOB'", id="torn in a heading"),
        pytest.param("7 R\r\n", "'7 R\\\\r\\\\n'", id="other line breaks"),
        pytest.param("7 CD -\n", "no number: '-'", id="an exit code that is no number"),
        pytest.param("x" * 1000 + "\n", "x{199}'", id="a long line is shortened"),
    ],
)
def test_any_other_line_is_garbled(printed: str, quoted: str) -> None:
    with pytest.raises(Garbled, match=quoted):
        list(READ(printed))


@pytest.mark.parametrize(
    ("outcome", "exit_code", "output", "fits"),
    [
        pytest.param(Meaning(1, "down", Answer.TRANSIENT), 1, "is down now", True, id="both"),
        pytest.param(Meaning(1, "down", Answer.TRANSIENT), 2, "is down now", False, id="another exit code"),
        pytest.param(Meaning(1, "down", Answer.TRANSIENT), 1, "is up", False, id="other words"),
        pytest.param(Meaning(None, "down", Answer.TRANSIENT), 255, "down", True, id="any exit code"),
        pytest.param(Meaning(0, "", Answer.OK), 0, "whatever", True, id="any words"),
    ],
)
def test_an_outcome_is_known_by_exit_code_and_words(outcome: Meaning, exit_code: int, output: str, fits: bool) -> None:
    assert outcome.fits(exit_code, output) is fits


@pytest.mark.parametrize(("named", "is_ours"), [("", True), ("t-1", True), ("t-2", False)], ids=["none", "it", "other"])
def test_an_answer_that_names_another_token_is_of_another_job(named: str, is_ours: bool) -> None:
    assert LocalStatus("7", "R", None, token=named).is_of("t-1") is is_ours
