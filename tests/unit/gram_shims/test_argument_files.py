"""What GRAM 1.5 wrote for a shell is read back byte for byte."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_adapters.states import State
from gram_shims.request import BadDescription
from gram_shims.scripts import read_argument_file
from tests.unit.gram_shims.argument_files import render_argument_file

# GRAM's own strings end at NUL; surrogates are bytes that are no UTF-8.
WORDS = st.text(st.characters(exclude_characters="\0"), max_size=20)
_SHELL_LETTERS = st.text(alphabet="a \t\n\"'\\$`;=*~#&|()", max_size=20)


@given(st.lists(WORDS | _SHELL_LETTERS, max_size=6), WORDS | _SHELL_LETTERS)
def test_words_come_back_as_they_were(words: list[str], program: str) -> None:
    text = render_argument_file({"program": program, "directory": program}, {"args": words})
    description, _ = read_argument_file(text)
    assert description.words("arguments") == tuple(words)
    assert description.words("executable") == (program,)
    assert description.words("directory") == (program,)


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain", '"plain"'),
        ("", '""'),
        ('"', r'"\""'),
        ("\\", r'"\\\\"'),
        ("'", '"\'"\'"\'"'),
        ("$", '"\'"\\\\$"\'"'),
        ("two words", '"two words"'),
    ],
    ids=["plain", "empty", "double quote", "backslash", "single quote", "dollar", "blank"],
)
def test_the_rules_of_the_protocol(word: str, written: str) -> None:
    text = render_argument_file({"program": "/bin/x"}, {"args": [word]})
    assert f"grami_args='{written}'\n" in text
    assert read_argument_file(text)[0].words("arguments") == (word,)


# A backslash came out of the shells of its time as one, of today's as two.
@pytest.mark.parametrize("word", ["a b", "$HOME", "it's", 'say "hi"', "x\ny", "$(id)", "*", "a;b"])
def test_we_read_what_a_shell_reads(word: str, room: Path) -> None:
    file = room / "grami"
    file.write_text(render_argument_file({"program": "/bin/x"}, {"args": [word, "end"]}))
    script = f'set -f; IFS=; . {file}; eval set -- $grami_args; printf %s "$1"'
    said = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == word == read_argument_file(file.read_text())[0].words("arguments")[0]


def test_a_whole_file_becomes_a_description() -> None:
    text = render_argument_file(
        {"logfile": "/dev/null", "directory": "/home/a", "program": "bin/run", "stdin": "/dev/null", "queue": ""},
        {
            "args": ["a", "b"],
            "env": ["HOME", "/home/a", "EMPTY", ""],
            "scheduler_specific_samgrid_type": ["pythia"],
            "scheduler_specific_input_files": ["x y", "z"],
        },
        {
            "grami_stdout": "/tmp/o\\ut",
            "grami_count": "3",
            "grami_max_time": "0",
            "grami_max_wall_time": "10",
            "grami_job_type": "2",
            "grami_uniq_id": "4711",
            "KRB5CCNAME": "/tmp/krb",
        },
    )
    description, _ = read_argument_file(text)
    assert description.words("environment") == (("HOME", "/home/a"), ("EMPTY", ""))
    assert description.words("samgrid_type") == ("pythia",)
    assert description.words("input_files") == ("x y", "z")
    assert description.word("stdout") == "/tmp/o\\ut"
    assert description.word("count") == "3"
    assert description.words("max_time") == ()
    assert description.word("max_wall_time") == "10"
    assert description.word("job_type") == "multiple"
    assert description.word("uniqid") == "4711"
    assert description.environment == {"KRB5CCNAME": "/tmp/krb"}


def test_what_has_parentheses_comes_in_one_word() -> None:
    request = '&(samgrid_type = structured)(steps = (one (samgrid_type pythia) (events 20)) (two (samgrid_type "a b")))'
    text = render_argument_file({"program": "/bin/x"}, {"scheduler_specific_samgrid_rsl": [request]})
    description, _ = read_argument_file(text)
    assert description.words("samgrid_type") == ("structured",)
    assert description.words("steps") == (
        ("one", ("samgrid_type", "pythia"), ("events", "20")),
        ("two", ("samgrid_type", "a b")),
    )
    assert description.words("samgrid_rsl") == ()


@pytest.mark.parametrize(
    "specific",
    [{"samgrid_rsl": ['(samgrid_type = pythia)(Job_Id = "1.bbbbbbbb")']}, {"uniqid": ["theirs"]}, {"signal": ["1"]}],
    ids=str,
)
def test_what_names_a_job_to_gram_is_not_the_clients_to_say(specific: dict[str, list[str]]) -> None:
    lists = {f"scheduler_specific_{name}": words for name, words in specific.items()}
    text = render_argument_file({"program": "/bin/x"}, lists, raw={"grami_job_id": "1.aaaaaaaa"})
    with pytest.raises(BadDescription, match=r"scheduler_specific: (jobid|uniqid|signal) is GRAM's own"):
        read_argument_file(text)


def test_variables_of_a_request_in_one_word_come_to_those_of_gram() -> None:
    lists = {
        "env": ["GLOBUS_GRAM_JOB_CONTACT", "https://h/1/"],
        "scheduler_specific_samgrid_rsl": ["(environment=(A b))"],
    }
    description, _ = read_argument_file(render_argument_file({"program": "/bin/x"}, lists))
    assert description.contact == "https://h/1/"
    assert description.words("environment")[1:] == (("A", "b"),)


def test_what_scripts_append_is_read_and_the_last_counts() -> None:
    text = render_argument_file(
        {"program": "/bin/x"}, raw={"grami_job_id": "aaaaaaaa", "samgrid_told_state": "1"}
    ) + render_argument_file(raw={"grami_job_id": "bbbbbbbb", "samgrid_told_state": "2"})
    description, reported = read_argument_file(text)
    assert description.word("jobid") == "bbbbbbbb"
    assert reported is State.ACTIVE


def test_an_assignment_within_a_value_is_none() -> None:
    text = render_argument_file({"program": "/bin/x"}, {"args": ["a\ngrami_program='/bin/evil'\n"]})
    assert read_argument_file(text)[0].word("executable") == "/bin/x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "grami_directory='/'\n",
        "grami_program='/bin/x\n",
        "grami_program='\"/bin/x'\n",
        'grami_program="/bin/x\n',
        "grami_program='/bin/x'\ngrami_args='\"a\" ; rm x'\n",
        "grami_program='/bin/x'\ngrami_env='\"A\"'\n",
        "grami_program='/bin/x'\ngrami_args='" + '"a" ' * 1000,
        "grami_program='/bin/x'\ngrami_scheduler_specific_samgrid_rsl='\"(steps\"'\n",
    ],
    ids=[
        "empty",
        "text",
        "no program",
        "open quote",
        "quote inside",
        "double",
        "semicolon",
        "half a pair",
        "cut off",
        "no RSL",
    ],
)
def test_what_is_no_argument_file_is_refused(text: str) -> None:
    with pytest.raises(BadDescription):
        read_argument_file(text)
