"""The generator's module for the embedded batch system; it reads the log of Globus' own fork starter as well."""

from collections.abc import Mapping
from pathlib import Path

from batch_adapters.generator.module import LogModule, LogNotKnown, ReadyLines


def find_log(environment: Mapping[str, str]) -> Path:
    """The account's own spool: ``$SAMGRID_STATE/fork/events``, else below the XDG state folder."""
    if state := environment.get("SAMGRID_STATE"):
        return Path(state) / "fork" / "events"
    if xdg := environment.get("XDG_STATE_HOME"):
        return Path(xdg) / "samgrid" / "fork" / "events"
    if home := environment.get("HOME"):
        return Path(home) / ".local" / "state" / "samgrid" / "fork" / "events"
    raise LogNotKnown("the fork log is not known: set SAMGRID_STATE, or name it with --log PATH")


FORK = LogModule(name="fork", find_log=find_log, new_parser=ReadyLines, file_name="events")
