"""A batch system for tests: one program on disk that answers what files beside it say, and writes down its calls."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobmanager.site.account import Account
from jobmanager.site.settings import SiteSettings

_PROGRAM = """#!/bin/sh
cd '{folder}' || exit 99
echo "$*" >>calls
for last; do :; done
[ "$1" != submit ] || [ ! -e runs ] || /bin/sh "$2"
[ ! -s "$1" ] || sed "s/@/$last/g" "$1"
code=0
[ ! -e "$1.code" ] || read -r code <"$1.code"
exit "$code"
"""
SILENT, NO = 7, 9


class BatchProgram:
    """The batch system ``fake``: of each command, what it prints (``@``: its last argument) and its exit code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "fakebatch"
        self.program.write_text(_PROGRAM.format(folder=folder))
        self.program.chmod(0o700)

    def answer(self, command: str, text: str = "", code: int = 0) -> None:
        """What the next calls of a command print and return."""
        (self.folder / command).write_text(text)
        (self.folder / f"{command}.code").write_text(f"{code}\n")

    def run_what_is_submitted(self) -> None:
        """From now on the driver runs while it is submitted."""
        (self.folder / "runs").touch()

    def calls(self, command: str = "") -> list[str]:
        """The arguments of each call of a command, or of all."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(command)]

    def table(self, **changes: Any) -> dict[str, Any]:
        """Its ``[batch.fake]``; what is changed to None is left out."""
        table = {
            "submit": self._command("submit", "{{ driver }}", "{{ token }}"),
            "queue": self._command("queue"),
            "find": self._command("find", "{{ token }}"),
            "status": self._command("status", "{{ id }}"),
            "cancel": self._command("cancel", "{{ ids* }}"),
            "history": self._command("history", "{{ token }}"),
            "version": self._command("version"),
            "analyze": self._command("analyze", "{{ id }}"),
            "naming": {"submitted": r"(?P<id>\d+)", "single": "{id}.1", "element": "{id}.{n}", "array": "{id}"},
            "jobs": r"(?P<id>\S+) (?P<state>\w+) (?P<token>\S+)(?: (?P<exit>\d+))?(?: \((?P<reason>.*)\))?",
            "ended": r"(?P<id>\S+) (?P<state>\w+) (?P<token>\S+)(?: (?P<exit>\d+))?(?: \((?P<reason>.*)\))?",
            "states": {"WAITS": "pending", "RUNS": "active", "ENDED": "done", "BROKE": "failed"},
            "local_id_words": "$FAKE_ID",
            "index_words": "$FAKE_INDEX",
            "settle_time": 0,
            "commands_per_minute": 1000,
            **changes,
        }
        return {key: value for key, value in table.items() if value is not None}

    def _command(self, *words: str) -> Mapping[str, Any]:
        outcomes = [
            {"exit_code": 0, "answer": "ok"},
            {"exit_code": SILENT, "answer": "transient"},
            {"exit_code": NO, "answer": "permanent"},
        ]
        return {"argv": [str(self.program), *words], "outcomes": outcomes, "attempts": 1}


def use(account: Account, program: BatchProgram, **changes: Any) -> Account:
    """The account, with that batch system as its configured one."""
    tables = {"fake": program.table(**changes)}
    site = SiteSettings(batch_system="fake")
    return replace(account, configuration=replace(account.configuration, site=site, batch=tables))
