"""Lets the time of a batch command be up when it has come to hang, and not before, however slow the machine is."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import sh

from batch_adapters.running import commands as running
from tests.waiting import SECONDS

_OFTEN = 0.01


def give_up_what_hangs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Give up those commands, and none else, that leave a file ``hangs.PID`` in that folder."""
    real_wait = running._wait
    current = threading.local()

    class Timer(threading.Timer):
        def __init__(self, interval: float, function: Callable[[], object]) -> None:
            super().__init__(SECONDS, function)
            self._hangs = folder / f"hangs.{current.pid}"

        def run(self) -> None:
            rounds = int(self.interval / _OFTEN)
            while rounds and not self._hangs.exists() and not self.finished.wait(_OFTEN):
                rounds -= 1
            if not self.finished.is_set():
                self.function()

    def wait(command: sh.RunningCommand, program: str, timeout: float) -> int:
        current.pid = command.pid
        return real_wait(command, program, timeout)

    monkeypatch.setattr(running, "threading", SimpleNamespace(Event=threading.Event, Timer=Timer))
    monkeypatch.setattr(running, "_wait", wait)
