"""HTCondor 23 and later, by condor_submit(1), condor_q(1), condor_history(1), condor_rm(1) and condor_config_val(1)."""

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Meaning
from batch_adapters.condor.answers import diagnose, read_history, read_queue
from batch_adapters.naming import Naming
from batch_adapters.states import Cause, State

# condor_submit(1). A value's "$" would begin a macro, and $(DOLLAR) stands for one; "$$", line breaks and a comma in a
# list of files have no spelling at all. In arguments, quotes are doubled. HTCondor has no queues, but rules of the pool
# may look at BatchQueue; it limits no CPU time, which the driver does. A removed job goes, a held one would stay.
_DESCRIPTION = """\
{%- macro spelt(text) %}{{ text | replace("$", "$(DOLLAR)") }}{% endmacro -%}
{%- macro quoted(text) %}{{ text | replace("'", "''") | replace('"', '""') | replace("$", "$(DOLLAR)") }}{% endmacro -%}
{%- macro literal(text) %}{{ spelt(text | replace("\\\\", "\\\\\\\\") | replace('"', '\\\\"')) }}{% endmacro -%}
{%- for text in (driver, results, sandbox, queue, project) if "$$" in text or "\\n" in text %}
error : HTCondor has no spelling for {{ spelt(text) | replace("\\n", " ") }}
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
transfer_output_files = results/
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

# A hold reason may quote any of these: what went well is looked for first, and from the first character to the last.
_GOOD = r"\A{}(?:WARNING.*\n)*\Z"
_DOWN = Meaning(
    None,
    r"SECMAN:|CEDAR:|AUTHENTICATE:|\(null\)|communication error"
    r"|Failed to (?:fetch ads|connect)|Can't (?:find address|connect|send end of message|receive reply)",
    Answer.TRANSIENT,
)
_QUERIED = (Meaning(0, _GOOD.format(r"(?:\[\n(?s:.*)\]\n)?"), Answer.OK), _DOWN)
_COLUMNS = "ClusterId,ProcId,JobStatus,ExitCode,ExitBySignal,HoldReason,HoldReasonCode,RemoveReason,SamgridToken"


def _query(*restrictions: str) -> Command:
    """A hung daemon is given up by the programs after 20 s."""
    return Command(("condor_q", *restrictions, "-json", "-attributes", _COLUMNS), outcomes=_QUERIED)


def _ask_schedd(name: str) -> Command:
    outcomes = (Meaning(0, _GOOD.format(r"[\w.]+\n"), Answer.OK), _DOWN)
    return Command(("condor_config_val", "-schedd", name), outcomes=outcomes, timeout=20)


def _change(program: str, *options: str) -> Command:
    """What it says of a job that is not in a state for it, or gone, is no error (condor_tool's words)."""
    done = r"(?m)^(?:Job [\d.]+|All jobs in cluster \d+) (?:have been )?(?:suspended|continued|held|released)$"
    late = r"There are no jobs in the queue|already |not (?:found|held|running|suspended)|Couldn't find/"
    outcomes = (
        _DOWN,
        Meaning(None, r"Permission denied", Answer.PERMANENT),
        Meaning(None, rf"{done}|{late}", Answer.OK),
        Meaning(0, r"\A\Z", Answer.OK),
    )
    return Command((program, *options, "{{ ids* }}"), outcomes=outcomes)


CONDOR = BatchAdapter(
    name="condor",
    submit=Command(
        ("condor_submit", "-terse", "{{ options* }}", "-"),
        stdin=_DESCRIPTION,
        # With a hung schedd it waits for ever.
        timeout=120,
        outcomes=(
            Meaning(0, r"(?m)^\d+\.\d+ - \d+\.\d+$", Answer.OK),
            # Nothing was sent yet; and the account's other jobs will end.
            Meaning(1, r"(?m)^ERROR: (?:Failed to connect to local queue manager|Can't find address of)", Answer.LATER),
            Meaning(1, r"would exceed MAX_JOBS_(?:PER_OWNER|SUBMITTED)\b", Answer.LATER),
            _DOWN,
            Meaning(
                1,
                r"(?m)\AUsage: |would exceed MAX_JOBS_PER_SUBMISSION\b"
                r"|^ERROR: (?:on Line \d+ of submit file|Failed to parse|Parse error|No such directory|Invalid )"
                # Only the schedd gives a reason, that of the pool's rules: the transaction is undone.
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
    ),
    # Only jobs of the asking account are shown, unless one is asked for by its id.
    queue=_query("-constraint", "SamgridToken isnt undefined"),
    find=_query("-constraint", 'SamgridToken == "{{ token }}"'),
    status=_query("{{ id }}"),
    read_jobs=read_queue,
    # Files are read backwards, whether the schedd lives or not, no further than to what ended long ago: jobs that
    # were spooled may come late, as they stay in the queue for ten days (LeaveJobInQueue).
    history=Command(
        (
            *("condor_history", "-constraint", 'SamgridToken == "{{ token }}"', "-json", "-attributes", _COLUMNS),
            *("-since", "EnteredCurrentStatus < time() - 40 * 86400"),
        ),
        outcomes=(Meaning(0, _GOOD.format(r"\[\n(?s:.*)\]\n"), Answer.OK), _DOWN),
        timeout=120,
    ),
    read_history=read_history,
    analyze=Command(("condor_q", "-better-analyze", "{{ id }}"), outcomes=(_DOWN, OK), timeout=30),
    # Conditions that no slot meets, how many slots turn it away, and what comes of that.
    read_analysis=(
        r"(?m)^ *(\[\d+\] +0 .*|(?!0 )\d+ (?:are rejected by|reject your|match ).*"
        r"|Reason for last .*|No machines .*)"
    ),
    cancel=Command(
        ("condor_rm", "{{ ids* }}"),
        outcomes=(
            _DOWN,
            Meaning(None, r"Permission denied", Answer.PERMANENT),
            Meaning(0, r"marked for removal|There are no jobs in the queue", Answer.OK),
            # Those that it names are gone or going, and all others it has marked.
            Meaning(1, r"already marked for removal|Job [\d.]+ not found|Couldn't find/remove all jobs", Answer.OK),
        ),
    ),
    suspend=_change("condor_suspend"),
    resume=_change("condor_continue"),
    # A running one would lose what it has done: it is for those that wait.
    hold=_change("condor_hold"),
    release=_change("condor_release"),
    priority=_change("condor_prio", "-p", "{{ priority }}"),
    # The names are those that "condor_q -help State" gives to the numbers; HELD is also what could not be started.
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
        r"HELD(?: .*)?": "condor_release {id}",
        r"SUSPENDED(?: .*)?": "condor_continue {id}",
        # Its host does not answer, most likely; what runs there is left alone then.
        r"REMOVING(?: .*)?": "condor_rm -forcex {id}, if it stays so",
    },
    local_id_words="$SAMGRID_CONDOR_ID",
    index_words="$SAMGRID_CONDOR_POSITION",
    job_folder_words="$_CONDOR_SCRATCH_DIR",
    event_module="condor",
    array_limit=_ask_schedd("MAX_JOBS_PER_SUBMISSION"),
    max_array=10_000,
    # Of a slot that is cut for each job what is left; dynamic ones are such cuts.
    slots=Command(
        (
            *("condor_status", "-constraint", 'SlotType =!= "Dynamic"', "-af", "TotalSlotCpus"),
            'ifThenElse(PartitionableSlot =?= true || State == "Unclaimed", Cpus, 0)',
        ),
        outcomes=(Meaning(0, r"\A(?:\d+ \d+\n)+\Z", Answer.OK), _DOWN),
        timeout=30,
    ),
    version=_ask_schedd("CONDOR_VERSION"),
    # The schedd does one thing after the other: once it answers, what it was sent before is done or lost.
    settle_time=20,
    carries_files=True,
    # Other variables of this kind say where the pool is and how to be let in.
    ignored_variables=("_CONDOR_SUBMIT_", "_CONDOR_CONDOR_Q_", "_CONDOR_JOB_DEFAULT_", "_CONDOR_TOOL_DEBUG"),
    diagnose=diagnose,
)
