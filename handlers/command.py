"""Job type ``command``: runs any program, once or many times."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from adapters import SWEEP, Attribute, JobAdapter, Kind, PlannedJob, RequestFile, TooLarge, check_sizes, copy_files
from handlers.inputs import check_file

RESERVED_NAMES = ("output", ".samgrid")
"""Names in a local job's scratch folder that the request's files must not have."""

_SHELLS = {"sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh"}
_VARIABLE = re.compile(r"\$\{?SAMGRID_\w+\}?")


class CommandAdapter(JobAdapter):
    """Runs a program that is installed at the site, or one that travels with the request."""

    jobType = "command"
    attributes = (
        Attribute("executable", "The program: absolute where the site has it, else a file named beside the request.",
                  Kind.FILE, required=True),
        Attribute("arguments", "The program's arguments.", Kind.WORDS, default=()),
        Attribute("count", "How many times the program runs.", Kind.INTEGER, "local jobs", default=1, minimum=1),
        Attribute("input_files", "Files that every local job finds in its folder: under their name as written, or "
                  "under the last part of an absolute one.", Kind.FILES, default=()),
        *SWEEP,
    )  # fmt: skip

    def checkErrors(self) -> Iterable[str]:
        program: RequestFile = self.request["executable"]
        faults = [*check_file("executable", program), *_check_program(program)]
        for file in self.request["input_files"]:
            faults += check_file("input file", file)
        files = self._travelling_files()
        return [*faults, *_check_names(files), *check_sizes(files, self.site.limits)]

    def findWarnings(self) -> Iterable[str]:
        """Warn of SAMGRID variables that no shell will expand."""
        words: Sequence[str] = self.request["arguments"]
        if _SHELLS & {os.path.basename(word) for word in (self.request["executable"].name, *words)}:  # noqa: PTH119
            return []
        return [
            f"arguments: no shell expands {found[0]}, and the program gets it as it stands: let a shell run it, as in"
            ' (executable = /bin/sh)(arguments = -c "program $SAMGRID_INDEX"), or look for the variable in the program'
            for found in map(_VARIABLE.search, words)
            if found
        ][:1]

    def getNumSubmissionTimes(self) -> int:
        count: int = self.request["count"]
        most = self.site.limits.max_local_jobs
        if count > most:
            raise TooLarge(f"count asks for {count} local jobs, but this site takes at most {most}: ask for fewer")
        return count

    def prepareWorkArea(self, workArea: Path) -> None:
        targets = {workArea / _sandbox_name(file): file.path for file in self._travelling_files()}
        copy_files([(source, target) for target, source in targets.items()], self.site.limits)

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        # The same for every local job: SAMGRID_INDEX tells them apart.
        program: RequestFile = self.request["executable"]
        word = f"./{_sandbox_name(program)}" if program.travels else program.name
        return [word, *self.request["arguments"]]

    def _travelling_files(self) -> list[RequestFile]:
        program: RequestFile = self.request["executable"]
        inputs: tuple[RequestFile, ...] = self.request["input_files"]
        return [program, *inputs] if program.travels else list(inputs)


def _sandbox_name(file: RequestFile) -> PurePosixPath:
    name = PurePosixPath(file.name)
    return name if file.travels else PurePosixPath(name.name)


def _check_program(program: RequestFile) -> list[str]:
    if not os.path.lexists(program.path) and "/" not in program.name:
        from shutil import which  # imported late: GRAM waits for this module at its first submit

        if found := which(program.name):
            return [f"executable: a program of the site is named by its whole path, as in (executable = {found})"]
    if os.path.isfile(program.path) and not os.access(program.path, os.X_OK):  # noqa: PTH113 never raises
        return [f"executable {program.name!r} is not executable: set its x permission (chmod +x)"]
    return []


def _check_names(files: Iterable[RequestFile]) -> list[str]:
    faults = []
    sources: dict[PurePosixPath, Path] = {}
    for file in files:
        name = _sandbox_name(file)
        if name.parts and name.parts[0] in RESERVED_NAMES:
            faults.append(f"file {file.name!r} cannot travel under its name: {name.parts[0]!r} is the job manager's")
        if os.path.isfile(file.path) and not os.access(file.path, os.R_OK):  # noqa: PTH113
            faults.append(f"file {file.name!r} cannot be read")
        if sources.setdefault(name, file.path) != file.path:
            faults.append(f"two files of the request would travel under the name {str(name)!r}")
    return faults
