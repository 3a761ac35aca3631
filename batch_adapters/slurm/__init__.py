"""Slurm: commands, answers and states (sbatch(1), squeue(1), scancel(1), sacct(1); measured with 22.05 to 26.05)."""

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Meaning
from batch_adapters.naming import Naming
from batch_adapters.slurm.answers import NEVER_STARTED, diagnose, read_history, read_jobs
from batch_adapters.states import Cause, State

# Only after the programs' own prefixes, because squeue also prints job names, which may be any text.
_DOWN = Meaning(
    None,
    r"(?m)^(?:\w+: (?:error|fatal)|slurm_\w+(?: error)?):.*(?:Unable to contact slurm controller"
    r"|Socket timed out on send/recv|Zero Bytes were transmitted|authentication error|Munge encode failed"
    r"|Connection (?:refused|reset)|temporarily un|in standby mode|Unable to establish control machine address"
    r"|Unable to process configuration file|establish a configuration source|Problem talking to the database)",
    Answer.TRANSIENT,
)
# The second is of an array that is too large: what we write is always valid otherwise.
_TOO_MANY = Meaning(
    1,
    r"(?m)^sbatch: error: (?:\w+SubmitJob\w*Limit|Batch job submission failed: Invalid job array specification)$",
    Answer.TOO_MANY,
)
# The partition is closed.
_NOT_NOW = Meaning(
    1, r"(?m)^sbatch: error: Batch job submission failed: Required partition not available", Answer.LATER
)
_NOT_SENT = Meaning(1, r"(?m)^sbatch: error: .*Unable to contact slurm controller \(connect failure\)$", Answer.LATER)
_NO = Meaning(
    1,
    r"(?m)^sbatch: error: Batch job submission failed: (?:Invalid (?:partition name|account|qos|feature"
    r"|license|--nice value|node name|wckey|Trackable|generic resource|user id)"
    r"|Requested (?:node|partition) configuration|Requested (?:reservation|time limit)|User's group not permitted"
    r"|Job dependency problem|Job violates accounting/QOS|Access/permission denied|Pathname of a file"
    # A site's job_submit.lua returned slurm.ERROR; what it says stands above.
    r"|Unspecified error"
    r"|Node count specification|Memory required by task|More processors requested)",
    Answer.PERMANENT,
)
_BAD_OPTION = Meaning(
    None,
    r"(?m)^sbatch: (?:unrecognized option|invalid option|option '|error: (?:Invalid (?:--|numeric value"
    r"|generic resource)|.* is not a valid |--\S+ only permitted|Memory specification can not be satisfied))",
    Answer.PERMANENT,
)
_ABSENT = Meaning(1, r"\Aslurm_load_jobs error: Invalid job id specified\s*\Z", Answer.ABSENT)
# An empty answer counts only without an error message.
_COMPLAINT = Meaning(0, r"\A\w+:? error: ", Answer.UNKNOWN)

_ASKED = (_ABSENT, _DOWN, _COMPLAINT, OK)
# Ended jobs are shown for MinJobAge (300 s). Each record ends with the id, as paths and names may contain anything.
_SQUEUE = (
    *("squeue", "--noheader", "--me", "--all", "--array", "--states=all"),
    "--Format=JobArrayID:|,State:|,exit_code:|,Reason:|,StdOut:|,Name:|,JobArrayID:",
)


def _ask(*argv: str, outcomes: tuple[Meaning, ...] = _ASKED) -> Command:
    # One attempt: Slurm's programs themselves retry for 9 to 20 s.
    return Command(argv, outcomes=outcomes, attempts=1)


# The first: slurmctld does not answer. The fourth: some jobs have ended; the others are changed.
_CHANGED = (
    Meaning(1, r"(?m)^Unexpected message received for job |^\S+: Unexpected message received$", Answer.TRANSIENT),
    _DOWN,
    Meaning(None, r"Access/permission denied", Answer.PERMANENT),
    Meaning(1, r"Invalid job id specified|Job has already finished", Answer.OK),
    OK,
)


def _change(*argv: str) -> Command:
    return _ask("scontrol", *argv, outcomes=_CHANGED)


def _send_signal(name: str) -> Command:
    # scontrol suspend is for operators only. --full: to the batch script and everything it has started.
    return _ask("scancel", "--full", f"--signal={name}", "{{ ids* }}", outcomes=_CHANGED)


# The exit code is that of the ping after it, which fails where slurmctld limits the rate of requests (rl_enable).
_PRINTED = Meaning(1, r"(?m)^SLURM_VERSION\s*= ", Answer.OK)
_CONFIGURATION = _ask("scontrol", "show", "config", outcomes=(_PRINTED, _DOWN, _COMPLAINT, OK))


SLURM = BatchAdapter(
    name="slurm",
    submit=Command(
        (
            *("sbatch", "--parsable", "--job-name={{ token }}"),
            "{% if count > 1 %}--array=0-{{ count - 1 }}{% endif %}",
            "--output={{ results | replace('%', '%%') }}/{{ token }}.{{ '%a' if count > 1 else '0' }}.driver",
            # NONE: the job gets a login environment, and nothing of ours.
            *("--chdir=/", "--export=NONE"),
            *("{% if queue %}--partition={{ queue }}{% endif %}", "{% if project %}--account={{ project }}{% endif %}"),
            "{% if max_wall_minutes %}--time={{ max_wall_minutes }}{% endif %}",
            "{% if max_memory_mb %}--mem={{ max_memory_mb }}M{% endif %}",
            "{% if cores > 1 %}--cpus-per-task={{ cores }}{% endif %}",
            "{% if gpus %}--gpus-per-node={{ gpus }}{% endif %}",
            "{% if max_disk_mb %}--tmp={{ max_disk_mb }}M{% endif %}",
            "{% if excluded_host %}--exclude={{ excluded_host }}{% endif %}",
            "{{ options* }}",
        ),
        # Not the driver itself: sbatch refuses scripts that contain \r\n, which a driver may.
        stdin="#!/bin/sh\nexec /bin/sh {{ driver | sh }} {{ token }}\n",
        outcomes=(OK, _NOT_SENT, _DOWN, _TOO_MANY, _NOT_NOW, _NO, _BAD_OPTION),
    ),
    # From 0: MaxArraySize is one more than the highest number.
    naming=Naming(r"(?P<id>\d+)(?:;[\w.-]+)?", single="{id}", element="{id}_{n}", array="{id}", first=0),
    queue=_ask(*_SQUEUE),
    find=_ask(*_SQUEUE, "--name={{ token }}"),
    status=_ask(*_SQUEUE, "--jobs={{ id }}"),
    read_jobs=read_jobs,
    # It is silent about unknown and ended jobs.
    cancel=_ask(
        *("scancel", "{{ ids* }}"), outcomes=(_DOWN, Meaning(None, r"Access/permission denied", Answer.PERMANENT), OK)
    ),
    suspend=_send_signal("STOP"),
    resume=_send_signal("CONT"),
    hold=_change("hold", "{{ ids | join(',') }}"),
    release=_change("release", "{{ ids | join(',') }}"),
    # A higher nice value is a lower priority; lower ones are for operators. It also releases held jobs.
    priority=_change("update", "JobId={{ ids | join(',') }}", "Nice={{ -priority }}"),
    # The default start time is midnight. Array tasks that were cancelled while held and pending are missing.
    history=_ask(
        *("sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days", "--name={{ token }}"),
        "--format=JobID,State,ExitCode",
        outcomes=(Meaning(1, r"\ASlurm accounting storage is disabled\s*\Z", Answer.PERMANENT), _DOWN, _COMPLAINT, OK),
    ),
    read_history=read_history,
    states={
        "BOOT_FAIL": State.FAILED,
        "CANCELLED": State.FAILED,
        "COMPLETED": State.DONE,
        # It has its nodes; the log calls it started.
        "CONFIGURING": State.ACTIVE,
        # Also a running job that is requeued, until it has ended.
        "COMPLETING": State.ACTIVE,
        "DEADLINE": State.FAILED,
        # Requeued, to be started as soon as possible.
        "EXPEDITING": State.PENDING,
        # With an exit code that is not 0, or a signal; the log calls it complete.
        "FAILED": State.DONE,
        NEVER_STARTED: State.FAILED,
        "NODE_FAIL": State.FAILED,
        "OUT_OF_MEMORY": State.FAILED,
        "PENDING": State.PENDING,
        # As CONFIGURING: its nodes are being switched on.
        "POWER_UP_NODE": State.ACTIVE,
        "PREEMPTED": State.FAILED,
        "RUNNING": State.ACTIVE,
        "RESV_DEL_HOLD": State.PENDING,
        "REQUEUE_FED": State.PENDING,
        "REQUEUE_HOLD": State.PENDING,
        "REQUEUED": State.PENDING,
        "RESIZING": State.ACTIVE,
        # It was started on another cluster of the federation.
        "REVOKED": State.ACTIVE,
        "SIGNALING": State.ACTIVE,
        "SPECIAL_EXIT": State.PENDING,
        "STAGE_OUT": State.ACTIVE,
        "STOPPED": State.SUSPENDED,
        "SUSPENDED": State.SUSPENDED,
        "TIMEOUT": State.FAILED,
        "UPDATE_DB": State.ACTIVE,
    },
    causes={
        "BOOT_FAIL": Cause.NEVER_STARTED,
        "CANCELLED": Cause.CANCELLED_OUTSIDE,
        "DEADLINE": Cause.TIME_LIMIT,
        NEVER_STARTED: Cause.NEVER_STARTED,
        "NODE_FAIL": Cause.NODE_LOST,
        "OUT_OF_MEMORY": Cause.MEMORY_LIMIT,
        # By a job of higher priority; not requeued.
        "PREEMPTED": Cause.CANCELLED_OUTSIDE,
        "TIMEOUT": Cause.TIME_LIMIT,
    },
    # JobAcctGatherParams=OverMemoryKill: slurmstepd kills the job, which Slurm calls FAILED by signal 9.
    printed_causes={
        r"(?m)^slurmstepd\S*: error: (.+ exceeded (?:virtual )?memory limit .*being killed)$": Cause.MEMORY_LIMIT
    },
    leaving=frozenset({"COMPLETING"}),
    # "Job reason codes" of squeue(1); the words with blanks are slurmctld's own (job_mgr.c, node_scheduler.c).
    blocks={
        # Once released, it keeps the state RESV_DEL_HOLD until it starts. Of words such as "launch failed requeued
        # held" and "job requeued in special exit state" each version has more.
        r"(?:REQUEUE_HOLD|SPECIAL_EXIT)(?: .*)?|RESV_DEL_HOLD Reservation[ _].*[ _]was[ _]deleted"
        r"|PENDING (?:JobHeldUser|JobHoldMaxRequeue|.*[ _]requeued[ _](?:in[ _])?(?:held|special).*)": (
            "scontrol release {id}"
        ),
        r"PENDING JobHeldAdmin": "scontrol release {id}, by an administrator",
        r"PENDING Dependency(?:NeverSatisfied)?": "scontrol update JobId={id} Dependency=",
        r"PENDING (?:PartitionTimeLimit|(?:Assoc|QOS)MaxWallDurationPerJobLimit)": (
            "scontrol update JobId={array} TimeLimit=MINUTES"
        ),
        r"PENDING Nodes required for job are DOWN.*": "sinfo -R",
        r"PENDING (?:BadConstraints|Partition(?:Config|Down|Inactive|NodeLimit)|ReqNodeNotAvail.*"
        # What an account may use in all has been used up.
        r"|(?:Assoc|QOS)Grp(?!\w*Run)\w+Minutes(?:Limit)?"
        r"|(?:Assoc|QOS)Max\w+Per(?:Job(?:Limit)?|Node)|QOSMin\w+|MaxMemPerLimit"
        r"|Invalid(?:Account|QOS)|AccountNotAllowed|QOSNotAllowed)": "scontrol show job {id}",
        r"(?:SUSPENDED|STOPPED)(?: .*)?": "scontrol resume {id}, by an administrator",
    },
    local_id_words="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
    index_words="$((${SLURM_ARRAY_TASK_ID:-0} + 1))",
    # --exclude knows NodeName, which is not always NodeHostname.
    host_words="${SLURMD_NODENAME:-}",
    event_module="slurm",
    # Unlike Reason in --Format, it names missing nodes.
    analyze=_ask("squeue", "--noheader", "--jobs={{ id }}", "--format=%r"),
    array_limit=_CONFIGURATION,
    # max_array_tasks, where it is set, is the lower one of the two.
    read_array_limit=(
        r"(?ms)^(?:MaxArraySize\s*= (?!.*^SchedulerParameters\s*= [^\n]*\bmax_array_tasks=\d)"
        r"|SchedulerParameters\s*= [^\n]*\bmax_array_tasks=)(\d+)"
    ),
    max_array=10_000,
    # Allocated, idle, other and total, for the partitions that we may see.
    slots=_ask("sinfo", "--noheader", "--format=%C"),
    read_slots=r"(?m)^\d+/(?P<free>\d+)/\d+/(?P<total>\d+)$",
    version=_CONFIGURATION,
    read_version=r"(?m)^SLURM_VERSION\s*=\s*(\S+)$",
    # A hung controller that wakes up accepts submissions of killed sbatch commands while their munge credentials are
    # valid: 300 s.
    settle_time=300,
    # SLURM_ variables reach the jobs, which would take themselves for others; SLURM_CONF stays.
    ignored_variables=(
        *("SBATCH_", "SQUEUE_", "SCANCEL_", "SACCT_", "SCONTROL_"),
        *("SLURM_ARRAY", "SLURM_BITSTR", "SLURM_CLUSTER", "SLURM_CPU", "SLURM_DEBUG", "SLURM_EX", "SLURM_GET"),
        *("SLURM_HINT", "SLURM_JOB", "SLURM_LOCAL", "SLURM_MEM", "SLURM_N", "SLURM_PRIO", "SLURM_PROC"),
        *("SLURM_RESTART", "SLURM_STEP"),
        *("SLURM_SUBMIT", "SLURM_TASK", "SLURM_TIME", "SLURM_UMASK", "SLURM_WORKING"),
    ),
    diagnose=diagnose,
)
