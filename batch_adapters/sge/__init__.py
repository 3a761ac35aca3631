"""Grid Engine 6.2 and its heirs, by qsub (sge_submit(1)), qstat(1), qacct(1), qdel(1) and qconf(1)."""

from batch_adapters.adapter import Answer, BatchAdapter, Command, Meaning, option
from batch_adapters.naming import Naming
from batch_adapters.sge.answers import (
    BLOCKS,
    CAUSES,
    LEAVING,
    SCHEDULING,
    STATES,
    diagnose,
    read_blocks,
    read_history,
    read_queue,
    read_tokens,
)

# Exit status 99 has a job run again, 100 keeps it in the queue in error (sge_shepherd(8)). The true one is in the
# driver's status file. Signals that the driver catches must not end the shell that waits for it, as all ends with that.
_RUN = (
    'trap : TERM INT HUP XCPU USR1 USR2; /bin/sh "$@"; code=$?; case $code in 99 | 100) code=98 ;; esac; exit "$code"'
)

# ":" in a path ends a host's name, "," the path; "$" begins a variable. None can be quoted.
_OUTPUT = """\
{% if ":" in results or "," in results or "$" in results %}/dev/null\
{% else %}{{ results }}/{{ token }}.$TASK_ID.driver{% endif %}"""

_SILENT = (
    # No connection, or a qmaster that gave up; SGE_ROOT or what lies below is not mounted.
    Meaning(None, "commlib error|using port [0-9]+ on host|gdi request|read qmaster name", Answer.TRANSIENT),
    Meaning(1, "(directory .* doesn't exist|set the environment variable SGE_ROOT)", Answer.TRANSIENT),
)
_LISTED = Meaning(0, r"\A<\?xml [^<]*<job_info\s", Answer.OK)
_DESCRIBED = (*_SILENT, Meaning(0, r"\A=====", Answer.OK), Meaning(1, "do not exist", Answer.ABSENT))
_QUEUE = Command(("qstat", "-xml", "-u", "$user"), outcomes=(*_SILENT, _LISTED))

# What qdel prints of each id, on stdout; exit code 1 where one of them is not there any more.
_DELETED = (
    r"\S+ has (deleted|registered) .*|job \d+ is already in deletion"
    r'|denied: job "\d+" does not exist|job "\d+" task "\d+" does not exist'
)
# What qmod, qhold, qrls and qalter print of each id, on stdout; exit code 1 or 3 where one of them has gone.
_CHANGED = (
    *_SILENT,
    Meaning(
        None,
        r"\A(?:(?:\S+ - (?:un)?suspended job.*|\S+ - job.* is already (?:un)?suspended|modified hold of job.*"
        r"|Modify operation can not be applied on job.* in pending.*|\S+ sets scheduling priority of job .*"
        r'|invalid queue or job ".*"|denied: job ".*" does not exist)\n)+\Z',
        Answer.OK,
    ),
    Meaning(None, "denied: |you do not have the necessary privileges", Answer.PERMANENT),
)


SGE = BatchAdapter(
    name="sge",
    submit=Command(
        (
            *("qsub", "-terse", "-N", "{{ token }}", "-t", "1-{{ count }}", "-wd", "/", "-o", _OUTPUT, "-j", "y"),
            # Without "-b y" qsub would look for options in the driver's text.
            *("-b", "y", "-shell", "n"),
            *(*option("-q", "{{ queue }}", "queue"), *option("-P", "{{ project }}", "project")),
            *option("-l", "h_cpu={{ max_cpu_minutes * 60 }}", "max_cpu_minutes"),
            *option("-l", "h_rt={{ max_wall_minutes * 60 }}", "max_wall_minutes"),
            # Of each core.
            *option("-l", "h_vmem={{ (max_memory_mb / cores) | round(0, 'ceil') | int }}M", "max_memory_mb"),
            *option("-pe", "{{ parallel_environment }}", "cores > 1"),
            "{% if cores > 1 %}{{ cores }}{% endif %}",
            *option("-l", "h=!{{ excluded_host }}", "excluded_host"),
            *("{{ options* }}", "/bin/sh", "-c", _RUN, "samgrid", "{{ driver }}", "{{ token }}"),
        ),
        outcomes=(
            # There was no connection, so nothing was sent.
            Meaning(1, r"commlib error: got select error \(Connection refused\)", Answer.LATER),
            *_SILENT,
            Meaning(0, r"\A[0-9]+\.1-[0-9]+:1\s*\Z", Answer.OK),
            # There are too many jobs at the moment (max_u_jobs, max_jobs); an array counts as one.
            Meaning(None, "jobs are allowed per", Answer.LATER),
            # max_aj_tasks
            Meaning(1, "you tried to submit a job with more than [0-9]+ tasks", Answer.TOO_MANY),
            # A warning, with the job submitted, begins in the same way as a no.
            Meaning(None, "has been submitted", Answer.UNKNOWN),
            Meaning(
                1,
                "Unable to run job: (.*rejected|denied|unknown resource|attribute .* is not a|can't resolve hostname"
                "|error: no suitable queues|the advance reservation id .* is invalid)",
                Answer.PERMANENT,
            ),
            # A JSV's own words (jsv(1)), or what is wrong with it: nothing was sent.
            Meaning(
                1,
                r"\A(?:error: JSV stderr: .*\n)*Unable to run job: (?!.*(qmaster|answer|receiv)).*\n"
                r"(?:JSV stderr is .*\n)*Exiting\.",
                Answer.LATER,
            ),
            Meaning(None, "qsub: (invalid option argument|Wrong)|qsub: unknown option", Answer.PERMANENT),
        ),
    ),
    # The usual name of one whose allocation_rule is $pe_slots.
    parallel_environment="smp",
    # A local job that is alone is an array of one, which numbers its task: a plain job would have no SGE_TASK_ID.
    naming=Naming(submitted=r"(?P<id>\d+)\.1-(?P<last>\d+):1", single="{id}.{n}", element="{id}.{n}", array="{id}"),
    queue=_QUEUE,
    find=_QUEUE,
    status=_QUEUE,
    read_jobs=read_queue,
    # It reads the file, 1.4 s for a million records, whatever it is asked, and needs no qmaster; with -b or -d it would
    # not tell of jobs that never started.
    history=Command(
        ("qacct", "-j", "{{ token }}"),
        outcomes=(
            *_SILENT,
            Meaning(0, r"\A=====", Answer.OK),
            # Without a file, nothing has ended since it was started anew.
            Meaning(1, r"\Aerror: job name \S+ not found|accounting: No such file or directory", Answer.ABSENT),
        ),
        timeout=180,
    ),
    read_history=read_history,
    cancel=Command(
        ("qdel", "{{ ids* }}"),
        outcomes=(
            *_SILENT,
            Meaning(None, rf"\A(?:(?:{_DELETED})\n)+\Z", Answer.OK),
            Meaning(1, "you do not have the necessary privileges", Answer.PERMANENT),
        ),
    ),
    suspend=Command(("qmod", "-sj", "{{ ids* }}"), outcomes=_CHANGED),
    resume=Command(("qmod", "-usj", "{{ ids* }}"), outcomes=_CHANGED),
    hold=Command(("qhold", "{{ ids* }}"), outcomes=_CHANGED),
    release=Command(("qrls", "{{ ids* }}"), outcomes=_CHANGED),
    # From 0 down; more is for operators.
    priority=Command(("qalter", "-p", "{{ priority }}", "{{ ids* }}"), outcomes=_CHANGED),
    # The scheduler's own words; qalter -w p says less, and works on no single task.
    analyze=Command(("qstat", "-j", "{{ array }}"), outcomes=_DESCRIBED),
    read_analysis=SCHEDULING,
    states=STATES,
    causes=CAUSES,
    leaving=LEAVING,
    blocks=BLOCKS,
    why=Command(("qstat", "-j", "{{ array }}"), outcomes=_DESCRIBED),
    read_why=read_blocks,
    # A name can be changed, by a JSV, too, but not what qsub was told to run (qalter(1)).
    tokens=Command(("qstat", "-j", "{{ ids | join(',') }}"), outcomes=_DESCRIBED),
    read_tokens=read_tokens,
    local_id_words="$JOB_ID.$SGE_TASK_ID",
    index_words="$SGE_TASK_ID",
    job_folder_words="$TMPDIR",
    event_module="sge",
    array_limit=Command(("qconf", "-sconf"), outcomes=(*_SILENT, Meaning(0, "(?m)^max_aj_tasks ", Answer.OK))),
    # 0 is no limit.
    read_array_limit=r"(?m)^max_aj_tasks +(?:0|([0-9]+))$",
    # No more tasks of one array run at a time (max_aj_instances), where the site has not changed it.
    max_array=2000,
    # Queue, load, used, reserved, available, total and, behind these, what cannot be used now.
    slots=Command(("qstat", "-g", "c"), outcomes=(*_SILENT, Meaning(0, r"\ACLUSTER QUEUE ", Answer.OK))),
    read_slots=r"(?m)^\S+ +\S+ +\d+ +\d+ +(?P<free>\d+) +(?P<total>\d+) +\d+ +\d+ *$",
    version=Command(("qstat", "-help"), outcomes=(Meaning(0, r"\A\S*GE ", Answer.OK),)),
    # What the qmaster has received it shows in its next answer; history is written every flush_time, 15 s by default.
    settle_time=60,
    # Where the cell is, is not among them: SGE_ROOT, SGE_CELL, SGE_QMASTER_PORT, SGE_EXECD_PORT, SGE_ARCH.
    ignored_variables=(
        *("MORE_INFO", "SGE_COMMLIB_DEBUG", "SGE_DEBUG_", "SGE_DELAY_", "SGE_ENABLE_MSG_ID", "SGE_LONG_"),
        *("SGE_QACCT_", "SGE_QSTAT_", "SGE_SINGLE_LINE", "SGE_TEST_", "SGE_TIMELOG"),
    ),
    diagnose=diagnose,
)
