"""The generator's module for PBS: reads the server's log, one file a day, of OpenPBS, PBS Professional and Torque.

Ids are as qsub prints and qstat takes them: ``12.server``, for arrays ``18[3].server`` and the parent ``18[].server``.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from batch_adapters.generator.local_time import LocalStamps
from batch_adapters.generator.module import LogModule, LogNotKnown, Parser, forget_oldest
from batch_adapters.states import Cause

if TYPE_CHECKING:
    from batch_adapters.pbs.array_ends import ArrayEnds

# MM/DD/YYYY HH:MM:SS[.uuuuuu];MASK;SERVER;CLASS;OBJECT;TEXT. The mask is ignored: it says how much the server logs,
# not what. Possessive repeats, and [^;] rather than the slower [^;\n], because most time is spent on lines without an
# event. Yet a truncated line does not swallow the next one, because a mask must follow the first field.
# (No possessive repeat contains a capturing group: Python before 3.11.5 has a bug there.)
_EVENT = re.compile(
    rb"\n(.{19})(?:\.[0-9]++)?+;[0-9a-f]++;[^;]*+;"
    rb"(?:Job;([0-9][^;]*+);"
    rb"(?:Exit_status=(-?[0-9]{1,9}+)(?=[ \n])"
    rb"|(Job (?:Queued|Run|Rerun|to be deleted)(?= at request of )|Job (?:deleted|sent signal)(?= )|Job requeued(?=, )"
    rb"|job signaled with (?:admin-)?(?:suspend|resume)(?= by )|Obit received(?= )"
    rb"|dequeuing(?= from [^,\n]*+, state F\n)|enqueuing(?= into [^,\n]*+, state F )"
    rb"|Dependency request for job rejected|[0-9]++[^ ;\n]*+ Finished job did not satisfy dependency))"
    rb"|Req;req_commit;job_id: ([0-9][^;\s]*+))"
)
# The line before names the user: request 6 deletes one job, 100 (OpenPBS) a list.
_DELETION = re.compile(
    rb"^(?:(?:.{19}[^;\n]*;[0-9a-f]+;[^;\n]*;Req;;Type (?:6|100) request received from ([^@\n]+)@.*\n)?"
    rb".{19}[^;\n]*;[0-9a-f]+;[^;\n]*;Job;([0-9]+\[[0-9][-0-9:,]*\][^;\n]*);delete job request received$"
    rb"|.{19}[^;\n]*;[0-9a-f]+;[^;\n]*;Job;([0-9][^;@\n]*)(?:@[^;\n]*)?;(?:Job to be deleted at request of ([^@\n]+)"
    rb"|Job deleted as result of dependency on job |Dependency request for job rejected"
    rb"|[0-9]+[^ ;\n]* Finished job did not satisfy dependency))",
    re.MULTILINE,
)
_ELEMENTS = re.compile(rb"([0-9]+)\[([-0-9:,]+)\](.*)")
_DATED = re.compile(rb"^([0-9/]{10} [0-9:]{8})[.;]", re.MULTILINE)

_PENDING, _ACTIVE, _SUSPENDED, _FAILED, _DONE = b";1;0\n", b";2;0\n", b";16;0\n", b";4;0\n", b";8;0\n"
_MOST_STARTED = 50_000
_SIGNALLED = 128
"""From here on an exit status means a signal: its number plus 128 (by the shell) or 256 (by the server)."""


# The progress of a job that was started or deleted. Its host reports its end, and the exit status follows; the last: in
# this order. No enum, because Python 3.11 looks its members up slowly: that was an eighth of the parser's time.
_STARTED, _ENDED, _DELETED, _ENDED_AND_DELETED = range(1, 5)


class ServerLog(Parser):
    """Reads a server's log.

    The line with the exit status does not say why a job ended, so the parser remembers (for the latest 50 000 jobs that
    were started or deleted) whether somebody asked to delete it: then any exit status means a cancellation, unless its
    host had reported the end before and it was not by a signal. A job that was not started, or is no longer remembered,
    ends with its deletion. If the host of a job is lost, the log has Exit_status=-20 first, and then, if the job may
    run again, that it is queued.

    An array's parent becomes ACTIVE with its first subjob. If it is deleted, it is FAILED at once, and so are its
    waiting subjobs, which have no lines of their own. Otherwise it ends when the server removes it from its queue, DONE
    with 0 whatever the subjobs' exit codes were, as in PBS' own accounting. A server that keeps a history logs this
    only when it is restarted, and no line gives the number of subjobs. So PBS is asked (`ask`) when none of them runs.
    """

    def __init__(self) -> None:
        """A parser without any memory; the log's times are in the zone of this process."""
        self._stamps = LocalStamps("mm/dd/YYYY HH:MM:SS")
        self._stages: dict[bytes, int] = {}
        self._array_ends: ArrayEnds | None = None
        """Set by the first `ask`."""

    def read_events(self, block: bytes) -> bytes:
        """The events in a block of whole lines; see `Parser`."""
        parts: list[bytes] = []
        stages = self._stages
        latest = head = b""
        for stamp, local_id, exit_code, text, committed in _EVENT.findall(b"\n" + block):
            if stamp != latest:
                latest = stamp
                head = b"001;%b;" % self._stamps[stamp]
            if exit_code:
                failed = _has_failed(stages.pop(local_id, None), int(exit_code))
                if self._array_ends and b"[" in local_id:
                    self._array_ends.note_end(_array_of(local_id), local_id)
                parts += (head, local_id, b";4;" if failed else b";8;", exit_code, b"\n")
            elif text == b"Job Queued":
                stages.pop(local_id, None)
                parts += (head, local_id, _PENDING)
            elif text == b"Obit received":
                if stages.get(local_id) == _STARTED:
                    stages[local_id] = _ENDED
            elif b"[" in local_id:
                parts += self._read_array(head, local_id, text)
            elif text == b"Job Run":
                self._start(local_id)
                parts += (head, local_id, _ACTIVE)
            else:
                # Only an object that a dependency names has "@server" behind its id.
                parts += self._read_change(head, committed or local_id.partition(b"@")[0], text)
        forget_oldest(self._stages, _MOST_STARTED)
        return b"".join(parts)

    def _start(self, local_id: bytes) -> None:
        # After the death of a node only a second start is logged.
        if self._stages.get(local_id, _ENDED) == _ENDED:
            self._stages[local_id] = _STARTED

    def _read_array(self, head: bytes, local_id: bytes, text: bytes) -> tuple[bytes, ...]:
        parent = _array_of(local_id)
        if self._array_ends:
            self._note_array(self._array_ends, parent, local_id, text)
        if text == b"Job Run" and parent not in self._stages:
            self._start(parent)
            return (head, parent, _ACTIVE, *self._read_change(head, local_id, text))
        if parent == local_id and text == b"dequeuing":
            return () if self._stages.pop(parent, None) == _DELETED else (head, parent, _DONE)
        if parent == local_id and text == b"enqueuing":
            return (head, parent, _DONE) if self._stages.pop(parent, None) == _STARTED else ()
        if parent == local_id and text == b"Job to be deleted":
            is_known = self._stages.get(parent) == _DELETED
            self._stages[parent] = _DELETED
            return () if is_known else (head, parent, _FAILED)
        return self._read_change(head, local_id.partition(b"@")[0], text)

    def _note_array(self, ends: "ArrayEnds", parent: bytes, local_id: bytes, text: bytes) -> None:
        if text == b"Job Run":
            ends.note_start(parent, local_id)
        elif parent == local_id:
            ends.forget(parent)
        else:
            ends.note_end(parent, local_id)

    def ask(self) -> bytes:
        """The ends of arrays that are not logged, with the current time."""
        if self._array_ends is None:
            # Most generators never ask.
            from batch_adapters.pbs.array_ends import ArrayEnds

            self._array_ends = ArrayEnds()
        ended = self._array_ends.ask()
        for array in ended:
            self._stages.pop(array, None)
        return b"".join(b"001;0;%b%b" % (array, _DONE) for array in ended)

    def _read_change(self, head: bytes, local_id: bytes, text: bytes) -> tuple[bytes, ...]:
        stage = self._stages.get(local_id)
        match text:
            case b"Job Run" | b"job signaled with resume" | b"job signaled with admin-resume":
                self._start(local_id)
                return head, local_id, _ACTIVE
            case b"Job sent signal":
                # Precedes the deletion of a running job, even if we have not seen its start.
                self._stages.setdefault(local_id, _STARTED)
                return ()
            case b"Job to be deleted":
                has_ended = stage in (_ENDED, _ENDED_AND_DELETED)
                self._stages[local_id] = _ENDED_AND_DELETED if has_ended else _DELETED
                return () if stage else (head, local_id, _FAILED)
            case b"job signaled with suspend" | b"job signaled with admin-suspend":
                return head, local_id, _SUSPENDED
            case b"dequeuing" | b"enqueuing":
                # The history of a finished job expires, or a server that starts reads it again.
                return ()
            case b"Job Rerun" | b"Job requeued" | b"":
                self._stages.pop(local_id, None)
                return head, local_id, _PENDING
            case _:
                self._stages[local_id] = _DELETED
                return head, local_id, _FAILED

    def read_time(self, block: bytes) -> int | None:
        """The time of the first line with a valid one."""
        stamps = (self._stamps[found[1]] for found in _DATED.finditer(block))
        return next((int(stamp) for stamp in stamps if stamp), None)


def _array_of(local_id: bytes) -> bytes:
    number, _, rest = local_id.partition(b"[")
    return b"%b[]%b" % (number, rest.partition(b"]")[2])


def _has_failed(stage: int | None, exit_code: int) -> bool:
    if stage == _ENDED_AND_DELETED and exit_code >= _SIGNALLED:
        return True
    # A negative code: the server or the execution host ended the job.
    return stage == _DELETED or exit_code < 0


def read_deletions(block: bytes) -> Iterator[tuple[bytes, bytes | Cause]]:
    """Who deleted which job, or that its dependency could not be met.

    For waiting elements only the request is logged, perhaps one for many of them. A second deletion ends nothing.
    """
    from batch_adapters.adapter import Garbled, read_range  # no generator needs it

    ended: set[bytes] = set()
    for requester, requested, local_id, user in _DELETION.findall(block):
        if local_id in ended:
            continue
        if local_id:
            ended.add(local_id)
            yield local_id, user or Cause.REFUSED
        elif elements := _ELEMENTS.fullmatch(requested):
            number, numbers, rest = elements.groups()
            for part in numbers.decode().split(","):
                with suppress(Garbled):
                    names = (b"%b[%d]%b" % (number, n, rest) for n in read_range(part))
                    yield from ((name, requester) for name in names if name not in ended)


_HOME = re.compile(r"^\s*(?:export\s+)?PBS_HOME\s*=\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_USUAL_HOMES = (Path("/var/spool/pbs"), Path("/var/spool/torque"))


def find_log(environment: Mapping[str, str]) -> Path:
    """``server_logs`` in ``$PBS_HOME``, else in the home of pbs.conf (``$PBS_CONF_FILE``), else in the usual places.

    :raises LogNotKnown: none of them exists.
    """
    if home := environment.get("PBS_HOME"):
        return Path(home) / "server_logs"
    configuration = Path(environment.get("PBS_CONF_FILE", "/etc/pbs.conf"))
    if configuration.is_file() and (found := _HOME.search(configuration.read_text(errors="replace"))):
        return Path(found[1]) / "server_logs"
    for usual in _USUAL_HOMES:
        if (usual / "server_logs").is_dir():
            return usual / "server_logs"
    raise LogNotKnown(f"PBS' log is not known: no PBS_HOME, none in {configuration}; set it, or name it with --log DIR")


PBS = LogModule(name="pbs", find_log=find_log, new_parser=ServerLog, dated_files=True, read_deletions=read_deletions)
"""The log of the PBS server of this host, ``PBS_HOME/server_logs/YYYYMMDD``."""
