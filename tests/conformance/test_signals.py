"""Suspend, resume, hold, release and priority: the command lines of each adapter, and what it makes of the answers.

Those of Slurm 22.05 and SGE 8.1.9 are recorded, HTCondor's are in test_every_adapter, the others' are of their manuals.
"""

from collections.abc import Sequence

import pytest

from batch_adapters.adapter import Answer, BatchAdapter, Command
from batch_adapters.condor import CONDOR
from batch_adapters.fork.adapter import FORK
from batch_adapters.lsf import LSF
from batch_adapters.pbs import PBS, TORQUE
from batch_adapters.running.commands import render_argv
from batch_adapters.sge import SGE
from batch_adapters.slurm import SLURM

OK, TRANSIENT, PERMANENT, UNKNOWN = Answer.OK, Answer.TRANSIENT, Answer.PERMANENT, Answer.UNKNOWN
SLURM_DOWN = "Unexpected message received for job 4_0\nslurm_suspend error: Unexpected message received\n"
THEIRS = (
    '(regexp("^(?:k3f9zq2m)", SamgridToken) || regexp("driver[.]sh\'? (?:k3f9zq2m)", Arguments)) =?= true'
    " && (ClusterId == 7 || ClusterId == 8_1)"
)
SGE_DOWN = "error: commlib error: got select error (Connection refused)\n"


def find_command(adapter: BatchAdapter, verb: str) -> Command:
    command = getattr(adapter, verb)
    assert isinstance(command, Command)
    return command


@pytest.mark.parametrize(
    ("adapter", "verb", "argv"),
    [
        (SLURM, "suspend", ["scancel", "--full", "--signal=STOP", "7", "8_1"]),
        (SLURM, "resume", ["scancel", "--full", "--signal=CONT", "7", "8_1"]),
        (SLURM, "hold", ["scontrol", "hold", "7,8_1"]),
        (SLURM, "release", ["scontrol", "release", "7,8_1"]),
        (SLURM, "priority", ["scontrol", "update", "JobId=7,8_1", "Nice=5"]),
        (SGE, "suspend", ["qmod", "-sj", "7", "8_1"]),
        (SGE, "resume", ["qmod", "-usj", "7", "8_1"]),
        (SGE, "hold", ["qhold", "7", "8_1"]),
        (SGE, "release", ["qrls", "7", "8_1"]),
        (SGE, "priority", ["qalter", "-p", "-5", "7", "8_1"]),
        (CONDOR, "suspend", ["condor_suspend", "-constraint", THEIRS]),
        (CONDOR, "resume", ["condor_continue", "-constraint", THEIRS]),
        (CONDOR, "hold", ["condor_hold", "-constraint", THEIRS]),
        (CONDOR, "release", ["condor_release", "-constraint", THEIRS]),
        (CONDOR, "priority", ["condor_qedit", "-constraint", THEIRS, "JobPrio", "-5"]),
        (PBS, "suspend", ["qsig", "-s", "suspend", "7", "8_1"]),
        (PBS, "resume", ["qsig", "-s", "resume", "7", "8_1"]),
        (PBS, "hold", ["qhold", "7", "8_1"]),
        (PBS, "release", ["qrls", "7", "8_1"]),
        (PBS, "priority", ["qalter", "-p", "-5", "7", "8_1"]),
        (TORQUE, "hold", ["qhold", "7", "8_1"]),
        (LSF, "suspend", ["bstop", "7", "8_1"]),
        (LSF, "resume", ["bresume", "7", "8_1"]),
    ],
    ids=lambda value: value.name if isinstance(value, BatchAdapter) else value if isinstance(value, str) else "",
)
def test_the_command_line_names_the_local_jobs(adapter: BatchAdapter, verb: str, argv: Sequence[str]) -> None:
    variables = {"ids": ["7", "8_1"], "prefixes": ["k3f9zq2m"], "priority": -5}
    assert render_argv(find_command(adapter, verb), variables) == argv


@pytest.mark.parametrize(
    ("adapter", "verb", "exit_code", "printed", "answer"),
    [
        pytest.param(SLURM, "suspend", 0, "", OK, id="slurm: done"),
        pytest.param(
            SLURM, "suspend", 1, "scancel: error: Kill job error on job id 3: Invalid job id specified\n", OK,
            id="slurm: one has ended",
        ),
        pytest.param(
            SLURM, "resume", 1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
            TRANSIENT, id="slurm: down",
        ),
        pytest.param(
            SLURM, "hold", 1, "Invalid job id specified for job 99\nslurm_suspend error: Invalid job id specified\n",
            OK, id="slurm: one is unknown",
        ),
        pytest.param(
            SLURM, "hold", 1, "Job has already finished for job 3\nslurm_suspend error: Job has already finished\n",
            OK, id="slurm: one to be held has ended",
        ),
        pytest.param(SLURM, "hold", 1, SLURM_DOWN, TRANSIENT, id="slurm: down, and hold says something else"),
        pytest.param(
            SLURM, "priority", 1, "4_2: Access/permission denied\n4_0: Access/permission denied\n", PERMANENT,
            id="slurm: a higher priority",
        ),
        pytest.param(
            SGE, "suspend", 0, "griduser - suspended job-array task 1.1\ngriduser - job-array task 1.2 is already "
            "suspended\n", OK, id="sge: done",
        ),
        pytest.param(
            SGE, "suspend", 1, "Modify operation can not be applied on job-array task 2.1 in pending/hold state\n"
            'invalid queue or job "3"\n', OK, id="sge: one waits again, one has ended",
        ),
        pytest.param(SGE, "resume", 0, "griduser - unsuspended job-array task 1.3\n", OK, id="sge: resumed"),
        pytest.param(
            SGE, "hold", 3, 'modified hold of job-array task 1.1\ndenied: job "99" does not exist\n', OK,
            id="sge: one to be held is unknown",
        ),
        pytest.param(
            SGE, "priority", 0, "griduser@vm sets scheduling priority of job 1 to -5\n", OK, id="sge: a lower priority"
        ),
        pytest.param(
            SGE, "priority", 1, 'denied: "griduser" must be operator to increase job priority\n', PERMANENT,
            id="sge: a higher priority",
        ),
        pytest.param(SGE, "hold", 11, SGE_DOWN, TRANSIENT, id="sge: down"),
        pytest.param(PBS, "suspend", 159, "qsig: Unauthorized Request 7.pbs\n", PERMANENT, id="pbs: for operators"),
        pytest.param(PBS, "hold", 0, "", OK, id="pbs: held"),
        pytest.param(PBS, "hold", 153, "qhold: Unknown Job Id 7.pbs\n", OK, id="pbs: one has gone"),
        pytest.param(PBS, "release", 111, "Connection refused\nqrls: cannot connect to server vm (errno=111)\n",
                     TRANSIENT, id="pbs: down"),
        pytest.param(PBS, "priority", 1, "qalter: something new\n", UNKNOWN, id="pbs: nobody knows what"),
        pytest.param(LSF, "suspend", 0, "Job <7> is being stopped\n", OK, id="lsf: done"),
        pytest.param(LSF, "resume", 255, "Job <7>: Job has already finished\n", OK, id="lsf: it has ended"),
        pytest.param(LSF, "suspend", 255, "Job <7>: User permission denied\n", PERMANENT, id="lsf: not ours"),
        pytest.param(FORK, "suspend", 0, "k3f9zq2m-1.1 signalled\n", OK, id="fork: done"),
        pytest.param(FORK, "suspend", 1, "samgrid-fork: no space\n", TRANSIENT, id="fork: its spool cannot be used"),
    ],
)  # fmt: skip
def test_what_an_answer_means(adapter: BatchAdapter, verb: str, exit_code: int, printed: str, answer: Answer) -> None:
    outcomes = find_command(adapter, verb).outcomes
    found = next((outcome.answer for outcome in outcomes if outcome.fits(exit_code, printed)), UNKNOWN)
    assert found is answer
