"""What ``samgrid doctor`` finds in Grid Engine's configuration."""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import Ask, Finding, Level

_CONFIGURE = "run qconf -mconf as Grid Engine's administrator, and write"
_WANTED = "reporting_params accounting=true reporting=true flush_time=00:00:01 joblog=true sharelog=00:00:00"
_LATE = 5
"""Seconds that events may be late without a word."""
_WITHOUT_RERUNS = 'write options = ["-r", "n"] into [batch.sge] of samgrid.toml'


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the reporting file and the accounting file tell all, and what would have jobs run again (sge_conf(5))."""
    settings = _read_settings(ask(["qconf", "-sconf"]).stdout)
    # That nobody answers is found for every batch system alike.
    if settings:
        yield from _diagnose_reporting(settings)
        yield from _diagnose_reruns(settings, ask)
    yield from _diagnose_defaults(ask, environment)


def _read_settings(printed: str) -> dict[str, str]:
    """Name and value of each line; a line that ends in a backslash goes on."""
    return dict(re.findall(r"(?m)^([a-z]\w*) +(.*?) *$", re.sub(r"\\\n\s*", "", printed)))


def _diagnose_reporting(settings: Mapping[str, str]) -> Iterator[Finding]:
    params = dict(re.findall(r"(\w+)=([^\s,]+)", settings.get("reporting_params", "")))
    off = [name for name in ("reporting", "joblog") if params.get(name, "").lower() not in ("true", "1")]
    seconds = _read_seconds(params.get("flush_time", "15"))
    if off:
        text = f"Grid Engine's reporting file does not tell of jobs ({' and '.join(off)} off): their ends come late."
        yield Finding(Level.FAULT, text, f"{_CONFIGURE} {_WANTED}")
    elif not 0 < seconds <= _LATE:
        late = f"{seconds} s" if seconds else "a minute"
        text = f"Grid Engine's reporting file is written with a delay of up to {late} (flush_time), and so events come."
        yield Finding(Level.WARNING, text, f"{_CONFIGURE} {_WANTED}")
    else:
        yield Finding(Level.GOOD, "Grid Engine's reporting file tells of jobs, and at once.")
    if params.get("accounting", "true").lower() not in ("true", "1"):
        text = "Grid Engine keeps no accounting: a job that has left the queue has no second witness of its end."
        yield Finding(Level.FAULT, text, f"{_CONFIGURE} {_WANTED}")
    else:
        yield Finding(Level.GOOD, "Grid Engine's accounting file keeps the ends of jobs until somebody rotates it.")


def _diagnose_reruns(settings: Mapping[str, str], ask: Ask) -> Iterator[Finding]:
    queues = re.split(r"(?m)^(?=qname )", ask(["qconf", "-sq", "*"]).stdout)
    rerun = [queue.split()[1] for queue in queues if re.search(r"(?m)^rerun +.*TRUE", queue)]
    if rerun:
        text = f"Jobs in the queues {', '.join(rerun)} are started again after their node was lost (rerun TRUE)."
        yield Finding(Level.WARNING, text, f"where a program must not run twice, {_WITHOUT_RERUNS}")
    unknown = settings.get("reschedule_unknown", "0")
    if _read_seconds(unknown):
        text = (
            f"Rerunnable jobs of a node that is silent for {unknown} (reschedule_unknown) are started elsewhere,"
            " though they may run on."
        )
        yield Finding(Level.WARNING, text, f"{_CONFIGURE} reschedule_unknown 00:00:00; or {_WITHOUT_RERUNS}")


def _diagnose_defaults(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """The files of default options (sge_request(5)), which hold for what we submit, too."""
    cell = f"{environment.get('SGE_ROOT', '')}/{environment.get('SGE_CELL') or 'default'}"
    for path in (f"{cell}/common/sge_request", f"{environment.get('HOME', '')}/.sge_request"):
        lines = [line for line in ask(["cat", path]).stdout.splitlines() if not line.startswith("#")]
        if "-V" in " ".join(lines).split():
            text = f"{path} has every job inherit the whole environment of its submitter (-V), with secrets in it."
            yield Finding(Level.WARNING, text, f"take -V out of {path}")


def _read_seconds(time: str) -> int:
    """Of ``HH:MM:SS`` or a number of seconds; 0 where it is neither."""
    seconds = 0
    for part in time.split(":"):
        seconds = seconds * 60 + (int(part) if part.isdecimal() else 0)
    return seconds
