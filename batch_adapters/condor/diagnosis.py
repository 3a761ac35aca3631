"""What ``samgrid doctor`` finds in HTCondor's configuration."""

from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import Ask, Finding, Level

_FILE = "into a file in HTCondor's config.d folder, and run condor_reconfig as its administrator"
_BYTES_OF_JOB_IN_LOG = 1500
_BYTES_OF_JOB_IN_HISTORY = 4000
_ENOUGH_JOBS = 10_000
"""Jobs that may end while nobody reads: one grid job's, as large as they come."""


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the event log and the history tell all, and for long enough; condor_config_val is asked."""
    del environment
    yield from _diagnose_account(ask)
    try:
        yield from _diagnose_log(ask)
        yield from _diagnose_history(ask)
    except _NotTold as error:
        text = f"condor_config_val does not tell HTCondor's configuration: {error}"
        yield Finding(Level.WARNING, text, "see that it runs on this host, and reads HTCondor's configuration")


class _NotTold(Exception):
    """Nobody says how something is set, which is not to say that it is not set."""


def _diagnose_account(ask: Ask) -> Iterator[Finding]:
    if ask(["id", "-u"]).stdout.strip() == "0":
        yield Finding(Level.FAULT, "HTCondor takes no jobs from root.", "use an ordinary account")


def _diagnose_log(ask: Ask) -> Iterator[Finding]:
    if not _setting(ask, "EVENT_LOG"):
        text = "HTCondor writes no event log: the ends of local jobs are found by asking, half a minute late."
        yield Finding(Level.FAULT, text, f"write EVENT_LOG = $(LOG)/EventLog {_FILE}")
        return
    rotations = _number(ask, "EVENT_LOG_MAX_ROTATIONS", 1)
    jobs = _number(ask, "EVENT_LOG_MAX_SIZE", 1_000_000) * rotations // _BYTES_OF_JOB_IN_LOG
    if rotations and jobs < _ENOUGH_JOBS:
        yield Finding(
            Level.WARNING,
            f"The event log is thrown away after the events of about {jobs} jobs, which may be before they are read.",
            f"write EVENT_LOG_MAX_SIZE = 50000000 and EVENT_LOG_MAX_ROTATIONS = 3 {_FILE}",
        )
    else:
        yield Finding(Level.GOOD, "The event log is written, and kept for long enough.")
    options = _setting(ask, "EVENT_LOG_FORMAT_OPTIONS").upper()
    if "UTC" not in options or not ({"ISO_DATE", "XML", "JSON"} & set(options.replace(",", " ").split())):
        yield Finding(
            Level.WARNING,
            "The event log's times have no time zone: in the hour that summer time repeats, they are not certain.",
            f"write EVENT_LOG_FORMAT_OPTIONS = ISO_DATE UTC SUB_SECOND {_FILE}, while no job is in the queue",
        )


def _diagnose_history(ask: Ask) -> Iterator[Finding]:
    if not _setting(ask, "HISTORY"):
        text = "HTCondor keeps no history: a job that has left the queue has no second witness of its end."
        yield Finding(Level.FAULT, text, f"write HISTORY = $(SPOOL)/history {_FILE}")
        return
    files = _number(ask, "MAX_HISTORY_ROTATIONS", 2)
    jobs = _number(ask, "MAX_HISTORY_LOG", 20 * 1024 * 1024) * files // _BYTES_OF_JOB_IN_HISTORY
    if jobs < _ENOUGH_JOBS and _setting(ask, "ENABLE_HISTORY_ROTATION").lower() not in ("false", "0"):
        yield Finding(
            Level.WARNING,
            f"HTCondor's history forgets a job after about {jobs} others have ended.",
            f"write MAX_HISTORY_LOG = 50000000 and MAX_HISTORY_ROTATIONS = 3 {_FILE}",
        )
    else:
        yield Finding(Level.GOOD, "HTCondor's history outlasts the interval in which we look.")


def _setting(ask: Ask, name: str) -> str:
    """What the configuration says; empty where it says nothing.

    :raises _NotTold: it could not be asked.
    """
    answer = ask(["condor_config_val", name])
    if answer.exit_code == 0:
        return answer.stdout.strip()
    if f"Not defined: {name}" in answer.stdout + answer.stderr:
        return ""
    raise _NotTold((answer.stderr or answer.stdout).strip()[:300])


def _number(ask: Ask, name: str, default: int) -> int:
    text = _setting(ask, name)
    return int(text) if text.isdigit() else default
