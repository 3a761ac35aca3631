"""HTCondor's own reader of event logs as a generator: prints what ``samgrid-scheduler-event-generator -s condor`` does.

``job_event_log.py read LOG`` prints the events that are there, ``follow LOG`` also those that are appended. Both stay
until standard input ends.
"""

import os
import sys
import threading
from typing import Any

import htcondor2

_STATES = {0: 1, 1: 2, 4: 1, 5: 8, 7: 1, 9: 4, 10: 16, 11: 2, 12: 16, 13: 1, 23: 2, 24: 1}


def render_event(event: Any, state: int) -> str:
    """The event's 001 line."""
    code = 0
    if state == 8:
        code = event["ReturnValue"] if event["TerminatedNormally"] else 128 + event["TerminatedBySignal"]
    return f"001;{event.timestamp};{event.cluster}.{event.proc};{state};{code}\n"


def write_events(path: str, follow: bool) -> None:
    """Print the events in the log; where they are followed, each at once."""
    for event in htcondor2.JobEventLog(path).events(stop_after=None if follow else 0):
        state = _STATES.get(int(event.type))
        if state is not None:
            sys.stdout.write(render_event(event, state))
            if follow:
                sys.stdout.flush()
    sys.stdout.flush()


if __name__ == "__main__":
    threading.Thread(target=write_events, args=(sys.argv[2], sys.argv[1] == "follow"), daemon=True).start()
    while os.read(0, 4096):
        pass
    os._exit(0)
