"""PBS: OpenPBS, PBS Professional and Torque.

`PBS` was measured on OpenPBS 23.06. `TORQUE` was written from Torque's manual pages and source (6.1), and never run
against a real Torque.
"""

from dataclasses import replace

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Listing, Meaning, option
from batch_adapters.naming import Naming
from batch_adapters.pbs.answers import (
    PBS_CAUSES,
    TORQUE_CAUSES,
    diagnose_pbs,
    diagnose_torque,
    list_causes,
    list_ended_states,
    read_json_jobs,
    read_xml_jobs,
)
from batch_adapters.states import State

# Exit codes are the last eight bits of PBS errors, and differ between commands for a dead server: so words decide.
_DOWN = Meaning(
    None,
    r"(?m)^(?:Couldn't connect to cluster|(?:q\w+: )?[Cc]annot connect to (?:specified )?server"
    r"|(?:q\w+: )?(?:Communication failure|Unable to communicate with|No free connections|Server connection table full"
    r"|Request not allowed: Server shutting down|End of File|Premature end of message|Batch protocol error))",
    Answer.TRANSIENT,
)
# Limits on the number of waiting jobs, and closed queues: it may succeed later.
_LATER = Meaning(
    None,
    r"(?m)^qsub: (?:submit error \()?(?:Queue is not enabled|Maximum number of jobs|Resource temporarily unavailable)",
    Answer.LATER,
)
# What an account may have in the queue counts elements, and a queue's max_array_size may be less than the server's.
_TOO_MANY = Meaning(
    None,
    r"(?m)^qsub: (?:submit error \()?(?:.*\bwould exceed |Array job exceeds server or queue size limit"
    r"|[Rr]equested array size too large)",
    Answer.TOO_MANY,
)
_NOT_SENT = Meaning(None, r"(?m)^qsub: [Cc]annot connect to server", Answer.LATER)
_REFUSED = Meaning(
    None,
    r"(?m)^qsub: (?:submit error \()?(?:Unknown queue|No default queue specified|Access to queue is denied"
    r"|Unknown resource|Illegal attribute or resource value|Job violates queue and/or server resource limits"
    r"|Job rejected by all possible destinations|Bad [UG]ID for job"
    r"|Unauthorized Request|Access from host not allowed|Invalid Account|Undefined attribute|Resource invalid in"
    r'|"-lresource=" cannot be used|Cannot be used with select or place|Cannot have "\w+" without|"min_walltime"'
    r"|duplicated resource within|Cannot set attribute|cannot send environment|Error \(15002\) submitting job"
    r"|illegal -\w value|Job name is too long|invalid option|illegally formed destination)",
    Answer.PERMANENT,
)
# What qsub itself finds wrong.
_MISUSED = Meaning(2, r"(?m)^usage: qsub ", Answer.PERMANENT)
# PBSE_HOOKERROR (15136, pbs_error.h): a queuejob hook said no, in words of its own, or failed. Nothing was queued.
_HOOK = Meaning(32, r"\Aqsub: ", Answer.LATER)
_SENT = (OK, _NOT_SENT, _DOWN, _TOO_MANY, _LATER, _REFUSED, _MISUSED)
_DENIED = Meaning(None, r"(?m)^q(?:del|stat): Unauthorized Request", Answer.PERMANENT)
# Exit code 153; the second: 35, if the server keeps a history; the others: the job is just ending.
_GONE = Meaning(
    None,
    r"(?m)^q(?:del|stat): (?:\S+ )?(?:Unknown Job Id|Job has finished"
    r"|Request invalid for (?:state of job|finished array subjob)|Delete already in progress"
    r"|Job already in exit state)",
    Answer.ABSENT,
)
_COMPLAINT = Meaning(0, r"(?m)^q\w+: ", Answer.UNKNOWN)
# A server without jobs answers with JSON without "Jobs".
_JSON = Meaning(0, r"\A\{", Answer.OK)
# Some of several jobs have gone meanwhile. The variables of a job may have any lines: nothing is matched in two ways.
_SOME_GONE = r"(?:qstat: (?>[^\n]*?(?:Unknown Job Id|Job has finished)[^\n]*\n))++\Z"
_PARTLY = Meaning(None, rf'(?ms)\A\{{(?>.*^[ \t]*"Jobs":).*^\}}\n{_SOME_GONE}', Answer.OK)
_NO_HISTORY = Meaning(0, r"(?m)^q(?:stat|select): PBS is not configured to maintain job history", Answer.PERMANENT)
_QUERIES = (_NO_HISTORY, _COMPLAINT, _JSON, _PARTLY, _GONE, _DENIED, _DOWN)


def _qstat(*arguments: str, outcomes: tuple[Meaning, ...] = _QUERIES) -> Command:
    # A thousand jobs take 1.3 MB and 0.1 s; a hung server keeps clients waiting without limit.
    return Command(("qstat", *arguments), outcomes=outcomes, timeout=60)


def _ask_about(*selection: str, history: tuple[str, ...] = ()) -> Command:
    """A query about selected jobs of this account, by their ids: without ids the answer has everybody's jobs.

    Without -E, -F json shows only the first of several ids (qstat.c, 19.1 and 23.06).
    """
    listing = Listing(
        ("qselect", *history, "-u", "{{ user }}", *selection),
        outcomes=(_NO_HISTORY, _COMPLAINT, OK, _DOWN),
        pattern=r"\d+(?:\[\])?\.[\w.-]+",
    )
    return replace(_qstat("-E", *history, "-t", "-f", "-F", "json", "{{ ids* }}"), listing=listing)


def _change(program: str, *options: str) -> Command:
    outcomes = (
        # "Invalid request" (exit code 156): elements of an array that has started cannot be held or released.
        Meaning(
            None,
            rf"(?m)^{program}: (?:Unauthorized Request|Request invalid for job array|Invalid request\b)",
            Answer.PERMANENT,
        ),
        Meaning(
            None, rf"(?m)^{program}: (?:\S+ )?(?:Unknown Job Id|Job has finished|Request invalid for state)", Answer.OK
        ),
        _DOWN,
        _COMPLAINT,
        OK,
    )
    return Command((program, *options, "{{ ids* }}"), outcomes=outcomes, timeout=30)


# No mail (-m n). With -f, as otherwise qsub leaves a process behind that submits after its end.
_COMMON = (
    *("-N", "{{ token }}", "-m", "n", "-j", "oe"),
    *option("-q", "{{ queue }}", "queue"),
    *option("-l", "cput={{ max_cpu_minutes * 60 }}", "max_cpu_minutes"),
    *option("-l", "walltime={{ max_wall_minutes * 60 }}", "max_wall_minutes"),
)
_MANY = "cores > 1 or gpus"
# With a chunk (select), memory must be a part of it.
_CHUNK = "select=1:ncpus={{ cores }}{% if gpus %}:ngpus={{ gpus }}{% endif %}{% if max_memory_mb %}:{% endif %}"
_RESOURCES = option(
    "-l",
    f"{{% if {_MANY} %}}{_CHUNK}{{% endif %}}{{% if max_memory_mb %}}mem={{{{ max_memory_mb }}}}mb{{% endif %}}",
    f"{_MANY} or max_memory_mb",
)
_TORQUE_RESOURCES = (
    *option("-l", "mem={{ max_memory_mb }}mb", "max_memory_mb"),
    *option("-l", "nodes=1:ppn={{ cores }}{% if gpus %}:gpus={{ gpus }}{% endif %}", _MANY),
)

PBS = BatchAdapter(
    name="pbs",
    submit=Command(
        (
            *("qsub", "-f", *_COMMON, *_RESOURCES),
            *("-o", "{{ results }}/{{ token }}.{{ '^array_index^' if count > 1 else 1 }}.driver"),
            *option("-P", "{{ project }}", "project"),
            # -J 1-1 is refused.
            *option("-J", "1-{{ count }}", "count > 1"),
            *("{{ options* }}", "--", "/bin/sh", "{{ driver }}", "{{ token }}"),
        ),
        outcomes=(*_SENT, _HOOK),
    ),
    naming=Naming(
        submitted=r"(?P<id>\d+)(?:\[\])?\.(?P<server>[\w.-]+)",
        single="{id}.{server}",
        element="{id}[{n}].{server}",
        array="{id}[].{server}",
        span="{id}[{n}-{last}].{server}",
    ),
    queue=_ask_about(),
    find=_ask_about("-N", "{{ token }}"),
    status=_qstat("-t", "-f", "-F", "json", "{{ id }}"),
    read_jobs=read_json_jobs,
    history=_ask_about("-N", "{{ token }}", history=("-x",)),
    read_history=read_json_jobs,
    # One id at a time: a known and an unknown id in one call have crashed a server (OpenPBS 23.06).
    cancel=Command(("qdel", "{{ ids* }}"), outcomes=(_COMPLAINT, OK, _GONE, _DENIED, _DOWN), timeout=30),
    cancel_at_once=1,
    # For operators only.
    suspend=_change("qsig", "-s", "suspend"),
    resume=_change("qsig", "-s", "resume"),
    hold=_change("qhold"),
    release=_change("qrls"),
    priority=_change("qalter", "-p", "{{ priority }}"),
    states={
        "B": State.ACTIVE,
        "E": State.ACTIVE,
        "H": State.PENDING,
        # Moved to another server, under the same id.
        "M": State.PENDING,
        "Q": State.PENDING,
        "R": State.ACTIVE,
        "S": State.SUSPENDED,
        "T": State.PENDING,
        "U": State.SUSPENDED,
        "W": State.PENDING,
        **list_ended_states("FX"),
    },
    causes=list_causes("FX"),
    log_causes=PBS_CAUSES,
    leaving=frozenset("E"),
    # Holds are set by the owner, an operator, the system (for a dependency), or for a bad password. Elements of a held
    # array show Q, and can only be released together.
    blocks={
        r"\w held \(u\).*": "qrls {array}",
        r"\w held \(s\).*": "qalter -W depend= {array}",
        r"\w held \(\w*\).*": "qrls -h {array}, by an operator",
        r"H(?: .*)?": "qrls {array}",
        r"W(?: .*)?": "qalter -a NOW {array}, with a time for NOW",
        r"[SU](?: .*)?": "qsig -s resume {id}, by an operator",
        r"Q Can Never Run: .*": "qalter -l RESOURCES {array}, with what there is for RESOURCES",
        r"Q Not Running: Queue not started\..*": "qstart QUEUE, by an operator",
    },
    local_id_words="$PBS_JOBID",
    index_words="${PBS_ARRAY_INDEX:-1}",
    job_folder_words="$TMPDIR",
    event_module="pbs",
    array_limit=Command(("qstat", "-B", "-f"), outcomes=(_COMPLAINT, OK, _DOWN), timeout=30),
    read_array_limit=r"\bmax_array_size = (\d+)",
    max_array=10_000,
    version=Command(("qstat", "-B", "-f"), outcomes=(_COMPLAINT, OK, _DOWN), timeout=30),
    read_version=r"\bpbs_version = (\S+)",
    ignored_variables=("PBS_DPREFIX", "PBS_QSTAT_", "PBS_CLIENTRETRY"),
    diagnose=diagnose_pbs,
)
"""OpenPBS and PBS Professional."""

_XML_QUERIES = (
    _COMPLAINT,
    Meaning(0, r"\A<", Answer.OK),
    # Some of several jobs have gone meanwhile.
    Meaning(None, rf"(?s)\A<.*</Data>\s*{_SOME_GONE}", Answer.OK),
    _GONE,
    _DENIED,
    _DOWN,
)
# qselect lists single elements, and ended ones, too, until they are forgotten (req_select.c, 6.1). Their names contain
# their numbers, so that qselect -N would find none.
_TORQUE_QUEUE = replace(
    _qstat("-t", "-f", "-x", "{{ ids* }}", outcomes=_XML_QUERIES),
    listing=Listing(
        ("qselect", "-u", "{{ user }}"),
        outcomes=(_COMPLAINT, OK, _DOWN),
        pattern=r"\d+(?:\[\d*\])?\.[\w.-]+",
        has_elements=True,
    ),
)

TORQUE = replace(
    PBS,
    name="torque",
    # Ranges of elements would need an option of their own.
    naming=replace(PBS.naming, span=""),
    submit=replace(
        PBS.submit,
        argv=(
            *("qsub", *_COMMON, *_TORQUE_RESOURCES),
            # Torque appends "-POSITION" to the names of an array's files.
            *("-o", "{{ results }}/{{ token }}.{{ 'driver' if count > 1 else '1.driver' }}"),
            *option("-A", "{{ project }}", "project"),
            *option("-t", "1-{{ count }}", "count > 1"),
            "{{ options* }}",
        ),
        stdin="exec /bin/sh {{ driver | sh }} {{ token }}\n",
        outcomes=_SENT,
    ),
    queue=_TORQUE_QUEUE,
    find=_TORQUE_QUEUE,
    status=_qstat("-t", "-f", "-x", "{{ id }}", outcomes=_XML_QUERIES),
    read_jobs=read_xml_jobs,
    # Ended jobs stay in the queue, in state C, for keep_completed seconds; there is no other history.
    history=None,
    states={**{letter: state for letter, state in PBS.states.items() if letter in "EHQRSTW"}, **list_ended_states("C")},
    causes=list_causes("C"),
    log_causes=TORQUE_CAUSES,
    index_words="${PBS_ARRAYID:-1}",
    # TMPDIR is the job's folder only if $tmpdir is set for MOM; otherwise it may be any folder.
    job_folder_words="",
    # max_job_array_size is shown only if it is set.
    array_limit=None,
    max_array=1000,
    diagnose=diagnose_torque,
)
"""Torque from 2.5 on; before that, jobs of arrays had other names."""
