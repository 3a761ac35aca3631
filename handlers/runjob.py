"""Base of the job types that run DØRunjob or similar programs: input is an ini file, progress is in status files.

The request brings the program and all its files; the job manager does not know what the phases do.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from adapters import Attribute, JobAdapter, Kind, PlannedJob, RequestFile, copy_files
from handlers.inputs import DATASETS, READER, NoFiles, check_file, find_dataset, write_lines

INI = "runjob.ini"
PAYLOAD = Path(__file__).parent / "payload" / "runjob.sh"
JOB_FILES, OVERLAY = "jobfiles", "minbias"
_NO_VALUE = re.compile(r"\w+ = ")

RUNJOB_ATTRIBUTES = (
    Attribute("jobfiles_dataset", "Dataset of the experiment's software and data: tar files are unpacked in the local "
              "job's folder, others are put there.", default=""),
    Attribute("jobfiles", "Such files that the request brings itself, or names by their absolute path.", Kind.FILES,
              default=()),
    Attribute("station_name", "Name of the execution site in the ini file, in place of the site's own.", default=""),
    Attribute("group", "Group in the ini file, in place of the site's own.", default=""),
)  # fmt: skip
"""Attributes of all job types of this kind."""

RUNJOB_SITE_ATTRIBUTES = (
    DATASETS,
    Attribute("facilityname", "Name of this facility in the data catalogue.", default=""),
    Attribute("stationname", "Name of this site's SAM station.", default=""),
    Attribute("samusername", "Name under which files are declared to SAM.", default=""),
    Attribute("samgroup", "Group under which files are declared to SAM.", default=""),
    Attribute("samtemplocation", "Where SAM finds the files until they are stored.", default=""),
    Attribute("destinationpath", "Where the program puts its results; by default the local job's output folder.",
              default=""),
    Attribute("jobcachearea", "Folder on the worker nodes in which the program may keep files between jobs.",
              default=""),
    Attribute("originname", "Origin of the produced files.", default=""),
    Attribute("producedforname", "For whom files are produced.", default=""),
    Attribute("producedbyname", "By whom files are produced.", default=""),
    Attribute("loglevel", "How much the program tells in its log.", default=""),
)  # fmt: skip
"""The folder of datasets, and the site's values in the ini file; those that are not set are left out."""


def program_attribute(default: str) -> Attribute:
    """The attribute that names the program among the unpacked files."""
    return Attribute("runjob_program", "The program that is given the ini file: its path among the unpacked files.",
                     default=default)  # fmt: skip


def phases_attribute(phases: Sequence[str]) -> Attribute:
    """The attribute that selects the phases to run."""
    return Attribute("phases", f"The phases to run, in this order: {', '.join(phases)}.", Kind.WORDS,
                     default=tuple(phases))  # fmt: skip


class RunjobAdapter(JobAdapter):
    """A job type whose local jobs run the experiment's own production program on an ini file."""

    usesDirectory = False
    siteAttributes = RUNJOB_SITE_ATTRIBUTES
    template: ClassVar[str]
    """The Jinja2 template of the ini file; the payload adds the values of each local job."""
    phases: ClassVar[Sequence[str]]

    def checkErrors(self) -> Iterable[str]:
        faults = [*_check_lines(self.attributes, self.request), *_check_phases(self)]
        faults += [f"[type.{self.jobType}] {fault}" for fault in _check_lines(self.siteAttributes, self.site.values)]
        return [*faults, *self._check_files()]

    def prepareWorkArea(self, workArea: Path) -> None:
        for payload in (PAYLOAD, READER):
            shutil.copyfile(payload, workArea / payload.name)
        text = render_ini(self.template, self.request, self.site.values)
        (workArea / INI).write_text(text, encoding="utf-8")
        (workArea / JOB_FILES).mkdir()
        travelling = [file.path for file in self.request["jobfiles"] if file.travels]
        copy_files([(path, workArea / JOB_FILES / path.name) for path in travelling], self.site.limits)
        write_lines(workArea / f"{JOB_FILES}.list", self._job_files())
        write_lines(workArea / f"{OVERLAY}.list", map(str, self._dataset("minbias_dataset")))

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        return ["/bin/sh", f"./{PAYLOAD.name}", self.request["runjob_program"], *self.request["phases"]]

    def _dataset(self, attribute: str) -> tuple[Path, ...]:
        name = self.request.get(attribute)
        return find_dataset(self.site, self.jobType, name) if name else ()

    def _job_files(self) -> list[str]:
        brought: tuple[RequestFile, ...] = self.request["jobfiles"]
        names = [f"{JOB_FILES}/{file.path.name}" if file.travels else file.name for file in brought]
        return [*map(str, self._dataset("jobfiles_dataset")), *names]

    def _check_files(self) -> list[str]:
        faults = [fault for file in self.request["jobfiles"] for fault in check_file("job file", file)]
        try:
            names = self._job_files()
            overlay = [str(path) for path in self._dataset("minbias_dataset")]
        except NoFiles as error:
            return [*faults, str(error)]
        if not names:
            faults.append("jobfiles_dataset or jobfiles is missing: they bring the program, nothing is installed here")
        faults += check_names([*names, *overlay])
        faults += [f"two job files are called {name!r}" for name in _list_repeated(names)]
        return faults + [f"two files of minimum-bias events are called {name!r}" for name in _list_repeated(overlay)]


def render_ini(template: str, request: Mapping[str, Any], site: Mapping[str, Any]) -> str:
    """The ini file of a request, without the values of each local job; keys without a value are left out."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to load: requests are accepted without

    environment = Environment(
        undefined=StrictUndefined,
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        finalize=lambda value: "" if value is None else value,
        trim_blocks=True,
    )
    values = {**site}
    values["stationname"] = request["station_name"] or site["stationname"]
    values["samgroup"] = request["group"] or site["samgroup"]
    text = environment.get_template(template).render(request=request, site=values)
    return "".join(f"{line}\n" for line in text.splitlines() if line and not _NO_VALUE.fullmatch(line))


def check_names(names: Iterable[str]) -> list[str]:
    """One fault for each file name that cannot be one line of a list."""
    return [f"the file's name {name!r} has a line break or a control character" for name in names if not _is_line(name)]


def _is_line(text: str) -> bool:
    """True for text that any program reads as one line; str.splitlines knows the most line ends."""
    return not any(letter < " " or letter == "\x7f" for letter in text) and len(f"{text}.".splitlines()) == 1


def _check_lines(attributes: Iterable[Attribute], values: Mapping[str, Any]) -> list[str]:
    """One fault for each value that would not stay in its line of the ini file."""
    faults = []
    for attribute in attributes:
        value = values[attribute.name]
        words = value if attribute.kind is Kind.WORDS else (value,) if isinstance(value, str) else ()
        if not all(_is_line(word) and word.isprintable() for word in words):
            faults.append(f"{attribute.name} must be printable text without line breaks, not {value!r}")
    return faults


def _check_phases(adapter: RunjobAdapter) -> list[str]:
    asked = list(adapter.request["phases"])
    if not asked or asked != [phase for phase in adapter.phases if phase in asked]:
        known = ", ".join(adapter.phases)
        return [f"phases must be some of {known}, each once and in this order, not {' '.join(asked)!r}"]
    return []


def _list_repeated(names: Iterable[str]) -> list[str]:
    """The names that several files have: all are put into one folder."""
    return sorted(name for name, count in Counter(Path(name).name for name in names).items() if count > 1)
