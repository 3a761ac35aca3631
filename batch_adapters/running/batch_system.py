"""One batch system as an account uses it: what the job manager asks, in its words, over an adapter's commands."""

import functools
import logging
import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from batch_adapters.adapter import (
    BatchAdapter,
    BatchError,
    Command,
    Garbled,
    Job,
    Listing,
    LocalStatus,
    Postponed,
    Reader,
    Refused,
    Submission,
    Unreachable,
)
from batch_adapters.running.commands import OutputTooLong, TimedOut, render_text, run_command
from batch_adapters.running.rate_limiter import RateLimited, RateLimiter

logger = logging.getLogger(__name__)

_MOST_IDS = 500
"""Ids on one command line."""
_FIRST_IDS = 2
"""About so many a question is asked first: two arrays of 10 000 elements are 46 MB in PBS."""
_COMFORTABLE = 16 * 1024 * 1024
"""Characters of an answer: how many ids the next question is about goes by the last answer."""
_MOST_JOBS = 500_000
"""In one answer."""
_MOST_REASONS = 5
"""Arrays for which it is asked in one look what blocks them."""
_LARGEST_CODE = 2**31
_LONGEST_ID = 200
_LONGEST_WHY = 600


class BatchSystem:
    """A batch adapter, the site's variables for its templates, and the account's rate limit.

    Every method may raise Unreachable (nobody answered: nothing is known) and Garbled (somebody did, but in words that
    cannot be understood). An empty list is an answer.
    """

    def __init__(self, adapter: BatchAdapter, site: Mapping[str, Any], limiter: RateLimiter) -> None:
        self.adapter = adapter
        self.limiter = limiter
        self._site = site

    @property
    def event_log(self) -> str:
        """The path of the log that the generator follows; empty where the generator's module finds it itself."""
        return render_text(self.adapter.event_log, self._site)

    def max_array(self) -> int:
        """Most local jobs in one array: the batch system's own limit, or the configured one where that is lower."""
        if self.adapter.array_limit is None:
            return self.adapter.max_array
        return read_max_array(self.adapter, self._ask(self.adapter.array_limit, {}))

    def submit(self, submission: Submission) -> Mapping[int, str]:
        """Submit an array once; the local id of each position in it, from 1.

        :raises Refused: nothing was submitted.
        :raises Postponed: nothing was submitted now.
        :raises Unreachable, Garbled: it may or may not have been: `find` its token.
        """
        variables = {**asdict(submission), "parallel_environment": self.adapter.parallel_environment}
        printed = self._run(self.adapter.submit, variables)
        ids = self.adapter.naming.read_submitted(printed, submission.count)
        if ids is None:
            raise Garbled(f"{self.adapter.name}: the answer to {submission.token} is {printed[:200]!r}")
        if len(set(ids.values())) < len(ids):
            raise Garbled(
                f"{self.adapter.name}: one id for several local jobs of {submission.token}: {printed[:200]!r}"
            )
        return ids

    def find(self, token: str) -> list[LocalStatus]:
        """The local jobs of a token that wait or run; some that have ended may be among them."""
        found = self._jobs(self.adapter.find, self.adapter.read_jobs, {"token": token})
        return [status for status in found if status.is_of(token)]

    def find_ended(self, token: str) -> list[LocalStatus]:
        """The local jobs of a token that the batch system's history knows; none where it has no history."""
        if self.adapter.history is None:
            return []
        found = self._jobs(self.adapter.history, self.adapter.read_history, {"token": token})
        return [status for status in found if status.is_of(token)]

    def query(self) -> list[LocalStatus]:
        """Every local job that the batch system shows us, in one command; one more for each array that is in error."""
        return list(self._add_reasons(self._jobs(self.adapter.queue, self.adapter.read_jobs, {})))

    def _add_reasons(self, statuses: Iterable[LocalStatus]) -> Iterator[LocalStatus]:
        """What blocks local jobs, where that has to be asked for."""
        known: dict[str, Mapping[str, str]] = {}
        for status in statuses:
            array = self.adapter.naming.array_of(status.local_id)
            if status.helps and not status.reason and (array in known or len(known) < _MOST_REASONS):
                known[array] = known[array] if array in known else self._ask_why(array)
                yield replace(status, reason=known[array].get(status.local_id, ""))
            else:
                yield status

    def _ask_why(self, array: str) -> Mapping[str, str]:
        if self.adapter.why is None:
            return {}
        try:
            return read_reasons(self.adapter, self._ask(self.adapter.why, {"array": array}))
        except BatchError as error:  # that it is blocked is known all the same
            logger.info("%s: what blocks %s: %s", self.adapter.name, array, error)
            return {}

    def status(self, local_id: str) -> LocalStatus | None:
        """One local job; None where the batch system answers that there is none."""
        found = self._jobs(self.adapter.status, self.adapter.read_jobs, {"id": local_id})
        return next((status for status in found if status.local_id == local_id), None)

    def cancel(self, ids: Iterable[str]) -> None:
        """Ask for the end of local jobs, or of whole arrays; that they ended, an event or a query must say."""
        self._change(self.adapter.cancel, "cancel", self.adapter.naming.fold(ids))

    def suspend(self, ids: Iterable[str]) -> None:
        """Stop local jobs that run, or whole arrays; what is not there or stopped already is no error.

        :raises Refused: (as the next ones) it does no such thing, or not for their owner.
        """
        self._change(self.adapter.suspend, "suspend", ids)

    def resume(self, ids: Iterable[str]) -> None:
        """Let suspended local jobs go on."""
        self._change(self.adapter.resume, "resume", ids)

    def hold(self, ids: Iterable[str]) -> None:
        """Keep waiting local jobs from being started."""
        self._change(self.adapter.hold, "hold", ids)

    def release(self, ids: Iterable[str]) -> None:
        """Let held local jobs be started."""
        self._change(self.adapter.release, "release", ids)

    def prioritize(self, ids: Iterable[str], priority: int) -> None:
        """Give waiting local jobs, or whole arrays, another priority."""
        self._change(self.adapter.priority, "change the priority of", ids, priority=priority)

    def forget(self, prefixes: Iterable[str]) -> None:
        """Let it go of ended local jobs whose tokens begin so, where it keeps them until it is told."""
        if self.adapter.forget is not None:
            self._ask(self.adapter.forget, {"prefixes": list(prefixes)})

    def _change(self, command: Command | None, verb: str, ids: Iterable[str], **variables: int) -> None:
        if command is None:
            raise Refused(f"{self.adapter.name} has no command with which the owner of local jobs could {verb} them")
        wanted = list(ids)
        most = min(self.adapter.cancel_at_once, _MOST_IDS)
        for start in range(0, len(wanted), most):
            self._ask(command, {"ids": wanted[start : start + most], **variables})

    def analyze(self, local_id: str) -> str:
        """Why a local job waits, in the batch system's own words; empty where it has none."""
        if self.adapter.analyze is None:
            return ""
        return read_analysis(self.adapter, self._ask(self.adapter.analyze, {"id": local_id}))

    def slots(self) -> tuple[int, int] | None:
        """Slots in all, and those that are free; None where it has no words for that."""
        if self.adapter.slots is None:
            return None
        return read_slots(self.adapter, self._ask(self.adapter.slots, {}))

    def version(self) -> str:
        """What the batch system says of itself; empty where it has no words for that."""
        if self.adapter.version is None:
            return ""
        found = re.search(self.adapter.read_version, self._ask(self.adapter.version, {}))
        return found[1].strip() if found else ""

    def _jobs(self, command: Command, read: Reader, variables: Mapping[str, Any]) -> list[LocalStatus]:
        jobs: list[Job] = []
        for printed in self._answers(command, variables):
            try:
                jobs += read_answer(read, printed)
            except Garbled as error:
                raise Garbled(f"{command.argv[0]}: {error}") from error
        return [find_status(self.adapter, job) for job in jobs if job.owner in ("", _find_user())]

    def _answers(self, command: Command, variables: Mapping[str, Any]) -> Iterator[str]:
        """What a command prints; of one with a listing, for some of its ids at a time."""
        if command.listing is None:
            yield self._ask(command, variables)
            return
        ids = self._list_ids(command, command.listing, variables)
        at_once = min(_FIRST_IDS, command.listing.at_once)
        while ids:
            some = ids[:at_once]
            try:
                printed = self._ask(command, {**variables, "ids": some})
            except OutputTooLong:
                if len(some) == 1:
                    raise
                at_once = len(some) // 2
                continue
            yield printed
            if len(some) > 1:
                # They have gone meanwhile, or it told of the first only, as OpenPBS does without -E.
                alone = [one for one in some if not _is_told_of(one, printed)]
                yield from (self._ask(command, {**variables, "ids": [one]}) for one in alone)
            ids = ids[len(some) :]
            fitting = _COMFORTABLE * len(some) // (len(printed) + 1)
            at_once = max(1, min(command.listing.at_once, 2 * at_once, fitting))

    def _list_ids(self, command: Command, listing: Listing, variables: Mapping[str, Any]) -> list[str]:
        printed = self._ask(replace(command, argv=listing.argv, outcomes=listing.outcomes), variables)
        lines = printed.splitlines(keepends=True)
        odd = next((line for line in lines if not re.fullmatch(f"(?:{listing.pattern})\n", line)), None)
        if odd is not None:
            raise Garbled(f"{listing.argv[0]}: no id: {odd[:200]!r}")
        ids = [line.rstrip("\n") for line in lines]
        return list(dict.fromkeys(map(self.adapter.naming.array_of, ids))) if listing.has_elements else ids

    def _ask(self, command: Command, variables: Mapping[str, Any]) -> str:
        """Run a command that may be run any number of times: again, soon, where the batch system could not answer."""
        import tenacity  # slow to load, and the monitor asks nothing

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(command.attempts),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
            retry=tenacity.retry_if_exception(_is_worth_another_try),
            reraise=True,
        )
        return retrying(self._run, command, variables)

    def _run(self, command: Command, variables: Mapping[str, Any]) -> str:
        self.limiter.acquire()
        try:
            everything = {"user": _find_user(), **self._site, **variables}
            printed = run_command(command, everything, self.adapter.ignored_variables)
        except Postponed:
            self.limiter.note_answer()
            raise
        except Unreachable as error:
            self.limiter.note_outage(str(error))
            raise
        except Exception:
            self.limiter.note_answer()
            raise
        self.limiter.note_answer()
        return printed


def _is_told_of(wanted: str, printed: str) -> bool:
    """True where an answer has the id, or, of an array, that of an element."""
    pattern = re.escape(wanted).replace(r"\[\]", r"\[\d*\]")
    return re.search(rf"(?<![\w.-]){pattern}(?![\w.-])", printed) is not None


def read_answer(read: Reader, printed: str) -> list[Job]:
    """The jobs in what a command printed.

    :raises Garbled: the reader can make nothing of it, whatever it says of that; the text is in the message.
    """
    try:
        jobs = list(islice(read(printed), _MOST_JOBS + 1))
    except Garbled:
        raise
    except Exception as error:  # nobody can foresee what an answer may be that comes from elsewhere
        raise Garbled(f"{type(error).__name__}: {str(error)[:200]}: {printed[:200]!r}") from error
    if len(jobs) > _MOST_JOBS:
        raise Garbled(f"more than {_MOST_JOBS} jobs: {printed[:200]!r}")
    odd = next(
        (job for job in jobs if abs(job.exit_code or 0) > _LARGEST_CODE or len(job.local_id) > _LONGEST_ID), None
    )
    if odd is not None:
        raise Garbled(f"no such id or exit code can be, of {odd.local_id[:50]}: {printed[:200]!r}")
    return jobs


def read_max_array(adapter: BatchAdapter, printed: str) -> int:
    """Most local jobs in one array, by the batch system's own words, and never more than the adapter's.

    :raises Garbled: they have no number.
    """
    found = re.search(adapter.read_array_limit, printed)
    if found is None:
        raise Garbled(f"{adapter.name}: no array limit in {printed[:200]!r}")
    # Group 1 does not take part where the answer is that there is no limit.
    if found[1] is None:
        return adapter.max_array
    if not re.fullmatch(r"\d+", found[1], re.ASCII):
        raise Garbled(f"{adapter.name}: an array limit that is no number: {found[1][:200]!r}")
    return max(1, min(int(found[1][:9]), adapter.max_array))


def read_slots(adapter: BatchAdapter, printed: str) -> tuple[int, int]:
    """Slots in all and free ones, summed over what the batch system tells of.

    :raises Garbled: there is no such number.
    """
    found = list(re.finditer(adapter.read_slots, printed, re.ASCII))
    if not found:
        raise Garbled(f"{adapter.name}: no slots in {printed[:200]!r}")
    total, free = (sum(int(match[name][:9]) for match in found) for name in ("total", "free"))
    return total, free


def read_reasons(adapter: BatchAdapter, printed: str) -> Mapping[str, str]:
    """What blocks local jobs, by their ids.

    :raises Garbled: the adapter's reader can make nothing of it, whatever it says of that.
    """
    try:
        return {local_id: reason[:_LONGEST_WHY] for local_id, reason in adapter.read_why(printed).items()}
    except Garbled:
        raise
    except Exception as error:  # as for every reader
        raise Garbled(f"{type(error).__name__}: {str(error)[:200]}: {printed[:200]!r}") from error


def read_analysis(adapter: BatchAdapter, printed: str) -> str:
    """Why a local job waits, each reason once and all of them in one line."""
    found = re.findall(adapter.read_analysis, printed)
    return "; ".join(dict.fromkeys(" ".join(reason.split()) for reason in found))[:_LONGEST_WHY]


def find_status(adapter: BatchAdapter, job: Job) -> LocalStatus:
    """What a job of an answer is in our words, and the command that helps where it is blocked."""
    state = adapter.states.get(job.native_state)
    if state is None:
        logger.warning("%s %s: unknown native state %r", adapter.name, job.local_id, job.native_state)
    cause = job.cause or adapter.causes.get(job.native_state)
    fields = (job.local_id, job.native_state, state, job.exit_code, job.reason, job.token, cause)
    helps = "" if state is not None and state.is_final else _find_help(adapter, job)
    is_leaving = job.native_state in adapter.leaving
    return LocalStatus(*fields, by=_name_user(job.by), is_leaving=is_leaving, helps=helps)


def _find_help(adapter: BatchAdapter, job: Job) -> str:
    """The command that lets a blocked local job go on; empty where it is not blocked."""
    said = f"{job.native_state} {job.reason}".strip()
    for pattern, command in adapter.blocks.items():
        if re.fullmatch(pattern, said, re.DOTALL):
            return command.format(id=job.local_id, array=adapter.naming.array_of(job.local_id))
    return ""


@functools.cache
def _find_user() -> str:
    return _name_user(str(os.geteuid()))


@functools.cache
def _name_user(by: str) -> str:
    """The name of whoever a batch system names by a number, where this machine knows it."""
    if not re.fullmatch(r"\d{1,9}", by, re.ASCII):
        return by
    try:
        return pwd.getpwuid(int(by)).pw_name
    except KeyError:
        return by


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, Unreachable) and not isinstance(error, TimedOut | RateLimited)
