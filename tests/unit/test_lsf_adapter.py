"""The adapter lsf on what LSF's documentation says that commands print: nothing here was recorded, see the README."""

import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Command, Garbled, Submission
from batch_adapters.diagnosis import Level, Printed
from batch_adapters.lsf import LSF, read_jobs
from batch_adapters.running import render_argv
from batch_adapters.states import State
from tests.unit.recordings import judge

DOCUMENTED = Path(__file__).parents[1] / "recorded" / "lsf" / "documented.txt"
ENTRY = re.compile(r"^\$ (.*)\n((?:[12]> .*\n)*)\[rc=(\d+)\]", re.MULTILINE)


def documented(section: str) -> list[tuple[str, str, str, int]]:
    """Commands of one section with stdout, stderr and exit code."""
    (text,) = re.findall(rf"^=== {section}\n(.*?)(?=^===|\Z)", DOCUMENTED.read_text(), re.MULTILINE | re.DOTALL)
    found = []
    for command, printed, code in ENTRY.findall(text):
        lines = [(line[0], line[3:]) for line in printed.splitlines()]
        out, err = ("".join(text + "\n" for number, text in lines if number == wanted) for wanted in "12")
        found.append((command, out, err, int(code)))
    return found


def command_of(line: str) -> Command:
    commands = {"bsub": LSF.submit, "bjobs": LSF.queue, "bkill": LSF.cancel, "lsid": LSF.version}
    command = commands.get(line.split()[0], LSF.array_limit)
    assert command is not None
    return command


def answers(section: str) -> list[Answer]:
    return [judge(command_of(line), code, stdout, stderr) for line, stdout, stderr, code in documented(section)]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        pytest.param("submit", [Answer.OK] * 2 + [Answer.PERMANENT] * 3 + [Answer.LATER], id="submit"),
        pytest.param("jobs", [Answer.OK], id="jobs"),
        pytest.param("nothing", [Answer.ABSENT] * 5, id="nothing there is said with either exit code"),
        pytest.param("down", [Answer.TRANSIENT] * 6, id="down"),
        pytest.param("down for a moment", [Answer.OK] * 2, id="an answer after all"),
        pytest.param("cancel", [Answer.OK, Answer.OK, Answer.PERMANENT], id="cancel"),
        pytest.param("settings", [Answer.OK] * 2, id="settings"),
    ],
)
def test_what_answers_mean(section: str, expected: list[Answer]) -> None:
    assert answers(section) == expected


def test_no_words_at_all_are_no_answer() -> None:
    assert not any(outcome.fits(0, "") for outcome in LSF.queue.outcomes)


def test_jobs_by_their_names() -> None:
    ((_, printed, _, _),) = documented("jobs")
    jobs = {job.local_id: (job.token, job.native_state, job.exit_code) for job in read_jobs(printed)}
    assert jobs == {
        "101": ("k3f9zq2m-1", "RUN", None),
        "102[1]": ("k3f9zq2m-2", "DONE", None),
        "102[2]": ("k3f9zq2m-2", "EXIT", 3),
        "102[3]": ("k3f9zq2m-2", "PEND", None),
        "103": ("k3f9zq2m-4", "EXIT by LSF", 130),
        "104": ("k3f9zq2m-5", "EXIT by LSF", None),
        "105": ("k3f9zq2m-6", "EXIT", 139),
        "106": ("k3f9zq2m-7", "EXIT by LSF", 140),
        "108": ("k3f9zq2m-8", "PSUSP", None),
    }
    reasons = {job.local_id: job.reason for job in read_jobs(printed)}
    assert reasons["102[3]"] == "Job's resource requirements not satisfied"
    assert reasons["103"] == "TERM_OWNER: job killed by owner"
    assert reasons["101"] == ""


def test_an_id_with_its_index_is_read_as_well() -> None:
    ((_, printed, _, _),) = documented("LSB_BJOBS_DISPLAY_ENH=Y")
    assert [job.local_id for job in read_jobs(printed)] == ["102[2]"]


@pytest.mark.parametrize(
    "line", ["101|0|RUN|-|k3f9", "Welcome!\n", "101 0 RUN\n"], ids=["cut short", "a banner", "blanks"]
)
def test_a_line_that_is_no_job_is_garbled(line: str) -> None:
    with pytest.raises(Garbled):
        list(read_jobs("100|0|RUN|-|k3f9zq2m-1|-|-\n" + line))


def test_what_bsub_prints_names_every_local_job() -> None:
    single, array = (entry[1] for entry in documented("submit")[:2])
    assert LSF.naming.read_submitted(single, 1) == {1: "101"}
    assert LSF.naming.read_submitted(array, 3) == {1: "102[1]", 2: "102[2]", 3: "102[3]"}
    assert LSF.naming.read_submitted("Welcome!\n" + single, 1) is None
    assert (LSF.naming.position_of("102[3]"), LSF.naming.array_of("102[3]")) == (3, "102")
    assert (LSF.naming.position_of("101"), LSF.naming.array_of("101")) == (1, "101")


def test_one_local_job_is_submitted() -> None:
    submission = Submission("k3f9zq2m-1", 1, 0, "/s/driver.sh", "/s/results")
    line = "bsub -J k3f9zq2m-1 -env none -o /s/results/k3f9zq2m-1.1.driver -cwd / /bin/sh /s/driver.sh 0 k3f9zq2m-1"
    assert render_argv(LSF.submit, asdict(submission)) == line.split(" ")


def test_an_array_is_submitted_with_all_it_needs() -> None:
    submission = Submission(
        *("k3f9zq2m-2", 200, 7, "/s/my driver.sh", "/s/results"),
        queue="short",
        project="d0",
        max_cpu_minutes=90,
        max_wall_minutes=120,
        max_memory_mb=2000,
        options=("-R", "select[mem>2000]"),
    )
    assert render_argv(LSF.submit, asdict(submission)) == [
        *("bsub", "-J", "k3f9zq2m-2[1-200]", "-env", "none", "-o", "/s/results/k3f9zq2m-2.%I.driver", "-cwd", "/"),
        *("-q", "short", "-P", "d0", "-c", "90", "-W", "120", "-M", "2000MB", "-R", "select[mem>2000]"),
        *("/bin/sh", "'/s/my driver.sh'", "7", "k3f9zq2m-2"),
    ]


@pytest.mark.parametrize(("index", "words"), [("0", "12 1"), ("3", "12[3] 3")], ids=["alone", "in an array"])
def test_a_running_job_finds_its_id_and_position(tmp_path: Path, index: str, words: str) -> None:
    # A file that the shell could take for the meaning of [3].
    (tmp_path / "3").touch()
    script = f'id="{LSF.local_id_words}"\nposition="{LSF.index_words}"\nprintf "%s %s" "$id" "$position"'
    environment = {"LSB_JOBID": "12", "LSB_JOBINDEX": index}
    printed = subprocess.run(["/bin/sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert printed.stdout.decode() == words


def test_every_state_of_the_manual_is_known() -> None:
    # "JOB STATUS" of bjobs(1), and "Job states" of "LSF terms and concepts", LSF 10.1
    manual = "PEND PROV PSUSP RUN USUSP SSUSP DONE EXIT UNKWN WAIT ZOMBI POST_DONE POST_ERR"
    assert set(LSF.states) == {*manual.split(), "EXIT by LSF"}
    assert LSF.states["EXIT by LSF"] is State.FAILED


@pytest.mark.parametrize(
    ("printed", "findings"),
    [
        pytest.param(documented("settings")[1][1], [(Level.GOOD, "")], id="as delivered"),
        pytest.param(
            "    CLEAN_PERIOD = 60\n",
            [(Level.WARNING, "lsb.params: CLEAN_PERIOD = 3600, then: badmin reconfig")],
            id="ended jobs are gone soon",
        ),
        pytest.param("", [], id="it says nothing"),
    ],
)
def test_the_doctor(printed: str, findings: list[tuple[Level, str]]) -> None:
    found = LSF.diagnose(lambda _: Printed(0, printed, ""), {})
    assert [(finding.level, finding.remedy) for finding in found] == findings
