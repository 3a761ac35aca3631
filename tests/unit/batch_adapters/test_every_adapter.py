"""What every batch adapter must do, on what real commands printed; what only one does is in its own file."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pytest

from batch_adapters.adapter import Answer, Garbled, Submission
from batch_adapters.registry import ADAPTERS
from batch_adapters.running.batch_system import read_analysis, read_answer, read_slots
from batch_adapters.running.commands import render_argv, render_text
from batch_adapters.site_adapter import find_adapter
from batch_adapters.slurm.answers import NEVER_STARTED
from tests.unit.batch_adapters.recordings import Recording, by_scene, judge, read_recordings

ROOT = Path(__file__).parents[3]

# --- what recorded answers mean

PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "sge": {
        "qsub": "submit",
        "qstat -u '$user' -xml": "queue",
        "qstat -j": "tokens",
        "qdel": "cancel",
        "qacct": "history",
        "qconf": "array_limit",
        "qstat -help": "version",
    },
    "condor": {
        "condor_submit": "submit",
        "condor_qedit": "priority",
        "condor_q -constraint 'SamgridToken isnt": "queue",
        "condor_q -constraint 'SamgridToken ==": "find",
        "condor_q": "status",
        "condor_history": "history",
        "condor_rm": "cancel",
        "condor_suspend": "suspend",
        "condor_continue": "resume",
        "condor_hold": "hold",
        "condor_release": "release",
        "condor_config_val -schedd CONDOR_VERSION": "version",
        "condor_config_val -schedd MAX_JOBS": "array_limit",
    },
    "lsf": {"bsub": "submit", "bjobs": "queue", "bkill": "cancel", "lsid": "version", "bparams": "array_limit"},
    "slurm": {
        **{"sbatch": "submit", "squeue": "queue", "scancel": "cancel", "sacct": "history"},
        **{"scontrol": "array_limit", "sinfo": "version"},
    },
}
"""Which of an adapter's commands a recorded command line is, by how it begins."""

ANSWERS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("sge", "sge-commands.txt"): {
        "no accounting file yet": "absent",
        "unknown master: *": "transient",
        "unknown *": "permanent",
        "bad value of a resource": "permanent",
        "array too large": "too-many",
        "no room in queue with -w e": "permanent",
        "refused by a JSV of the site": "later",
        "a JSV that *": "later",
        # We never ask for it: no pattern says what it means.
        "no script": "unknown",
        "advance reservation": "permanent",
        "checkpointing": "permanent",
        "waiting reservation": "permanent",
        "none of them is there any more": "absent",
        "*history of an unknown name": "absent",
        "too many jobs *": "later",
        "account not allowed": "permanent",
        "no submit host": "permanent",
        "qdel of somebody else's job": "permanent",
        "qmaster dead: submit": "later",
        "qmaster dead: queue": "transient",
        "qmaster dead: qdel": "transient",
        "qmaster dead: configuration": "transient",
        "no cell*": "transient",
        "no SGE_ROOT: *": "transient",
        "no master file: *": "transient",
        "wrong port: *": "transient",
        "qmaster stopped: submit": "transient",
        "qmaster stopped: *": "unknown",
    },
    ("condor", "condor-commands.txt"): {
        "history, none kept": "permanent",
        "submit, no such folder": "permanent",
        "submit, no spelling": "permanent",
        "submit, line break": "permanent",
        "submit, comma": "permanent",
        "submit, bad *": "permanent",
        "submit, unknown option": "permanent",
        "submit, array too large": "permanent",
        "submit, refused by the pool's rule": "permanent",
        "submit, account disabled": "later",
        "submit, too many of one account": "later",
        "submit, as root": "unknown",
        "priority by constraint, the ids are another's": "permanent",
        "cancel, somebody else's array": "ok",
        "cancel, somebody else's*": "permanent",
        "* *: history": "ok",
        "schedd killed: submit": "later",
        "pool gone: submit": "later",
        "schedd *": "transient",
        "pool *": "transient",
    },
    ("lsf", "documented.txt"): {
        "submit": "ok ok permanent permanent permanent later",
        "nothing": "absent",
        "down": "transient",
        "cancel": "ok ok permanent",
    },
    ("slurm", "commands.txt"): {
        "absent": "ok absent absent ok ok ok permanent",
        # A partition that is closed just now.
        "refused": "permanent too-many " + 16 * "permanent " + "later" + 3 * " permanent",
        "SchedulerParameters=*": "ok too-many",
    },
    ("slurm", "down.txt"): {
        # Only a submission that never reached anybody was not made. The last of "stopped" was asked after kill -CONT.
        "slurmctld killed": "later" + 7 * " transient",
        "slurmctld stopped": 8 * "transient " + "ok",
        "*": "transient",
    },
    ("slurm", "history.txt"): {"submit limit": "too-many permanent ok", "slurmdbd *": "transient"},
}
"""By scene, what its answers mean, or each of them in order: the first pattern counts; what fits none is ok."""


def find_asked(system: str, recording: Recording) -> str | None:
    """Which command of the adapter a recording is of."""
    line = re.sub(
        r"^(?:env (?:-u \S+ |\w+=\S+ )+(?:/usr/lib/gridengine/)?|timeout \d+ |runuser -u \S+ -- )",
        "",
        recording.command,
    )
    return next((asked for begin, asked in PROGRAMS[system].items() if line.startswith(begin)), None)


def list_recorded() -> Iterator[tuple[str, str, Recording, Answer]]:
    for (system, file), rows in ANSWERS.items():
        for scene, together in groupby(read_recordings(system, file), attrgetter("scene")):
            found = [(asked, recording) for recording in together if (asked := find_asked(system, recording))]
            words = next((words for pattern, words in rows.items() if fnmatchcase(scene, pattern)), "ok").split()
            expected = words * len(found) if len(words) == 1 else words
            for (asked, recording), word in zip(found, expected, strict=True):
                yield system, asked, recording, Answer(word)


RECORDED = [*list_recorded()]


@pytest.mark.parametrize(
    ("system", "asked", "recording", "answer"),
    RECORDED,
    ids=[f"{row[0]}, {row[2].scene}: {row[2].command[:40]}" for row in RECORDED],
)
def test_each_recorded_answer_means_what_it_meant(
    system: str, asked: str, recording: Recording, answer: Answer
) -> None:
    assert recording.judge(getattr(find_adapter(system, {}), asked)) is answer


SGE = by_scene(read_recordings("sge", "sge-commands.txt"))
SKELETON = '{\n\t"timestamp":\t1795217603,\n\t"pbs_version":\t"23.06.06",\n\t"pbs_server":\t"vm"\n}\n'
DOWN = "Connection refused\nqstat: cannot connect to server vm (errno=15010)\n"
BANNERS = {
    asked: "Welcome to the cluster!\n" + SGE[title].stdout
    for asked, title in {
        **{"submit": "submit an array", "queue": "queue", "history": "history of one", "cancel": "qdel an array"}
    }.items()
}
MADE_UP: Iterable[tuple[str, str, Answer, int, str]] = [
    *(
        ("sge", asked, Answer.UNKNOWN, code, "")
        for asked in PROGRAMS["sge"].values()
        if asked != "version"
        for code in (0, 1)
    ),
    *(("sge", asked, Answer.UNKNOWN, 0, printed) for asked, printed in BANNERS.items()),
    ("sge", "cancel", Answer.UNKNOWN, 0, SGE["qdel an array"].stdout + "something went wrong\n"),
    (
        *("sge", "submit", Answer.UNKNOWN, 1),
        'Unable to run job: warning: job rejected by no queue\nYour job 5 ("t-1") has been submitted\nExiting.\n',
    ),
    ("condor", "queue", Answer.TRANSIENT, 0, "Error: (null)\n"),
    ("condor", "queue", Answer.UNKNOWN, 0, '[\n{\n  "ClusterId": 1,\n'),
    ("condor", "queue", Answer.UNKNOWN, 0, "[\n]\nERROR: something new\n"),
    ("condor", "queue", Answer.UNKNOWN, 1, ""),
    ("condor", "history", Answer.UNKNOWN, 0, ""),
    ("condor", "history", Answer.UNKNOWN, 1, "[\nError: No passed search file"),
    ("condor", "submit", Answer.UNKNOWN, 0, ""),
    ("condor", "submit", Answer.UNKNOWN, 1, ""),
    ("condor", "submit", Answer.UNKNOWN, 1, "ERROR: Failed to commit job submission into the queue.\n"),
    ("condor", "submit", Answer.UNKNOWN, 1, "4.0 - 4.1\nERROR: Failed to spool job files.\n"),
    ("condor", "version", Answer.UNKNOWN, 1, "Not defined: CONDOR_VERSION\n"),
    ("condor", "queue", Answer.OK, 0, "[\n]\nWARNING: a site's own remark\n"),
    ("condor", "version", Answer.OK, 0, "23.9.6\nWARNING: obsolete are\n  A.B.C at f\n"),
    ("condor", "queue", Answer.OK, 0, "WARNING: a site's own remark\n"),
    ("condor", "submit", Answer.OK, 0, "4.0 - 4.1\nWARNING: the line 'x = 1' was unused\n"),
    ("lsf", "queue", Answer.UNKNOWN, 0, ""),
    ("slurm", "queue", Answer.OK, 0, ""),
    ("slurm", "queue", Answer.UNKNOWN, 0, "squeue: error: something new\n"),
    *(("slurm", "submit", Answer.UNKNOWN, code, "sbatch: error: what is this\n") for code in (1, 2, 126, 127, 255)),
    ("pbs", "queue", Answer.OK, 0, SKELETON),
    ("pbs", "queue", Answer.TRANSIENT, 255, SKELETON + DOWN),
    ("pbs", "queue", Answer.UNKNOWN, 0, ""),
    ("pbs", "queue", Answer.UNKNOWN, 0, SKELETON + DOWN),
    # What a user wrote is no answer of the server's.
    (
        *("pbs", "queue", Answer.OK, 0),
        '{\n\t"Jobs":\t{\n\t\t"1.vm":\t{\n\t\t\t"comment":\t"x\\nqstat: cannot connect to server vm"\n\t\t}\n\t}\n}\n',
    ),
    # Jobs that it has just listed are not nothing.
    ("torque", "queue", Answer.UNKNOWN, 0, ""),
    ("torque", "queue", Answer.OK, 153, "<Data></Data>\nqstat: Unknown Job Id Error 7[].vm\n"),
    ("torque", "queue", Answer.ABSENT, 153, "qstat: Unknown Job Id Error 7[].vm\n"),
    *(
        (system, "submit", answer, 170, f"qsub: {words}\n")
        for system in ("pbs", "torque")
        for words, answer in {
            "Queue is not enabled": Answer.LATER,
            "would exceed queue generic's per-user limit of jobs in 'Q' state": Answer.TOO_MANY,
            "Array job exceeds server or queue size limit": Answer.TOO_MANY,
            "submit error (Unknown queue MSG=cannot locate queue)": Answer.PERMANENT,
            "something that nobody foresaw": Answer.UNKNOWN,
        }.items()
    ),
]


@pytest.mark.parametrize(("system", "asked", "answer", "exit_code", "printed"), MADE_UP)
def test_what_proves_nothing_is_neither_a_yes_nor_a_no(
    system: str, asked: str, answer: Answer, exit_code: int, printed: str
) -> None:
    assert judge(getattr(find_adapter(system, {}), asked), exit_code, printed) is answer


# --- jobs


CONDOR_JOBS = [
    *("Error: (null)\n", '[\n{\n  "ClusterId": 1,', '{"ClusterId": 1}', '[{"ClusterId": 1, "JobStatus": 2}]'),
    *('[{"ClusterId": 1, "ProcId": null, "JobStatus": 2}]', '[{"ClusterId": 1, "ProcId": 0, "JobStatus": "x"}]'),
    '["1.0"]',
]
PBS_JOBS = ["Welcome to vm!\n{}", '{"Jobs": {"1.vm": {', "[]", '{"Jobs": []}', '{"Jobs": {"1.vm": 1}}']
FORK_JOBS = [
    *("Welcome!\na-1.1 queued -\n", "a-1.1 queued -\nConnection closed.\n", "a-1.1 queued -\na-1.2 run"),
    *("a-1.1 queued -\na-1", "a-1.1 ended\n", "a-1.1 ended 0x0\n", "a-1.1  ended 0\n", "\n", "a-1.1 ended 1"),
    "Last login 5\n",
]
SGE_QUEUE = SGE["queue"].stdout
SGE_JOBS = [
    *(SGE_QUEUE[:900], "job-ID  prior   name\n"),
    SGE_QUEUE.replace("?>\n", '?>\n<!DOCTYPE a [<!ENTITY b "c">]>\n', 1),
    SGE_QUEUE.replace("<JB_job_number>2<", "<JB_job_number><"),
    SGE_QUEUE.replace("<state>r</state>", ""),
    SGE_QUEUE.replace("10-12:1", "10-12:0"),
]
LSF_JOBS = ["100|0|RUN|-|k3f9zq2m-1|-|-\n" + line for line in ("101|0|RUN|-|k3f9", "Welcome!\n", "101 0 RUN\n")]
GOOD_LINES = {
    "jobs": "3_1|RUNNING|0|None|t-2|3_1\n3_0|FAILED|768|NonZeroExitCode|t-2|3_0\n",
    "history": "3_1|COMPLETED|0:0\n3_0|FAILED|3:0\n",
}


def spoil(text: str) -> list[str]:
    """An answer of Slurm's, torn and with banners in it."""
    first, second = text.splitlines(keepends=True)
    return [text[:-1], text[:-4], "Welcome to vm!\n" + text, text + "Have a nice day\n", first + "hello\n" + second]


GARBLED = {
    ("condor", "jobs"): CONDOR_JOBS,
    ("condor", "history"): CONDOR_JOBS,
    ("pbs", "jobs"): PBS_JOBS,
    ("torque", "jobs"): ["<Data><Job>", "<html/>"],
    ("fork", "jobs"): FORK_JOBS,
    ("sge", "jobs"): SGE_JOBS,
    ("lsf", "jobs"): LSF_JOBS,
    ("slurm", "jobs"): spoil(GOOD_LINES["jobs"]),
    ("slurm", "history"): spoil(GOOD_LINES["history"]),
}


@pytest.mark.parametrize(
    ("system", "reader", "printed"), [(*key, printed) for key, texts in GARBLED.items() for printed in texts]
)
def test_what_is_no_list_of_jobs_is_garbled(system: str, reader: str, printed: str) -> None:
    with pytest.raises(Garbled):
        read_answer(getattr(find_adapter(system, {}), f"read_{reader}"), printed)


MANUALS = {
    # qstat(1B) of OpenPBS, "Job Status in Default Format", column S
    "pbs": " ".join("BEFHMQRSTUWX"),
    # qstat(1B) of Torque 6, "STANDARD OUTPUT"
    "torque": " ".join("CEHQRTWS"),
    # "JOB STATUS" of bjobs(1), and "Job states" of "LSF terms and concepts", LSF 10.1
    "lsf": "PEND PROV PSUSP RUN USUSP SSUSP DONE EXIT UNKWN WAIT ZOMBI POST_DONE POST_ERR",
    # "condor_q -help State" of 23.9.6, from 1 on
    "condor": "IDLE RUNNING REMOVED COMPLETED HELD TRANSFERRING_OUTPUT SUSPENDED FAILED BLOCKED",
    # squeue(1) of Slurm 22.05, "JOB STATE CODES"; sacct(1)'s are among them. The last are later versions' flags of jobs
    # that are alive (job_state_codes.html).
    "slurm": """
        BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING
        PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT
        STAGE_OUT STOPPED SUSPENDED TIMEOUT EXPEDITING POWER_UP_NODE UPDATE_DB
    """,
}
OUR_OWN = {"condor": {"REMOVING"}, "slurm": {NEVER_STARTED}}
"""Native states that an adapter makes of several things that are said of a job; others add a word to the manual's."""


@pytest.mark.parametrize("system", MANUALS)
def test_the_state_map_has_every_state_of_the_manual_and_no_other(system: str) -> None:
    states = set(find_adapter(system, {}).states)
    manual = set(MANUALS[system].split())
    assert manual <= states
    assert {state if state in OUR_OWN.get(system, set()) else state.split()[0] for state in states} == (
        manual | OUR_OWN.get(system, set())
    )


# --- slots


@pytest.mark.parametrize(("system", "slots"), [("slurm", (80, 79)), ("sge", (100, 99)), ("condor", (100, 99))])
def test_slots_are_read_of_what_the_command_printed(system: str, slots: tuple[int, int]) -> None:
    adapter, recording = find_adapter(system, {}), by_scene(read_recordings(system, "slots.txt"))["slots"]
    assert adapter.slots is not None
    assert list(adapter.slots.argv) == shlex.split(recording.command)
    assert read_slots(adapter, recording.stdout) == slots
    # Several queues, or hosts, count together; Slurm adds them up by itself.
    line = recording.stdout.splitlines()[-1]
    assert read_slots(adapter, f"{recording.stdout}{line}\n") == (2 * slots[0], 2 * slots[1])
    for printed in ("", "no such pool\n", "undefined undefined\n"):
        with pytest.raises(Garbled, match=f"{system}: no slots in"):
            read_slots(adapter, printed)


# --- names


@pytest.mark.parametrize(
    ("system", "printed", "ids", "array"),
    [
        ("slurm", "17\n", "17_0 17_1 17_2", "17"),
        ("slurm", "17\n", "17", "17"),
        ("slurm", "17;cluster-1\n", "17", "17"),
        ("sge", "17.1-3:1\n", "17.1 17.2 17.3", "17"),
        ("sge", "53.1-1:1\n", "53.1", "53"),
        ("condor", "17.0 - 17.2\n", "17.0 17.1 17.2", "17"),
        ("condor", "17.0 - 17.0\n", "17.0", "17"),
        ("pbs", "49[].vm\n", "49[1].vm 49[2].vm 49[3].vm", "49[].vm"),
        ("torque", "49[].vm.example.org\n", "49[1].vm.example.org 49[2].vm.example.org", "49[].vm.example.org"),
        ("pbs", "45.vm\n", "45.vm", "45.vm"),
        ("torque", "45.vm.example.org\n", "45.vm.example.org", "45.vm.example.org"),
        ("lsf", "Job <102> is submitted to queue <short>.\n", "102[1] 102[2] 102[3]", "102"),
        ("lsf", "Job <101> is submitted to default queue <normal>.\n", "101", "101"),
        ("fork", "k3f9zq2m-1 1-3\n", "k3f9zq2m-1.1 k3f9zq2m-1.2 k3f9zq2m-1.3", ""),
        ("fork", "t-1 1-1\n", "t-1.1", ""),
    ],
)
def test_what_a_submission_prints_names_every_local_job(system: str, printed: str, ids: str, array: str) -> None:
    naming = find_adapter(system, {}).naming
    assert naming.read_submitted(printed, len(ids.split())) == dict(enumerate(ids.split(), 1))
    assert [naming.position_of(local_id) for local_id in ids.split()] == [*range(1, len(ids.split()) + 1)]
    assert {naming.array_of(local_id) for local_id in ids.split()} == {array}


@pytest.mark.parametrize(
    ("system", "printed", "count"),
    [
        *((system, "", count) for system in ("slurm", "sge", "condor", "pbs", "lsf", "fork") for count in (1, 3)),
        # Too few, too many, from elsewhere, by other steps, of several arrays.
        *(("sge", printed, 4) for printed in ("10.1-3:1\n", "10.1-5:1\n", "10.1-4:2\n")),
        ("sge", "10\n", 1),
        *(("condor", printed, 3) for printed in ("13.0 - 13.1\n", "13.0 - 13.3\n", "13.0 - 14.2\n", "13.1 - 13.3\n")),
        *(("condor", printed, 1) for printed in ("17.0 - 17.1\n", "12.0 - 12.0\n13.0 - 13.0\n")),
        # Banners, words for people, what is torn, or may be.
        *(("slurm", printed, 1) for printed in ("Submitted batch job 2\n", "Welcome!\n2\n", "2\nbye\n", "1 7\n", "12")),
        *(("pbs", printed, 1) for printed in ("Welcome to vm!\n45.vm\n", "45.vm")),
        ("lsf", "Welcome!\nJob <101> is submitted to default queue <normal>.\n", 1),
        *(("fork", printed, 3) for printed in ("k3f9zq2m-1 1-3", "k3f9zq2m-1 1-", "Welcome!\nk3f9zq2m-1 1-3\n")),
        *(("fork", printed, 3) for printed in ("k-1 1-3\nbye\n", "k-1 1-x\n", "k-1 -1-3\n", "k-1 1-2\n")),
    ],
)
def test_an_answer_that_is_not_what_it_should_be_names_nothing(system: str, printed: str, count: int) -> None:
    assert find_adapter(system, {}).naming.read_submitted(printed, count) is None


# --- submission

SINGLE = Submission("k3f9zq2m-1", 1, "/s/driver.sh", "/s/results")
ARRAY = Submission(
    *("k3f9zq2m-2", 200, "/s/my driver.sh", "/s/results"),
    queue="short",
    project="d0",
    max_cpu_minutes=90,
    max_wall_minutes=120,
    max_memory_mb=2000,
    options=("-l", "host=n1"),
)
FORK_SITE = dict.fromkeys(("python", "launch", "fork_spool", "fork_slots", "fork_grace"), "x")
SGE_SCRIPT = (
    'trap : TERM INT HUP XCPU USR1 USR2; /bin/sh "$@"; code=$?; case $code in 99 | 100) code=98 ;; esac; exit "$code"'
)
PBS_LIMITS = "-q short -l cput=5400 -l walltime=7200 -l mem=2000mb"


@pytest.mark.parametrize(
    ("system", "submission", "line", "stdin"),
    [
        pytest.param(*row[:4], id=f"{row[0]}, {'one' if row[1] is SINGLE else 'an array with everything'}")
        for row in [
            (
                *("pbs", SINGLE),
                "qsub -f -N k3f9zq2m-1 -m n -j oe -o /s/results/k3f9zq2m-1.1.driver -- /bin/sh /s/driver.sh k3f9zq2m-1",
                "",
            ),
            (
                *("pbs", ARRAY),
                f"qsub -f -N k3f9zq2m-2 -m n -j oe {PBS_LIMITS} -o /s/results/k3f9zq2m-2.^array_index^.driver"
                " -P d0 -J 1-200 -l host=n1 -- /bin/sh /s/my|driver.sh k3f9zq2m-2",
                "",
            ),
            (
                *("torque", SINGLE),
                "qsub -N k3f9zq2m-1 -m n -j oe -o /s/results/k3f9zq2m-1.1.driver",
                "exec /bin/sh /s/driver.sh k3f9zq2m-1\n",
            ),
            (
                *("torque", ARRAY),
                f"qsub -N k3f9zq2m-2 -m n -j oe {PBS_LIMITS} -o /s/results/k3f9zq2m-2.driver -A d0 -t 1-200 -l host=n1",
                "exec /bin/sh '/s/my driver.sh' k3f9zq2m-2\n",
            ),
            (
                *("sge", SINGLE),
                "qsub -terse -N k3f9zq2m-1 -t 1-1 -wd / -o /s/results/k3f9zq2m-1.$TASK_ID.driver -j y -b y -shell n"
                " /bin/sh -c SCRIPT samgrid /s/driver.sh k3f9zq2m-1",
                "",
            ),
            (
                *("sge", ARRAY),
                "qsub -terse -N k3f9zq2m-2 -t 1-200 -wd / -o /s/results/k3f9zq2m-2.$TASK_ID.driver -j y -b y -shell n"
                " -q short -P d0 -l h_cpu=5400 -l h_rt=7200 -l h_vmem=2000M -l host=n1"
                " /bin/sh -c SCRIPT samgrid /s/my|driver.sh k3f9zq2m-2",
                "",
            ),
            (
                *("lsf", SINGLE),
                "bsub -J k3f9zq2m-1 -env none -o /s/results/k3f9zq2m-1.1.driver -cwd / /bin/sh /s/driver.sh k3f9zq2m-1",
                "",
            ),
            (
                *("lsf", ARRAY),
                "bsub -J k3f9zq2m-2[1-200] -env none -o /s/results/k3f9zq2m-2.%I.driver -cwd / -q short -P d0 -c 90"
                " -W 120 -M 2000MB -l host=n1 /bin/sh '/s/my|driver.sh' k3f9zq2m-2",
                "",
            ),
            (
                *("slurm", SINGLE),
                "sbatch --parsable --job-name=k3f9zq2m-1 --output=/s/results/k3f9zq2m-1.0.driver --chdir=/"
                " --export=NONE",
                "#!/bin/sh\nexec /bin/sh /s/driver.sh k3f9zq2m-1\n",
            ),
            (
                *("slurm", ARRAY),
                "sbatch --parsable --job-name=k3f9zq2m-2 --array=0-199 --output=/s/results/k3f9zq2m-2.%a.driver"
                " --chdir=/ --export=NONE --partition=short --account=d0 --time=120 --mem=2000M -l host=n1",
                "#!/bin/sh\nexec /bin/sh '/s/my driver.sh' k3f9zq2m-2\n",
            ),
        ]
    ],
)
def test_what_is_submitted(system: str, submission: Submission, line: str, stdin: str) -> None:
    adapter = find_adapter(system, {})
    argv = [SGE_SCRIPT if word == "SCRIPT" else word.replace("|", " ") for word in line.split(" ")]
    assert render_argv(adapter.submit, asdict(submission)) == argv
    assert render_text(adapter.submit.stdin, asdict(submission)) == stdin


@pytest.mark.parametrize(
    ("system", "cores", "gpus", "disk", "words"),
    [
        ("pbs", 4, 0, 0, "-l select=1:ncpus=4:mem=2001mb"),
        ("pbs", 1, 2, 0, "-l select=1:ncpus=1:ngpus=2:mem=2001mb"),
        ("torque", 4, 1, 0, "-l mem=2001mb -l nodes=1:ppn=4:gpus=1"),
        ("sge", 4, 0, 0, "-l h_vmem=501M -pe smp 4"),
        ("lsf", 4, 1, 500, "-M 2001MB -n 4 -R span[hosts=1] -gpu num=1 -R rusage[tmp=500]"),
        ("slurm", 4, 1, 500, "--mem=2001M --cpus-per-task=4 --gpus-per-node=1 --tmp=500M"),
        ("fork", 4, 0, 0, "--cores 4"),
    ],
    ids=str,
)
def test_what_a_local_job_needs_is_said_in_the_batch_systems_words(
    system: str, cores: int, gpus: int, disk: int, words: str
) -> None:
    adapter = find_adapter(system, {})
    wanted = replace(SINGLE, cores=cores, gpus=gpus, max_disk_mb=disk, max_memory_mb=2001)
    variables = {**asdict(wanted), **FORK_SITE, "parallel_environment": adapter.parallel_environment}
    assert f" {words} " in f" {' '.join(render_argv(adapter.submit, variables))} "


@pytest.mark.parametrize(
    ("system", "word"), [("fork", "/100%%i/k3f9zq2m-1.%i.driver"), ("slurm", "--output=/100%%i/k3f9zq2m-1.0.driver")]
)
def test_folders_may_have_the_batch_systems_signs_for_numbers_in_their_names(system: str, word: str) -> None:
    variables = {**asdict(replace(SINGLE, results="/100%i")), **FORK_SITE}
    assert word in render_argv(find_adapter(system, {}).submit, variables)


@pytest.mark.parametrize(
    ("system", "words"),
    [("sge", "-l h=!node7"), ("lsf", "-R select[hname!='node7']"), ("slurm", "--exclude=node7")],
)
def test_an_attempt_is_kept_from_a_host_where_there_is_a_way(system: str, words: str) -> None:
    adapter = find_adapter(system, {})
    variables = {**asdict(replace(SINGLE, excluded_host="node7")), "parallel_environment": ""}
    assert f" {words} " in f" {' '.join(render_argv(adapter.submit, variables))} "


@pytest.mark.parametrize("system", ADAPTERS)
def test_what_a_batch_system_cannot_say_is_known(system: str) -> None:
    unsaid = {"fork": {"gpus", "max_disk_mb"}, "sge": {"gpus", "max_disk_mb"}}
    unsaid |= {"pbs": {"max_disk_mb"}, "torque": {"max_disk_mb"}}
    adapter = find_adapter(system, {})
    found = {name for name in ("cores", "gpus", "max_disk_mb") if not adapter.takes(name)}
    assert found == unsaid.get(system, set())


@pytest.mark.parametrize("system", ADAPTERS)
def test_all_batch_systems_but_the_embedded_one_have_queues_and_projects(system: str) -> None:
    adapter = find_adapter(system, {})
    assert [name for name in ("queue", "project") if adapter.takes(name)] == (
        [] if system == "fork" else ["queue", "project"]
    )


# --- surroundings


@pytest.mark.parametrize(
    ("system", "ignored", "kept"),
    [
        (
            "slurm",
            "SBATCH_PARTITION SQUEUE_FORMAT SLURM_ARRAY_TASK_ID SLURM_JOB_ID SLURM_CLUSTERS",
            "SLURM_CONF SLURM_CONF_SERVER SLURM_JWT",
        ),
        ("sge", "", "SGE_ROOT SGE_CELL SGE_QMASTER_PORT SGE_EXECD_PORT SGE_ARCH SGE_CLUSTER_NAME"),
    ],
)
def test_what_would_change_a_command_is_ignored_and_where_the_cluster_is_is_not(
    system: str, ignored: str, kept: str
) -> None:
    beginnings = find_adapter(system, {}).ignored_variables
    assert all(name.startswith(beginnings) for name in ignored.split())
    assert not any(name.startswith(beginnings) for name in kept.split())


def test_the_generator_imports_adapters_without_parsers() -> None:
    code = (
        "import sys, batch_adapters.condor, batch_adapters.sge;"
        "sys.exit(str({'json', 'xml', 'lxml', 'jinja2', 'sh', 'batch_adapters.sge.events'} & {*sys.modules} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# From manuals and sources: condor_q(1), "Why is the job not running?"; sge's -w p of a disabled queue; squeue(1), %r.
_BETTER_ANALYZE = """\
The Requirements expression for job 107.005 reduces to these conditions:

         Slots
Step    Matched  Condition
-----  --------  ---------
[0]           7  TARGET.Arch == "X86_64"
[1]           0  TARGET.Memory >= 900000

107.005:  Run analysis summary ignoring user priority.  Of 8 machines,
      7 are rejected by your job's requirements
      1 reject your job because of their own requirements
      0 match and are already running your jobs
      0 are able to run your job

WARNING:  Be advised:
   No machines matched the jobs's constraints
"""


@pytest.mark.parametrize(
    ("name", "printed", "reasons"),
    [
        pytest.param(
            "condor",
            _BETTER_ANALYZE,
            [
                "[1]           0  TARGET.Memory >= 900000",
                "7 are rejected by your job's requirements",
                "1 reject your job because of their own requirements",
                "No machines matched the jobs's constraints",
            ],
            id="condor",
        ),
        # HTCondor 23.9, a pool whose startd is down.
        pytest.param(
            "condor", _BETTER_ANALYZE.partition("107.005:  ")[0].replace("7 ", "0 "), [], id="condor: no slots"
        ),
        pytest.param(
            "sge",
            "job_type:                   binary,noshell\n"
            'scheduling info:            queue instance "all.q@vm" dropped because it is disabled\n'
            '                            cannot run in PE "smp" because it only offers 0 slots\n'
            "                            All queues dropped because of overload or full\n",
            [
                'queue instance "all.q@vm" dropped because it is disabled',
                'cannot run in PE "smp" because it only offers 0 slots',
            ],
            id="sge",
        ),
        pytest.param(
            "sge", "scheduling info:            There are no messages available\n", [], id="sge: it could run"
        ),
        pytest.param(
            "slurm", "ReqNodeNotAvail, UnavailableNodes:n1\n", ["ReqNodeNotAvail, UnavailableNodes:n1"], id="slurm"
        ),
    ],
)
def test_why_a_job_waits_is_read_from_what_the_batch_system_says(name: str, printed: str, reasons: list[str]) -> None:
    assert read_analysis(find_adapter(name, {}), printed) == "; ".join(" ".join(reason.split()) for reason in reasons)
