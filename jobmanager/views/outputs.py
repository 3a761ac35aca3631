"""The output tar of a grid job that has ended: what is in it, what is missing, and how it is unpacked."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import UserError
from jobmanager.site.account import Account
from jobmanager.views.text import printable, render_columns, render_line
from sandbox.files import SandboxError

if TYPE_CHECKING:  # heavy modules are loaded when there is a tar to be read: Python users import this one
    from jobmanager.database.grid_job import GridJob

_SHOWN_KINDS = 20


class NoOutput(UserError):
    """A grid job's output does not exist, or cannot be read or unpacked; the message says why."""


def find_tar(account: Account, job_id: str) -> Path:
    """The output tar of a grid job.

    :raises NoOutput: it has not ended.
    """
    job = account.database.grid_jobs.get(job_id)
    if not job.state.is_final:
        raise NoOutput(f"grid job {job_id} is {job.state.word}: its output is there when it has ended")
    return account.places.output(job_id)


def unpack_output(account: Account, job_id: str, folder: Path) -> None:
    """Unpack a grid job's output tar into a new or empty folder, completely or not at all.

    :raises NoOutput: it has not ended, or its tar cannot be unpacked.
    """
    from jobmanager.completion.collection import output_limits
    from sandbox.unpack import unpack

    try:
        unpack(find_tar(account, job_id), folder, output_limits(account))
    except SandboxError as error:
        raise NoOutput(str(error)) from error


def render_output(job: "GridJob", tar: Path) -> str:
    """The path of an ended grid job's output tar, what is in it, what is missing, and the handler's summary.

    :raises NoOutput: the tar cannot be read.
    """
    import tarfile

    lines = [str(tar)]
    files, ends, lacking = _Files(job.job_id), Counter[tuple[str, str]](), list[str]()
    try:
        _read_contents(tar, job.job_id, files, ends, lacking)
    except (TypeError, AttributeError, RecursionError) as error:
        raise NoOutput(
            f"the output {tar} cannot be read: its manifest.json is damaged: {render_line(str(error))}"
        ) from error
    except (OSError, ValueError, LookupError, EOFError, tarfile.TarError) as error:
        raise NoOutput(f"the output {tar} cannot be read: {render_line(str(error))}") from error
    lines += [f"{files.count:,} files, {files.size:,} bytes:", files.render()]
    lines += [printable(f"{count:,} {outcome}: {cause}") for (outcome, cause), count in ends.most_common()]
    lines += lacking
    lines += [f"{printable(name)}: {printable(text)}" for name, text in job.summary().items()]
    lines.append(f"grid job {job.job_id}: {job.outcome}" + (f": {printable(job.reason)}" if job.reason else ""))
    return render_columns([[line] for part in lines for line in part.splitlines()])


def _read_contents(tar: Path, job_id: str, files: "_Files", ends: Counter[tuple[str, str]], lacking: list[str]) -> None:
    from sandbox.unpack import read_manifest

    for name, item in read_manifest(tar, job_id):
        if name == "files":
            files.add(item["path"], item["size"])
        elif name == "missing":
            lacking.append(printable(f"missing: {item['local_id']}: {', '.join(item['what'])}"))
        elif name == "refused":
            lacking.append(printable(f"refused: {item['path']}: {item['reason']}"))
        elif item["cause"]:
            ends[item["outcome"], item["cause"].replace("-", " ")] += 1


class _Files:
    """Counts the files of a tar by kind; those of all local jobs, or of a step's, count together."""

    def __init__(self, job_id: str) -> None:
        self._local_job = re.compile(rf"(?:{job_id}|([^/]+/)\w+)\.[^/]+?\.(stdout|stderr|status|output/.*)", re.DOTALL)
        self._counts, self._sizes = Counter[str](), Counter[str]()

    def add(self, path: str, size: int) -> None:
        found = self._local_job.fullmatch(path)
        kind = (found[1] or "") + found[2] if found else path
        self._counts[kind] += 1
        self._sizes[kind] += size

    @property
    def count(self) -> int:
        return self._counts.total()

    @property
    def size(self) -> int:
        return self._sizes.total()

    def render(self) -> str:
        rows = [
            (f"{count:>9,} ×", printable(kind), f"{self._sizes[kind]:>18,} bytes")
            for kind, count in sorted(self._counts.items())
        ]
        if len(rows) > _SHOWN_KINDS:
            rows = [
                *rows[:_SHOWN_KINDS],
                ("", f"… and {len(rows) - _SHOWN_KINDS} other names (tar -tf shows them)", ""),
            ]
        return render_columns(rows)
