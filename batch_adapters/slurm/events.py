"""The generator's module for Slurm: it reads slurmctld.log (SlurmctldDebug=info) or the log of jobcomp/filetxt.

Which of the two it is, the first records tell. An event's id is what sbatch prints and ``squeue -o %i`` shows: ``2``,
an array's task ``10_3`` (never its raw id 13). Any LogTimeFormat will do but ``clock``, which has no date; those
without an offset are local time.

slurmctld.log tells all but this, for which the queue has to be asked:

- An array's size is nowhere. Its submission is one event of the bare id ``10``, a task is heard of when it starts.
  Where the whole array is cancelled, each task heard of gets its event, and the bare id gets one that stands for all
  those not heard of. Where some are (``10_[2-5]``, which is how ``scancel -u USER`` names those that wait), each gets
  its event, up to 10 000 of them, also one that the array never had. Cancelling a task by its raw id gives none.
- A cancelled job has no line of its end, only of the request, which is logged before Slurm looks whether the job
  exists, whose it is and which signal is meant. So it is a cancellation (FAILED) for jobs known to be alive only, and
  is taken back (PENDING, then the state before) when the refusal follows. A job that ends by itself after all was only
  sent a signal (``scancel -s``): it gets PENDING, then its end. So this FAILED is certain only once the queue says the
  same. A job submitted long before the generator started is not known to be alive: no event.
- Held is PENDING: hold and release are no events. What a controller forgot when it was killed is not logged.
- A controller's ``done`` without the exit code before it (at the very start of a log) is no event.

jobcomp/filetxt has ends only, and none of a single pending task that was cancelled; there NODE_FAIL and PREEMPTED are
no events, because nothing tells whether the job was queued again.

User text: a line is matched from its stamp to its newline, and none of those matched holds any. But Slurm is not seen
to escape anything: who gets a newline into a text that is logged writes lines of his own. In jobcomp/filetxt the job's
name is such a text, for every user: a record that begins inside another is passed over, but a name that first completes
its own record cannot be told from two jobs. Where users are not trusted, slurmctld.log, without names, is the one.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, Parser
from batch_adapters.slurm.completion_log import RECORD, START, CompletionLog
from batch_adapters.slurm.controller_log import STAMPED, ControllerLog

_CONFIGURED = re.compile(r"^[ \t]*SlurmctldLogFile[ \t]*=[ \t]*([^\s#]+)", re.MULTILINE | re.IGNORECASE)


class SlurmLog(Parser):
    """Reads whichever of the two logs it is given."""

    def __init__(self) -> None:
        self._log: Parser | None = None

    def read_events(self, block: bytes) -> bytes:
        """The events of the block; see this module's text for what they are."""
        if self._log is None:
            self._log = _find_kind(block)
        return self._log.read_events(block) if self._log else b""

    def read_time(self, block: bytes) -> int | None:
        """When the first line was written, or the first record's job ended."""
        log = self._log or _find_kind(block)
        return log.read_time(block) if log else None


def _find_kind(block: bytes) -> Parser | None:
    stamped, start = STAMPED.search(block), START.search(block)
    # Whoever may submit a job can put lines of slurmctld.log into the completions.
    if start and (stamped is None or start.start() < stamped.start() or RECORD.search(block)):
        return CompletionLog()
    return ControllerLog() if stamped else None


def find_log(environment: Mapping[str, str]) -> Path:
    """The ``SlurmctldLogFile`` of ``$SLURM_CONF``, by default /etc/slurm/slurm.conf."""
    settings = Path(environment.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    try:
        found = _CONFIGURED.search(settings.read_text(errors="replace"))
    except OSError as error:
        raise LogNotKnown(f"Slurm's log is not known ({error}): set SLURM_CONF, or name it with --log PATH") from error
    if found is None:
        raise LogNotKnown(f"{settings} has no SlurmctldLogFile: name the log with --log PATH")
    return Path(found[1].strip('"'))


SLURM = LogModule(name="slurm", find_log=find_log, new_parser=SlurmLog, file_name="slurmctld.log")
