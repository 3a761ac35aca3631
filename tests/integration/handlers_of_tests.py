"""Job types that the tests run."""

import subprocess
import sys
import time
from pathlib import Path

from adapters import EVENTS, SLICING, Attribute, JobAdapter, PlannedJob
from handlers.command import CommandAdapter


class Generator(JobAdapter):
    """Prints its slice; in the folder ``marks`` local job N leaves a mark, and fails while there is a file failN."""

    jobType = "generator"
    requestIdAttribute = "request_id"
    attributes = (EVENTS, *SLICING, Attribute("request_id", "Its id."), Attribute("marks", "Folder.", default=""))

    def prepareWorkArea(self, workArea: Path) -> None:
        (workArea / "run.sh").write_text(
            'echo "$SAMGRID_INDEX of $SAMGRID_LOCAL_JOBS: $SAMGRID_FIRST_EVENT $SAMGRID_EVENTS $SAMGRID_SEED"; '
            '[ -z "$1" ] || echo run >>"$1/$SAMGRID_INDEX"; [ ! -e "$1/fail$SAMGRID_INDEX" ]'
        )

    def getCommandAndArguments(self, localJob: PlannedJob) -> list[str]:
        return ["/bin/sh", "run.sh", self.request["marks"]]


class Reader(CommandAdapter):
    """Starts a program that reads its standard input to the end."""

    jobType = "reader"

    def prepareWorkArea(self, workArea: Path) -> None:
        subprocess.run(["cat"], check=True)


class Leaver(CommandAdapter):
    """Ends its process."""

    jobType = "leaver"

    def prepareWorkArea(self, workArea: Path) -> None:
        sys.exit(0)


class Endless(CommandAdapter):
    """Touches the file that its first argument names, and does not come back."""

    jobType = "endless"

    def prepareWorkArea(self, workArea: Path) -> None:
        Path(self.request["arguments"][0]).touch()
        time.sleep(3600)
