"""LSF 10.1, by its documentation: this adapter was never run against a real LSF.

OpenLava has the same file formats, but another bjobs (no ``-o``): it needs its own table in samgrid.toml.
"""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Garbled, Job, Meaning, option
from batch_adapters.naming import Naming
from batch_adapters.running.diagnosis import SHORTEST_MEMORY, Ask, Finding, judge, read_number
from batch_adapters.states import Cause, State

_FIELDS = "jobid jobindex stat exit_code job_name exit_reason pend_reason delimiter='|'"
# With LSB_BJOBS_DISPLAY_ENH the id contains the index, too. The last field is free text.
_LINE = re.compile(r"(\d+)(?:\[\d+\])?\|(-|\d+)\|(\w+)\|(-|\d+)\|([^|\n]*)\|([^|\n]*)\|(.*)\n", re.ASCII)
_TOKEN = re.compile(r"([a-z][a-z0-9]{7}-[0-9a-z]+)(?:\[.*\])?", re.ASCII)
# Reasons of an EXIT that LSF did not cause (lsbatch.h).
_OWN_END = re.compile(r"-?|(?:TERM_UNKNOWN|TERM_EXTERNAL_SIGNAL)\b.*")

# "Termination reasons displayed by bacct, bhist, and bjobs", LSF 10.1.
_CAUSES = {
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_DEADLINE"), Cause.TIME_LIMIT),
    "TERM_CPULIMIT": Cause.CPU_LIMIT,
    **dict.fromkeys(("TERM_MEMLIMIT", "TERM_SWAP"), Cause.MEMORY_LIMIT),
    "TERM_EXTERNAL_SIGNAL": Cause.SIGNAL,
    **dict.fromkeys(("TERM_REMOVE_HUNG_JOB", "TERM_RC", "TERM_RMS", "TERM_SLURM", "TERM_ZOMBIE"), Cause.NODE_LOST),
    **dict.fromkeys(
        ("TERM_CSM_ALLOC", "TERM_CWD_NOTEXIST", "TERM_DATA", "TERM_KUBE", "TERM_PRE_EXEC_FAIL"), Cause.NEVER_STARTED
    ),
}
"""All other reasons mean that somebody, or a rule of the site, ended the job."""


def read_jobs(printed: str) -> Iterator[Job]:
    """The local jobs in the output of bjobs, recognised by their names; jobs ended by LSF are ``EXIT by LSF``.

    :raises Garbled: quoting the first line that does not match.
    """
    for line in printed.splitlines(keepends=True):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Garbled(f"a line that was not expected: {line[:200]!r}")
        job, index, state, code, name, ended_by, waits_for = match.groups()
        token = _TOKEN.fullmatch(name)
        if token is None:
            continue
        exit_code = None if code == "-" else int(code)
        if state == "EXIT" and not (exit_code and _OWN_END.fullmatch(ended_by)):
            state = "EXIT by LSF"
        yield Job(
            local_id=job if index in ("-", "0") else f"{job}[{index}]",
            native_state=state,
            exit_code=exit_code,
            reason="; ".join(reason.strip(" ;") for reason in (ended_by, waits_for) if reason not in ("", "-")),
            token=token[1],
            cause=_CAUSES.get(ended_by.partition(":")[0].strip()) if state.startswith("EXIT") else None,
        )


# During an outage, commands print these words and try again until our time limit. An answer may still follow them, so
# good answers are matched first.
_DOWN = Meaning(
    None,
    r"(?m)^(?:LSF is (?:down|processing your request)|Cannot connect to LSF|LSF daemon \(LIM\) not responding"
    r"|[Bb]atch (?:system )?daemon not responding|Batch system concurrent job query limit exceeded"
    r"|Failed in an LSF library call|ls_\w+: |LIM is down|mbatchd is (?:down|reconfiguring|restarting))",
    Answer.TRANSIENT,
)
_LATER = Meaning(
    None, r"(?m)(?:[Pp]ending job threshold reached|Queue has been closed|Too many (?:jobs|active jobs))", Answer.LATER
)
_REFUSED = Meaning(255, r"(?m)\bJob not submitted\.?\s*$|Bad resource requirement syntax", Answer.PERMANENT)
# Exit code 0 or 255: LSB_BJOBS_CONSISTENT_EXIT_CODE in lsf.conf.
_NONE = Meaning(None, r"(?m)^(?:No (?:unfinished |matching )?job found|Job <[^>\n]*> is not found)", Answer.ABSENT)
_LISTED = Meaning(0, r"\A\d+(?:\[\d+\])?\|", Answer.OK)
_KILLED = Meaning(
    None,
    r"\A(?:Job <[^>\n]*>(?: is being terminated|: (?:Job has already finished|No matching job found)) *\n)+\Z",
    Answer.OK,
)
_DENIED = Meaning(None, r"(?m)^Job <[^>\n]*>: User permission denied", Answer.PERMANENT)
_CHANGED = (
    Meaning(
        None,
        r"\A(?:Job <[^>\n]*>(?: is being (?:stopped|resumed)"
        r"|: (?:Job has already finished|No matching job found|Job has not started yet|Job is not stopped).*) *\n)+\Z",
        Answer.OK,
    ),
    _DENIED,
    _DOWN,
)


def _bjobs(*arguments: str) -> Command:
    return Command(("bjobs", "-a", "-noheader", "-o", _FIELDS, *arguments), outcomes=(_LISTED, _NONE, _DOWN))


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check how long ended jobs are shown, as there is no other history."""
    del environment
    printed = ask(["bparams", "-a"])
    found = re.search(r"\bCLEAN_PERIOD\s*=\s*(\d+)", printed.stdout)
    if printed.exit_code == 0 and found:
        text = f"LSF shows ended jobs for {found[1]} s (CLEAN_PERIOD)"
        is_long = read_number(found[1]) >= SHORTEST_MEMORY
        yield judge(is_long, text, "lsb.params: CLEAN_PERIOD = 3600, then: badmin reconfig")


LSF = BatchAdapter(
    name="lsf",
    submit=Command(
        (
            *("bsub", "-J", "{{ token }}{% if count > 1 %}[1-{{ count }}]{% endif %}"),
            # Otherwise the job would get the submitter's whole environment.
            *("-env", "none"),
            # bsub joins its arguments for a shell, so they are quoted; stderr goes to stdout's file.
            *("-o", "{{ results }}/{{ token }}.{{ '%I' if count > 1 else 1 }}.driver", "-cwd", "/"),
            *(*option("-q", "{{ queue }}", "queue"), *option("-P", "{{ project }}", "project")),
            *option("-c", "{{ max_cpu_minutes }}", "max_cpu_minutes"),
            *option("-W", "{{ max_wall_minutes }}", "max_wall_minutes"),
            *option("-M", "{{ max_memory_mb }}MB", "max_memory_mb"),
            *(*option("-n", "{{ cores }}", "cores > 1"), *option("-R", "span[hosts=1]", "cores > 1")),
            *option("-gpu", "num={{ gpus }}", "gpus"),
            *option("-R", "rusage[tmp={{ max_disk_mb }}]", "max_disk_mb"),
            *option("-R", "select[hname!='{{ excluded_host }}']", "excluded_host"),
            *("{{ options* }}", "/bin/sh", "{{ driver | sh }}", "{{ token }}"),
        ),
        outcomes=(OK, _LATER, _DOWN, _REFUSED),
    ),
    naming=Naming(
        submitted=r"Job <(?P<id>\d+)> is submitted to (?:default )?queue <[^>]+>\.",
        single="{id}",
        element="{id}[{n}]",
        array="{id}",
    ),
    # -a: ended ones, too, for CLEAN_PERIOD seconds. bhist keeps them longer, but its output is for people.
    queue=_bjobs(),
    find=_bjobs("-J", "{{ token }}"),
    status=_bjobs("{{ id }}"),
    read_jobs=read_jobs,
    cancel=Command(("bkill", "{{ ids* }}"), outcomes=(_KILLED, _DENIED, _DOWN)),
    # These work for waiting jobs, too. No priority: bmod takes one job at a time.
    suspend=Command(("bstop", "{{ ids* }}"), outcomes=_CHANGED),
    resume=Command(("bresume", "{{ ids* }}"), outcomes=_CHANGED),
    hold=Command(("bstop", "{{ ids* }}"), outcomes=_CHANGED),
    release=Command(("bresume", "{{ ids* }}"), outcomes=_CHANGED),
    states={
        "PEND": State.PENDING,
        "PROV": State.PENDING,
        "PSUSP": State.SUSPENDED,
        "RUN": State.ACTIVE,
        "USUSP": State.SUSPENDED,
        "SSUSP": State.SUSPENDED,
        "DONE": State.DONE,
        "EXIT": State.DONE,
        "EXIT by LSF": State.FAILED,
        "POST_DONE": State.DONE,
        "POST_ERR": State.DONE,
        # Its host does not answer; it may still run there.
        "UNKWN": State.ACTIVE,
        "WAIT": State.PENDING,
        "ZOMBI": State.ACTIVE,
    },
    causes={"EXIT by LSF": Cause.CANCELLED_OUTSIDE},
    leaving=frozenset(["ZOMBI"]),
    # SSUSP ends by itself, with the load.
    blocks={
        r"(?:PSUSP|USUSP)(?: .*)?": "bresume {id}",
        r"PEND .*\b[Dd]ependency condition (?:invalid or )?never satisfied\b.*": "bmod -wn {id}",
        r"PEND .*\bqueue has been (?:closed|inactivated)\b.*": "badmin qact, by an administrator",
    },
    local_id_words='$LSB_JOBID$([ "${LSB_JOBINDEX:-0}" = 0 ] || echo "[$LSB_JOBINDEX]")',
    # 0 where there is no array.
    index_words="$((LSB_JOBINDEX > 0 ? LSB_JOBINDEX : 1))",
    event_module="lsf",
    array_limit=Command(("bparams", "-a"), outcomes=(Meaning(0, r"=", Answer.OK), _DOWN)),
    read_array_limit=r"\bMAX_JOB_ARRAY_SIZE\s*=\s*(\d+)",
    version=Command(("lsid",), outcomes=(OK, _DOWN)),
    # Not LSF_…, which say where the cluster is.
    ignored_variables=("BSUB_", "BJOBS_", "LSB_"),
    diagnose=diagnose,
)
