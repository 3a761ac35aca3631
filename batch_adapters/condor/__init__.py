"""HTCondor 23 and later, by condor_submit(1), condor_q(1), condor_history(1), condor_rm(1) and condor_config_val(1)."""

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Meaning
from batch_adapters.condor.answers import diagnose, read_history, read_queue
from batch_adapters.naming import Naming
from batch_adapters.states import Cause, State

# condor_submit(1). In values, "$" must be written $(DOLLAR); "$$", line breaks, and commas in lists of files cannot be
# written at all. In arguments, quotes are doubled. HTCondor has no queues, but a pool's rules may use BatchQueue; CPU
# time is limited by the driver. At the wall time limit a job is removed, not held, as held jobs would stay.
_DESCRIPTION = """\
{%- macro spelt(text) %}{{ text | replace("$", "$(DOLLAR)") }}{% endmacro -%}
{%- macro quoted(text) %}{{ text | replace("'", "''") | replace('"', '""') | replace("$", "$(DOLLAR)") }}{% endmacro -%}
{%- macro literal(text) %}{{ spelt(text | replace("\\\\", "\\\\\\\\") | replace('"', '\\\\"')) }}{% endmacro -%}
{%- for text in (driver, results, sandbox, queue, project) if "$$" in text or "\\n" in text %}
error : HTCondor has no spelling for {{ spelt(text) | replace("\\n", " ") }}
{% endfor %}
{%- for option in options if option.startswith(("-n", "-r", "-po", "-ad")) %}
error : {{ option }} would hide jobs from HTCondor's other commands: SCHEDD_HOST in its configuration names a schedd
{% endfor %}
{%- if carried and "," in sandbox + driver %}
error : HTCondor cannot carry files out of a folder with a comma in its name: {{ spelt(sandbox) }}
{% endif %}
universe = vanilla
executable = /bin/sh
transfer_executable = false
{% if carried %}
arguments = "'{{ quoted(driver.rpartition("/")[2]) }}' {{ token }}"
should_transfer_files = YES
samgrid_table = $(Process) / {{ table_lines }}
transfer_input_files = {{ spelt(driver) }}, {{ spelt(sandbox) }}/sandbox.tar, \
{{ spelt(sandbox) }}/{{ token }}.$INT(samgrid_table){% for file in credentials %}, {{ spelt(file) }}{% endfor +%}
transfer_output_files = results/, last/
My.WantIOProxy = true
{% else %}
arguments = "'{{ quoted(driver) }}' {{ token }}"
should_transfer_files = NO
{% endif %}
initialdir = {{ spelt(results) }}
samgrid_position = $(Process) + 1
output = {{ token }}.$INT(samgrid_position).driver
error = {{ token }}.$INT(samgrid_position).driver
getenv = HOME, USER, LOGNAME, PATH
environment = "SAMGRID_CONDOR_ID=$(Cluster).$(Process) SAMGRID_CONDOR_POSITION=$INT(samgrid_position)"
batch_name = {{ token }}
My.SamgridToken = "{{ token }}"
{% if queue %}
My.BatchQueue = "{{ literal(queue) }}"
{% endif %}
{% if project %}
accounting_group = {{ spelt(project) }}
{% endif %}
{% if max_memory_mb %}
request_memory = {{ max_memory_mb }}
{% endif %}
{% if cores > 1 %}
request_cpus = {{ cores }}
{% endif %}
{% if gpus %}
request_gpus = {{ gpus }}
{% endif %}
{% if max_disk_mb %}
request_disk = {{ max_disk_mb * 1024 }}
{% endif %}
{% if excluded_host %}
requirements = split(TARGET.Machine, ".")[0] != "{{ excluded_host }}"
{% endif %}
{% if max_wall_minutes %}
periodic_remove = (JobStatus == 2 && time() - JobCurrentStartExecutingDate > {{ max_wall_minutes * 60 }}) =?= true
{% endif %}
queue {{ count }}
"""

# Hold reasons may quote any of these words, so good answers are matched first, and completely.
_GOOD = r"\A{}(?:WARNING.*\n)*\Z"
_DOWN = Meaning(
    None,
    r"SECMAN:|CEDAR:|AUTHENTICATE:|\(null\)|communication error"
    r"|Failed to (?:fetch ads|connect)|Can't (?:find address|connect|send end of message|receive reply)",
    Answer.TRANSIENT,
)
_QUERIED = (Meaning(0, _GOOD.format(r"(?:\[\n(?s:.*)\]\n)?"), Answer.OK), _DOWN)
_COLUMNS = (
    "ClusterId,ProcId,JobStatus,LastJobStatus,ExitCode,ExitBySignal,HoldReason,HoldReasonCode,HoldReasonSubCode"
    ",LastHoldReason,LastHoldReasonCode,LastHoldReasonSubCode,RemoveReason,SamgridToken"
    ",JobCurrentStartDate,JobDisconnectedDate,RemoteHost"
)
_COLUMNS_OF_CLUSTER = (
    "ClusterId,SamgridToken,JobMaterializeNextProcId,JobMaterializePaused,JobMaterializePauseReason,TotalSubmitProcs"
)


def _query(constraint: str) -> Command:
    """The programs give up on a hung daemon after 20 s.

    Of a cluster with late materialization, which may be paused, no job needs to be in the queue.
    """
    return Command(
        ("condor_q", "-constraint", constraint, "-json", "-attributes", _COLUMNS),
        outcomes=_QUERIED,
        waiting=("condor_q", "-factory", "-constraint", constraint, "-json", "-attributes", _COLUMNS_OF_CLUSTER),
    )


# After the queue was lost, another job of the account, also of another grid job, may have an id of ours; token and
# arguments may both have been edited (condor_qedit). Without "=?= true" the schedd would compare all ids with each job
# that has neither. A cluster's own ad, which has no
# ProcId, stands for the jobs that are not materialized yet: if it does not match, they are, and run.
_OURS = """\
(regexp("^(?:{{ prefixes | join("|") }})", SamgridToken) \
|| regexp("driver[.]sh'? (?:{{ prefixes | join("|") }})", Arguments)) =?= true && (\
{% for id in ids %}{{ " || " if not loop.first }}\
{% set cluster, _, procs = id.partition(".") %}{% set first, _, last = procs.partition("-") %}\
ClusterId == {{ cluster }}{% if procs %} && (ProcId ?: JobMaterializeNextProcId) >= {{ first }} \
&& (ProcId ?: TotalSubmitProcs - 1) <= {{ last or first }}{% endif %}{% endfor %})"""


def _ask_schedd(name: str) -> Command:
    """A warning of what is obsolete in the configuration, whosever it is, goes on over several lines."""
    outcomes = (Meaning(0, r"\A[\w.]+\n(?:WARNING(?s:.*))?\Z", Answer.OK), _DOWN)
    return Command(("condor_config_val", "-schedd", name), outcomes=outcomes, timeout=20)


def _change(program: str, *words: str) -> Command:
    """Answers for jobs that are gone, or not in a suitable state, are no error (words of condor_tool)."""
    outcomes = (
        _DOWN,
        Meaning(0, r"(?m)\) have been (?:suspended|continued|held|released)$|^Set attribute ", Answer.OK),
        Meaning(1, r"Couldn't find/|There are no jobs in the queue", Answer.OK),
        # It says no more, whether there are no such jobs or they may not be changed.
        Meaning(1, r"No attributes were set", Answer.PERMANENT),
    )
    return Command((program, "-constraint", _OURS, *words), outcomes=outcomes)


CONDOR = BatchAdapter(
    name="condor",
    submit=Command(
        ("condor_submit", "-terse", "{{ options* }}", "-"),
        stdin=_DESCRIPTION,
        # It waits for ever for a hung schedd.
        timeout=120,
        outcomes=(
            Meaning(0, r"(?m)^\d+\.\d+ - \d+\.\d+$", Answer.OK),
            # Nothing was sent. The second: later, when other jobs of the account have ended, or the account is enabled.
            Meaning(1, r"(?m)^ERROR: (?:Failed to connect to local queue manager|Can't find address of)", Answer.LATER),
            Meaning(
                1, r"(?m)would exceed MAX_JOBS_(?:PER_OWNER|SUBMITTED)\b|^ERROR: User \S+ is disabled\b", Answer.LATER
            ),
            _DOWN,
            Meaning(
                1,
                r"(?m)\AUsage: |would exceed MAX_JOBS_PER_SUBMISSION\b"
                r"|^ERROR: (?:on Line \d+ of submit file|Failed to parse|Parse error|No such directory|Invalid )"
                # With a reason, the schedd refused by the pool's rules, and undid the transaction.
                r"|^ERROR: Failed to commit job submission into the queue\.\nERROR: .",
                Answer.PERMANENT,
            ),
        ),
    ),
    naming=Naming(
        submitted=r"(?P<id>\d+)\.0 - (?P=id)\.(?P<last>\d+)",
        single="{id}.0",
        element="{id}.{n}",
        array="{id}",
        first=0,
        span="{id}.{n}-{last}",
    ),
    # Only jobs of the asking account are shown, unless one is asked for by its id.
    queue=_query("SamgridToken isnt undefined"),
    find=_query('SamgridToken == "{{ token }}"'),
    # Of its whole cluster: the others tell that it is not materialized yet. What else has the id, after the queue was
    # lost, has no token and runs no driver.
    status=_query(
        "ClusterId == {{ id.partition('.')[0] }} && (SamgridToken isnt undefined || regexp(\"driver[.]sh\", Arguments))"
    ),
    read_jobs=read_queue,
    # It reads files backwards, without the schedd, and stops at jobs that ended 40 days ago: spooled jobs come late,
    # as they stay in the queue for ten days (LeaveJobInQueue).
    history=Command(
        (
            *("condor_history", "-constraint", 'SamgridToken == "{{ token }}"', "-json", "-attributes", _COLUMNS),
            *("-since", "EnteredCurrentStatus < time() - 40 * 86400"),
        ),
        outcomes=(
            Meaning(0, _GOOD.format(r"\[\n(?s:.*)\]\n"), Answer.OK),
            # The pool keeps none, and "samgrid doctor" says so.
            Meaning(1, r"configuration key HISTORY is unset", Answer.PERMANENT),
            _DOWN,
        ),
        timeout=120,
    ),
    read_history=read_history,
    analyze=Command(("condor_q", "-better-analyze", "{{ id }}"), outcomes=(_DOWN, OK), timeout=30),
    # Conditions that no slot meets, numbers of slots that reject the job, and the conclusion. Where there are no slots,
    # no condition is met, and no summary follows.
    read_analysis=(
        r"(?m)^ *(\[\d+\] +0 .*(?=(?s:.)*: +Run analysis summary)|(?!0 )\d+ (?:are rejected by|reject your|match ).*"
        r"|Reason for last .*|No machines .*)"
    ),
    cancel=Command(
        ("condor_rm", "-constraint", _OURS),
        outcomes=(
            _DOWN,
            Meaning(None, r"Permission denied", Answer.PERMANENT),
            Meaning(0, r"marked for removal|There are no jobs in the queue", Answer.OK),
            # The jobs that it names are gone or being removed; all others are marked.
            Meaning(1, r"already marked for removal|Job [\d.]+ not found|Couldn't find/remove all jobs", Answer.OK),
        ),
    ),
    suspend=_change("condor_suspend"),
    resume=_change("condor_continue"),
    # For waiting jobs only: a running job would lose its work.
    hold=_change("condor_hold"),
    release=_change("condor_release"),
    priority=_change("condor_qedit", "JobPrio", "{{ priority }}"),
    # Names of the numbers in "condor_q -help State"; HELD are also jobs that could not be started.
    states={
        "IDLE": State.PENDING,
        "RUNNING": State.ACTIVE,
        "REMOVING": State.ACTIVE,
        "REMOVED": State.FAILED,
        "COMPLETED": State.DONE,
        "HELD": State.SUSPENDED,
        "TRANSFERRING_OUTPUT": State.ACTIVE,
        "SUSPENDED": State.SUSPENDED,
        "FAILED": State.FAILED,
        "BLOCKED": State.PENDING,
    },
    causes={"REMOVED": Cause.CANCELLED_OUTSIDE},
    leaving=frozenset({"REMOVING"}),
    blocks={
        r"HELD not materialized: .*": "condor_release {array}",
        r"HELD(?: .*)?": "condor_release {id}",
        r"SUSPENDED(?: .*)?": "condor_continue {id}",
        # Until its lease ends, its host may come back with it; condor_vacate_job waits for that, too.
        r"RUNNING disconnected .*": "condor_hold {id}, then condor_release {id}, if its host is lost",
        # Most likely its host does not answer; -forcex does not stop what runs there.
        r"REMOVING(?: .*)?": "condor_rm -forcex {id}, if it stays so",
    },
    local_id_words="$SAMGRID_CONDOR_ID",
    index_words="$SAMGRID_CONDOR_POSITION",
    job_folder_words="$_CONDOR_SCRATCH_DIR",
    # condor_chirp(1) asks the shadow; where HTCondor was unpacked from a tar, it lies in the second folder. Programs
    # get no such access to the account's files.
    fetch_words='{ ! grep -q "^NumShadowStarts = 1$" "$_CONDOR_JOB_AD" &&'
    ' PATH=$_CONDOR_BIN/../libexec/condor:$_CONDOR_BIN/../libexec:$PATH condor_chirp fetch "$1" "$2"; } ||'
    ' rm -f -- "$2"; rm -f -- "$_CONDOR_CHIRP_CONFIG"',
    event_module="condor",
    array_limit=_ask_schedd("MAX_JOBS_PER_SUBMISSION"),
    max_array=10_000,
    # For partitionable slots the rest that is free; dynamic slots are parts of these.
    slots=Command(
        (
            *("condor_status", "-constraint", 'SlotType =!= "Dynamic"', "-af", "TotalSlotCpus"),
            'ifThenElse(PartitionableSlot =?= true || State == "Unclaimed", Cpus, 0)',
        ),
        outcomes=(Meaning(0, r"\A(?:\d+ \d+\n)+\Z", Answer.OK), _DOWN),
        timeout=30,
    ),
    version=_ask_schedd("CONDOR_VERSION"),
    # The schedd works sequentially: when it answers, earlier requests are done or lost.
    settle_time=20,
    carries_files=True,
    # Other _CONDOR_ variables say where the pool is, and how to authenticate.
    ignored_variables=("_CONDOR_SUBMIT_", "_CONDOR_CONDOR_Q_", "_CONDOR_JOB_DEFAULT_", "_CONDOR_TOOL_DEBUG"),
    diagnose=diagnose,
)
