"""Handles of grid jobs: to submit, find, wait for and cancel them, and to get their outputs.

Every call opens the job database, so that any thread or forked process may call.
"""

import getpass
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

from jobmanager import UserError
from jobmanager.commands.arguments import read_since
from jobmanager.site.account import open_account

from ...views.query.query import Item
from .statuses import JobStatus, LocalJobStatus, read_local_status, read_status

if TYPE_CHECKING:
    from adapters import Value
    from jobmanager.site.account import Account


class BadArgument(UserError, ValueError):
    """A function was given what it cannot take; the message says what it takes."""


@dataclass(frozen=True)
class JobHandle:
    """A handle of a grid job; it is only looked up when a method is called."""

    id: str
    state_dir: str
    """The state folder of its account."""

    def status(self) -> JobStatus:
        """Its state now."""
        with _opened(self.state_dir) as account:
            return read_status(account, self.id)

    def wait(
        self,
        callback: Callable[[JobStatus], object] | None = None,
        *,
        timeout: float | None = None,
        progress: bool = True,
    ) -> JobStatus:
        """Wait until it has ended, with or without success; interrupting this does not affect the grid job.

        :param callback: is called with each status that differs from the last one in more than the estimated end.
        :param timeout: in seconds.
        :param progress: shown in a notebook, and on a terminal, by the main thread.
        :raises CannotGoOn: something has kept it from going on for a while; nothing is lost, wait again later.
        :raises TimeoutError: it has not ended; it continues.
        """
        from jobmanager.commands.python.notebook import show_progress
        from jobmanager.views.watching import follow_grid_job

        if callback is not None and not callable(callback):
            raise BadArgument(f"wait calls a function with each status, not {callback!r}: say timeout=60 for a limit")
        _check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        last: JobStatus | None = None
        with _opened(self.state_dir) as account, show_progress(progress) as show:
            account.database.grid_jobs.get(self.id)
            for snapshot in follow_grid_job(account, self.id):
                status = read_status(account, self.id)
                show(snapshot, status)
                if callback is not None and replace(status, may_end=None) != last:
                    last = replace(status, may_end=None)
                    callback(status)
                # It may have ended since the snapshot: then another one comes, which shows that.
                if deadline is not None and time.monotonic() >= deadline and not status.has_ended:
                    raise TimeoutError(f"grid job {self.id} is {status.state} after {timeout:g} s")
        return status

    def cancel(self) -> bool:
        """Request its end, which cannot be withdrawn; False if it has ended already."""
        from jobmanager.control.cancel_requests import request_cancel
        from jobmanager.monitor.client import wake_monitor

        with _opened(self.state_dir) as account:
            is_cancelled = request_cancel(account.database, self.id, f"cancelled by {getpass.getuser()}")
            if is_cancelled:
                wake_monitor(account)
        return is_cancelled

    def resubmit(self, *, failed: bool = False) -> "JobHandle":
        """A new grid job with the request of this one, which has ended.

        :param failed: only what did not succeed, with its numbers, events and seeds.
        :raises NotRepeatable: it has not ended, nothing of it failed, or that is made again already.
        :raises BadRequest: its request cannot be run any more.
        """
        from jobmanager.commands.control import repeat

        with _opened(self.state_dir) as account:
            return JobHandle(repeat(account, self.id, failed), self.state_dir)

    def local_jobs(self) -> list[LocalJobStatus]:
        """The state of its local jobs now; empty before they are submitted, and for a structured grid job."""
        with _opened(self.state_dir) as account:
            account.database.grid_jobs.get(self.id)
            return [read_local_status(line) for line in account.database.local_jobs.lines(self.id)]

    def steps(self) -> "list[JobHandle]":
        """The grid jobs that its steps have become."""
        return [JobHandle(step.grid_job, self.state_dir) for step in self.status().steps if step.grid_job]

    def log(self, lines: int | None = None) -> str:
        """Its log, or the last lines of it."""
        from jobmanager.views.logs import render_log

        _check_lines(lines)
        with _opened(self.state_dir) as account:
            return "\n".join(render_log(account, account.database, self.id, lines))

    def stdout(self, number: int, lines: int | None = 100) -> str:
        """The last lines that a local job has printed, if they are visible on this host; with None, all lines."""
        return self._read_printed(number, "stdout", lines)

    def stderr(self, number: int, lines: int | None = 100) -> str:
        """The same of its standard error."""
        return self._read_printed(number, "stderr", lines)

    def _read_printed(self, number: int, kind: str, lines: int | None) -> str:
        from jobmanager.views.following import find_printed
        from jobmanager.views.logs import find_meant, read_lines

        _check_lines(lines)
        if not isinstance(number, Integral):
            raise BadArgument(f"number is a local job's, from 1, not {number!r}")
        with _opened(self.state_dir) as account:
            ((whose, job),) = find_meant(account.database, f"{self.id}/{number}")
            path = find_printed(account, whose, job, kind)
            return "" if path is None else "\n".join(read_lines(path, lines))

    def output_tar(self) -> Path:
        """The one tar with every output; raises NoOutput: it has not ended."""
        from jobmanager.views.outputs import find_tar

        with _opened(self.state_dir) as account:
            return find_tar(account, self.id)

    def outputs(self, folder: str | os.PathLike[str]) -> dict[int, Path]:
        """The output folders of local jobs by number; local jobs without output have none.

        The tar is unpacked into a new folder in ``folder``, called as the grid job's id, unless it is there already.

        :raises NoOutput: it has not ended, its output cannot be unpacked, or it is a sequence: its steps have some.
        """
        from jobmanager.views.outputs import NoOutput, find_tar
        from sandbox.status import render_stem

        with _opened(self.state_dir) as account:
            find_tar(account, self.id)  # whether it has ended is said first
            if account.database.grid_jobs.get(self.id).steps:
                raise NoOutput(f"grid job {self.id} has no local jobs of its own: ask its steps")
            unpacked = _unpack(account, self.id, Path(folder).absolute())
            stems = {
                line.index: render_stem(self.id, line.local_id)
                for line in account.database.local_jobs.lines(self.id)
                if line.local_id is not None
            }
        found = {number: unpacked / f"{stem}.output" for number, stem in stems.items()}
        return {number: path for number, path in found.items() if path.is_dir() and not path.is_symlink()}

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from jobmanager.commands.python.notebook import render_html, render_missing
        from jobmanager.database.database import DatabaseError, UnknownJob

        try:
            return render_html(self.status())
        except (DatabaseError, UnknownJob) as error:
            return render_missing(self.id, str(error))


@contextmanager
def _opened(state_dir: str | os.PathLike[str] | None, is_made: bool = False) -> "Iterator[Account]":
    """An account for the time of one call."""
    named = None if state_dir is None else os.fspath(state_dir)
    account = replace(open_account(named, create=is_made), owns_process=False)
    try:
        yield account
    finally:
        if "database" in vars(account):
            account.database.close()


def _check_lines(lines: object) -> None:
    if lines is not None and not (isinstance(lines, int) and lines >= 0):
        raise BadArgument(f"lines must be at least 0, or None for all, not {lines!r}")


def _check_timeout(timeout: object) -> None:
    if not isinstance(timeout, Real | None):
        raise BadArgument(f"timeout is a number of seconds, not {timeout!r}")


def _unpack(account: "Account", job_id: str, folder: Path) -> Path:
    """Unpack the tar, completely or not at all; the folder."""
    from jobmanager.views.outputs import unpack_output

    unpacked = folder / job_id
    if unpacked.exists():
        return unpacked
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{job_id}-") as temporary:
        unpack_output(account, job_id, Path(temporary, "tar"))
        try:
            Path(temporary, "tar", job_id).rename(unpacked)
        except OSError:
            if not unpacked.exists():  # another thread was first
                raise
    return unpacked


def submit(
    request: Mapping[str, object] | str | os.PathLike[str],
    *,
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    state_dir: str | os.PathLike[str] | None = None,
) -> JobHandle:
    """Submit a grid job; the rest happens in the background.

    :param request: attributes and their values, a request's text (RSL, or an old job description), or the path of its
        file. A value is a text, a number, a bool, a path, or several of these; pairs, and steps, may be a mapping.
    :param name: what people call it, in place of the request's name.
    :param folder: where the request's relative file names start: its file's own folder, else the working directory.
    :param state_dir: the account's state folder; by default as the command line finds it.
    :raises BadRequest: it is refused; ``faults`` has a sentence for each fault, and nothing has been created.
    :raises BadArgument: the name is no text.
    :raises HandlerError: the job type's own code has failed.
    """
    from jobmanager.commands.grid_jobs import name_request, submit_request
    from jobmanager.requests.files import read_request_file, read_request_text

    if not isinstance(name, str | None):
        raise BadArgument(f"a name is a text, not {name!r}")
    with _opened(state_dir, is_made=True) as account:
        modules = account.configuration.handlers.modules
        if isinstance(request, os.PathLike):
            given, start = read_request_file(os.fspath(request), modules)
        else:
            text = _check_text(request) if isinstance(request, str) else _render_request(request)
            given, start = read_request_text(text, "request", modules) if text else [], Path.cwd()
        where = start if folder is None else Path(folder).resolve()
        job_id = submit_request(account, name_request(given, name), where)
        return JobHandle(job_id, str(account.places.root))


def grid_job(word: JobHandle | str, *, state_dir: str | os.PathLike[str] | None = None) -> JobHandle:
    """The grid job of that id, of which as much is enough as is unique, or of that name.

    :raises UnknownJob: there is none, or several.
    """
    with _opened(word.state_dir if isinstance(word, JobHandle) else state_dir) as account:
        return JobHandle(_find(account, word), str(account.places.root))


def _find(account: "Account", job: JobHandle | str) -> str:
    if not isinstance(job, JobHandle | str):
        raise BadArgument(f"a grid job is named by its id or its name, a text, not by {job!r}")
    return account.database.grid_jobs.find(job.id if isinstance(job, JobHandle) else job)


def grid_jobs(
    *,
    name: str | None = None,
    type: str | None = None,
    state: str | None = None,
    owner: str | None = None,
    since: date | str | None = None,
    state_dir: str | os.PathLike[str] | None = None,
) -> list[JobHandle]:
    """The grid jobs that fit everything that is given, the newest last.

    :param name: pattern, with * and ? as in the shell.
    :param state: its state, or once it has ended done, failed or cancelled.
    :param since: submitted then, or later: a moment, a day, or a text as the command line takes it, such as ``36h``.
    :raises BadArgument: there is no such state, or this is no time.
    """
    from jobmanager.database.database import STANDINGS, Choice

    if state is not None and state not in STANDINGS:
        raise BadArgument(f"there is no state {state!r}: it is one of {', '.join(STANDINGS)}")
    choice = Choice(type, state, owner, _read_since(since), name)
    with _opened(state_dir) as account:
        rows = account.database.grid_jobs.overview(choice=choice)
        return [JobHandle(row.id, str(account.places.root)) for row in rows]


def _read_since(since: date | str | None) -> float | None:
    if since is None:
        return None
    if isinstance(since, datetime):
        return since.timestamp()
    if not isinstance(since, date | str):
        raise BadArgument(f"since is a time, or a text such as '36h', not {since!r}")
    try:
        return read_since(str(since), time.time())
    except ValueError as error:
        raise BadArgument(f"since: {error}") from None


@dataclass(frozen=True)
class Recovered:
    """What is made again of a request."""

    running: tuple[JobHandle, ...]
    """Have not ended yet: nothing is submitted before they have."""
    submitted: tuple[JobHandle, ...]
    """The new grid jobs, which make what is missing; none where nothing is."""
    unknown: tuple[JobHandle, ...] = ()
    """Nothing is submitted of these and what they repeat, because their documents cannot be read."""


def recover(request: str | int, *, state_dir: str | os.PathLike[str] | None = None) -> Recovered:
    """Submit again what is missing of a request, by the experiment's own id of it; said again, it does nothing.

    :raises UnknownRequest: no grid job is of it.
    :raises BadRequest: its request cannot be run any more.
    """
    from jobmanager.commands.control import recover_missing

    with _opened(state_dir) as account:
        found, jobs = recover_missing(account, str(request))
        folder = str(account.places.root)
    return Recovered(
        tuple(JobHandle(job_id, folder) for job_id in found.running),
        tuple(JobHandle(job.job_id, folder) for job in jobs),
        tuple(JobHandle(job_id, folder) for job_id in found.unknown),
    )


def query(
    expression: str,
    *,
    job: JobHandle | str | None = None,
    xquery: bool = False,
    timeout: float = 60.0,
    state_dir: str | os.PathLike[str] | None = None,
) -> list[Item]:
    """What an XPath expression finds in the documents of all grid jobs, or of one.

    Grid jobs whose documents cannot be read are left out, with a warning. Where nothing is found, names that the schema
    lacks are warned of.

    :param job: at hand, or its id or name.
    :param xquery: it is XQuery 3.1, or XPath 3.1: needs the extra ``xquery``.
    :param timeout: in seconds.
    :raises QueryError: it is wrong, or has no answer within time and memory.
    """
    import warnings

    from jobmanager.views.query.query import Language, QueryLimits, check_names, run_limited

    _check_timeout(timeout)
    language = Language.XQUERY if xquery else Language.XPATH
    with _opened(job.state_dir if isinstance(job, JobHandle) else state_dir) as account:
        job_id = None if job is None else _find(account, job)
        result = run_limited(account, job_id, expression, language, QueryLimits(seconds=timeout))
    for warning in (*check_names(expression, result.items), *(f"left out: {damage}" for damage in result.left_out)):
        warnings.warn(warning, stacklevel=2)
    return list(result.items)


def _check_text(text: str) -> str:
    from jobmanager.requests.attributes import BadRequest

    if text.strip() and "=" not in text:
        raise BadRequest([f"{text[:60]!r} is no request: a file is given as a path, as in submit(Path({text[:60]!r}))"])
    return text


def _render_request(request: Mapping[str, object]) -> str:
    """A request's text: so what can be said is the same in each form. An attribute that is None is not said."""
    from jobmanager.requests.attributes import BadRequest
    from jobmanager.requests.rsl import ATTRIBUTE_NAME, Relation, render_rsl

    if not isinstance(request, Mapping):
        raise BadRequest([f"a request is a mapping, a text or a path, not of type {type(request).__name__}"])
    relations, faults = list[Relation](), list[str]()
    for name, value in request.items():
        if value is None:
            continue
        try:
            if not ATTRIBUTE_NAME.fullmatch(str(name)):
                raise TypeError("no attribute has such a name")
            values = _read_values(value)
            if not values:
                raise TypeError("it is empty: leave it out, or give None")
            relations.append(Relation(name, values))
        except TypeError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise BadRequest(faults)
    return render_rsl(relations) if relations else ""


def _read_values(value: object) -> "tuple[Value, ...]":
    read = _read_value(value)
    return read if isinstance(read, tuple) else (read,)


def _read_value(value: object) -> "Value":
    if isinstance(value, bool):
        return "yes" if value else "no"
    # numpy's numbers, too
    if isinstance(value, str | Real):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return tuple((str(name), *_read_values(one)) for name, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return tuple(map(_read_value, value))
    raise TypeError(f"a request cannot say a value of type {type(value).__name__}")
