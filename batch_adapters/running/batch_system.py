"""`BatchSystem`: submits, queries and changes local jobs in one batch system, by its adapter's commands."""

import functools
import logging
import math
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, TypeVar

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
from batch_adapters.naming import TOKEN
from batch_adapters.running.commands import OutputTooLong, TimedOut, render_text, run_command
from batch_adapters.running.rate_limiter import RateLimited, RateLimiter
from batch_adapters.states import State

logger = logging.getLogger(__name__)

_MOST_IDS = 500
"""Most ids on one command line."""
_MOST_LISTED = 100
"""Most ids in one query; fewer are taken if the answers are long."""
_FIRST_IDS = 2
"""Ids in the first query of several: two arrays of 10 000 elements are 46 MB in PBS."""
_COMFORTABLE = 16 * 1024 * 1024
"""Characters of an answer that the number of ids in the next query is chosen for."""
_MOST_JOBS = 500_000
"""Most jobs in one answer."""
_MOST_REASONS = 5
"""Arrays that one query asks about what blocks them."""
_LARGEST_CODE = 2**31
_LONGEST_ID = 200
_LONGEST_WHY = 600

Result = TypeVar("Result")


class BatchSystem:
    """A batch adapter with the site's variables for its templates, and the account's rate limit.

    Every method may raise Unreachable (no answer: nothing is known) and Garbled (the answer cannot be understood). An
    empty list is an answer.
    """

    def __init__(self, adapter: BatchAdapter, site: Mapping[str, Any], limiter: RateLimiter) -> None:
        self.adapter = adapter
        self.limiter = limiter
        self._site = site

    @property
    def event_log(self) -> str:
        """The path of the log that the generator follows; empty: the generator's module finds it."""
        return render_text(self.adapter.event_log, self._site)

    def max_array(self) -> int:
        """Most local jobs in one array: the lower one of the batch system's limit and the configured one."""
        if self.adapter.array_limit is None:
            return self.adapter.max_array
        return read_max_array(self.adapter, self._ask(self.adapter.array_limit, {}))

    def submit(self, submission: Submission) -> Mapping[int, str]:
        """Submit an array once; the local id of each position in it, from 1.

        :raises Refused: nothing was submitted.
        :raises Postponed: nothing was submitted now.
        :raises Unreachable, Garbled: it may have been submitted: `find` its token.
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
        """The local jobs of a token that wait or run; ended ones may be among them."""
        found = self._jobs(self.adapter.find, self.adapter.read_jobs, {"token": token})
        return [status for status in found if status.is_of(token)]

    def find_ended(self, token: str) -> list[LocalStatus]:
        """The local jobs of a token in the batch system's history; none if it has no history."""
        return [status for status in self._ask_history(token) or () if status.is_of(token)]

    def has_history(self) -> bool:
        """False if it has none, or has it switched off, as Slurm without slurmdbd."""
        return self._ask_history("nobody-0") is not None

    def _ask_history(self, token: str) -> list[LocalStatus] | None:
        if self.adapter.history is None:
            return None
        try:
            return self._jobs(self.adapter.history, self.adapter.read_history, {"token": token})
        except Refused:
            return None

    def query(self) -> list[LocalStatus]:
        """All local jobs of this account, by one command, and one more for each of a few blocked arrays."""
        statuses = self._jobs(self.adapter.queue, self.adapter.read_jobs, {})
        return statuses if self.adapter.why is None else list(self._add_reasons(self.adapter.why, statuses))

    def _add_reasons(self, why: Command, statuses: Sequence[LocalStatus]) -> Iterator[LocalStatus]:
        """Add what blocks local jobs: in a few arrays, first those in error, then those of ours that wait.

        They are the same each time, or a local job would be blocked in one answer and not in the next.
        """
        array_of = self.adapter.naming.array_of
        silent = [status for status in statuses if _needs_reason(status)]
        ranks = sorted({(not s.helps, not TOKEN.fullmatch(s.token), array_of(s.local_id)) for s in silent})
        arrays = islice(dict.fromkeys(array for *_, array in ranks), _MOST_REASONS)
        known = {array: self._ask_why(why, array) for array in arrays}
        for status in statuses:
            array = array_of(status.local_id)
            if array in known and _needs_reason(status):
                of_array = known[array].get(array, "") if status.state is State.PENDING else ""
                reason = known[array].get(status.local_id, of_array)
                helps = _render_help(self.adapter, Job(status.local_id, status.native_state, reason=reason))
                yield replace(status, reason=reason, helps=helps)
            else:
                yield status

    def _ask_why(self, why: Command, array: str) -> Mapping[str, str]:
        try:
            return read_reasons(self.adapter, self._ask(why, {"array": array}))
        except BatchError as error:  # without a reason, it still shows as blocked
            logger.info("%s: what blocks %s: %s", self.adapter.name, array, error)
            return {}

    def status(self, local_id: str) -> LocalStatus | None:
        """One local job; None if the batch system answers that there is none."""
        return next((status for status in self.find_by_id(local_id) if status.local_id == local_id), None)

    def find_by_id(self, local_id: str) -> list[LocalStatus]:
        """The local jobs of an array, or one, by id, whatever their token is by now; the answer may contain others."""
        return self._jobs(self.adapter.status, self.adapter.read_jobs, {"id": local_id})

    def find_renamed(self, token: str) -> list[LocalStatus]:
        """The local jobs of a token that were given another name, by their owner or when they were submitted."""
        statuses = self.query()
        asked = {status.local_id: token for status in statuses if not TOKEN.fullmatch(status.token)}
        return [status for status in self.restore_tokens(statuses, asked) if status.token == token]

    def restore_tokens(self, statuses: Sequence[LocalStatus], tokens: Mapping[str, str]) -> list[LocalStatus]:
        """An answer in which jobs that were renamed have again the tokens they were submitted with.

        :param tokens: by local id; all others keep the name they have in the answer.
        """
        array_of = self.adapter.naming.array_of
        renamed = {s.local_id: array_of(s.local_id) for s in statuses if not s.is_of(tokens.get(s.local_id, s.token))}
        known = self._ask_tokens(sorted(set(renamed.values())))
        found = {local_id: known[array] for local_id, array in renamed.items() if array in known}
        return [replace(s, token=found[s.local_id]) if s.local_id in found else s for s in statuses]

    def _ask_tokens(self, arrays: Sequence[str]) -> dict[str, str]:
        known: dict[str, str] = {}
        if self.adapter.tokens is not None:
            for start in range(0, len(arrays), _MOST_IDS):
                printed = self._ask(self.adapter.tokens, {"ids": arrays[start : start + _MOST_IDS]})
                known |= _read(self.adapter.read_tokens, printed)
        return known

    def cancel(self, ids: Iterable[str], *prefixes: str) -> set[str]:
        """Cancel local jobs, or whole arrays; an event or a query will tell when they have ended.

        :param prefixes: (here and below) of their tokens: where ids began anew, another job may have one of them.
        :returns: (here and below) the ids that another job seems to have, and that were left alone therefore.
        """
        return self.change(self.adapter.cancel, "cancel", ids, *prefixes)

    def change(
        self, command: Command | None, verb: str, ids: Iterable[str], *prefixes: str, **variables: int
    ) -> set[str]:
        """Suspend, resume, hold, release or prioritize local jobs, or whole arrays, by one of the adapter's commands.

        Missing ones, or those in another state, are no error.

        :param verb: says in a refusal what the command would have done.
        :raises Refused: the batch system cannot do that, or not for the owner.
        """
        if command is None:
            raise Refused(f"{self.adapter.name} has no command with which the owner of local jobs could {verb} them")
        # Orphans repeat theirs, and an argument may not be longer than 128 KiB.
        named = list(dict.fromkeys(prefixes))
        given = list(ids)
        wanted = self._leave_out_others(command, given, tuple(named))
        left = set(given).difference(wanted)
        if command is self.adapter.cancel:
            wanted = self.adapter.naming.fold(wanted)
        most = min(self.adapter.cancel_at_once, _MOST_IDS)
        complaint: Garbled | None = None
        for start in range(0, len(wanted), most):
            try:
                self._ask(command, {"ids": wanted[start : start + most], "prefixes": named, **variables})
            except Garbled as error:  # such as of a host that is lost: the others may be on other hosts
                complaint = complaint or error
        if complaint is not None:
            raise complaint
        return left

    def forget(self, prefixes: Iterable[str]) -> None:
        """Delete records of ended local jobs by prefixes of tokens, unless it deletes them by itself."""
        if self.adapter.forget is not None:
            self._ask(self.adapter.forget, {"prefixes": list(prefixes)})

    def _leave_out_others(self, command: Command, ids: list[str], prefixes: tuple[str, ...]) -> list[str]:
        """Without the ids that jobs of other tokens have in the queue, because ids began anew; all, without an answer.

        There is no need to ask where the command itself, or each id, names a prefix.
        """
        if any("prefixes" in text for text in command.argv) or all(one.startswith(prefixes) for one in ids):
            return ids
        array_of = self.adapter.naming.array_of
        arrays = set(map(array_of, ids))
        try:
            statuses = self._jobs(self.adapter.queue, self.adapter.read_jobs, {})
            odd = [s for s in statuses if array_of(s.local_id) in arrays and not s.token.startswith(prefixes)]
            odd = self.restore_tokens(odd, dict.fromkeys((s.local_id for s in odd), ""))
        except BatchError as error:
            logger.info("%s: whether others have the ids %s is not known: %s", self.adapter.name, ids[:3], error)
            if not isinstance(error, RateLimited):
                # Both have one turn: in an outage, a question without an answer must not take the command's.
                self.limiter.hurry(math.inf)
            return ids
        others = {array_of(s.local_id) for s in odd if s.token and not s.token.startswith(prefixes)}
        if others:
            words = "not changed, as others have these ids now, or they were renamed"
            logger.warning("%s: %s: %s", self.adapter.name, words, " ".join(sorted(others)[:20]))
        return [one for one in ids if array_of(one) not in others]

    def analyze(self, local_id: str) -> str:
        """Why a local job waits, in the batch system's words; empty: it does not say."""
        if self.adapter.analyze is None:
            return ""
        variables = {"id": local_id, "array": self.adapter.naming.array_of(local_id)}
        return read_analysis(self.adapter, self._ask(self.adapter.analyze, variables))

    def slots(self) -> tuple[int, int] | None:
        """The number of slots, and of free ones; None: it does not say."""
        if self.adapter.slots is None:
            return None
        return read_slots(self.adapter, self._ask(self.adapter.slots, {}))

    def version(self) -> str:
        """The batch system's version; empty: it does not say."""
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
        if command.waiting:
            jobs = [*{job.local_id: job for job in jobs}.values()]
        return [make_status(self.adapter, job) for job in jobs if job.owner in ("", read_user(str(os.geteuid())))]

    def _answers(self, command: Command, variables: Mapping[str, Any]) -> Iterator[str]:
        """The output of a command; with a listing, one output for some of the ids at a time."""
        if command.waiting:
            yield self._ask(replace(command, argv=command.waiting), variables)
        if command.listing is None:
            yield self._ask(command, variables)
            return
        ids = self._list_ids(command, command.listing, variables)
        at_once = _FIRST_IDS
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
                # They have gone meanwhile, or the answer has the first id only, as in OpenPBS without -E.
                alone = [one for one in some if not _mentions(printed, one)]
                yield from (self._ask(command, {**variables, "ids": [one]}) for one in alone)
            ids = ids[len(some) :]
            fitting = _COMFORTABLE * len(some) // (len(printed) + 1)
            at_once = max(1, min(_MOST_LISTED, 2 * at_once, fitting))

    def _list_ids(self, command: Command, listing: Listing, variables: Mapping[str, Any]) -> list[str]:
        printed = self._ask(replace(command, argv=listing.argv, outcomes=listing.outcomes), variables)
        lines = printed.splitlines(keepends=True)
        odd = next((line for line in lines if not re.fullmatch(f"(?:{listing.pattern})\n", line)), None)
        if odd is not None:
            raise Garbled(f"{listing.argv[0]}: no id: {odd[:200]!r}")
        ids = [line.rstrip("\n") for line in lines]
        return list(dict.fromkeys(map(self.adapter.naming.array_of, ids))) if listing.has_elements else ids

    def _ask(self, command: Command, variables: Mapping[str, Any]) -> str:
        """Run a command that may be repeated: it is tried again soon if the batch system could not answer."""
        import tenacity  # imported late: slow to load, and the monitor runs no command

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
            everything = {"user": read_user(str(os.geteuid())), **self._site, **variables}
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


def _needs_reason(status: LocalStatus) -> bool:
    return not status.reason and (status.helps != "" or status.state is State.PENDING)


def _mentions(printed: str, wanted: str) -> bool:
    """True if an answer has the id, or for an array the id of an element."""
    pattern = re.escape(wanted).replace(r"\[\]", r"\[\d*\]")
    return re.search(rf"(?<![\w.-]){pattern}(?![\w.-])", printed) is not None


def read_answer(read: Reader, printed: str) -> list[Job]:
    """The jobs in a command's output; raises Garbled: the output cannot be read, or is impossible."""
    jobs = _read(lambda text: list(islice(read(text), _MOST_JOBS + 1)), printed)
    if len(jobs) > _MOST_JOBS:
        raise Garbled(f"more than {_MOST_JOBS} jobs: {printed[:200]!r}")
    odd = next(
        (job for job in jobs if abs(job.exit_code or 0) > _LARGEST_CODE or len(job.local_id) > _LONGEST_ID), None
    )
    if odd is not None:
        raise Garbled(f"no such id or exit code can be, of {odd.local_id[:50]}: {printed[:200]!r}")
    return jobs


def _read(read: Callable[[str], Result], printed: str) -> Result:
    """What a reader makes of an output; raises Garbled, with the output in the message, whatever the reader raises."""
    try:
        return read(printed)
    except Garbled:
        raise
    except Exception as error:  # an answer may be anything
        raise Garbled(f"{type(error).__name__}: {str(error)[:200]}: {printed[:200]!r}") from error


def read_max_array(adapter: BatchAdapter, printed: str) -> int:
    """Most local jobs in one array, from the batch system's output, and at most the adapter's number.

    :raises Garbled: there is no number.
    """
    found = re.search(adapter.read_array_limit, printed)
    if found is None:
        raise Garbled(f"{adapter.name}: no array limit in {printed[:200]!r}")
    # Without group 1 the answer is that there is no limit.
    if found[1] is None:
        return adapter.max_array
    if not re.fullmatch(r"\d+", found[1], re.ASCII):
        raise Garbled(f"{adapter.name}: an array limit that is no number: {found[1][:200]!r}")
    return max(1, min(int(found[1][:9]), adapter.max_array))


def read_slots(adapter: BatchAdapter, printed: str) -> tuple[int, int]:
    """The number of slots, and of free ones, summed over queues or hosts; raises Garbled: there is no such number."""
    found = list(re.finditer(adapter.read_slots, printed, re.ASCII))
    if not found:
        raise Garbled(f"{adapter.name}: no slots in {printed[:200]!r}")
    total, free = (sum(int(match[name][:9]) for match in found) for name in ("total", "free"))
    return total, free


def read_reasons(adapter: BatchAdapter, printed: str) -> Mapping[str, str]:
    """What blocks local jobs, by their ids; raises Garbled."""
    return {local_id: reason[:_LONGEST_WHY] for local_id, reason in _read(adapter.read_why, printed).items()}


def read_analysis(adapter: BatchAdapter, printed: str) -> str:
    """Why a local job waits: each reason once, all in one line."""
    found = re.findall(adapter.read_analysis, printed)
    return "; ".join(dict.fromkeys(" ".join(reason.split()) for reason in found))[:_LONGEST_WHY]


def make_status(adapter: BatchAdapter, job: Job) -> LocalStatus:
    """Translate a job in an answer into our words; adds the command that helps if it is blocked."""
    state = adapter.states.get(job.native_state)
    if state is None:
        logger.warning("%s %s: unknown native state %r", adapter.name, job.local_id, job.native_state)
    cause = job.cause or adapter.causes.get(job.native_state)
    fields = (job.local_id, job.native_state, state, job.exit_code, job.reason, job.token, cause)
    helps = "" if state is not None and state.is_final else _render_help(adapter, job)
    is_leaving = job.native_state in adapter.leaving
    return LocalStatus(*fields, by=read_user(job.by), is_leaving=is_leaving, helps=helps)


def _render_help(adapter: BatchAdapter, job: Job) -> str:
    """The command that unblocks a local job; empty if it is not blocked."""
    said = f"{job.native_state} {job.reason}".strip()
    for pattern, command in adapter.blocks.items():
        if re.fullmatch(pattern, said, re.DOTALL):
            return command.format(id=job.local_id, array=adapter.naming.array_of(job.local_id))
    return ""


@functools.cache
def read_user(by: str) -> str:
    """The name of a user that a batch system names by number, if this machine knows it."""
    if not re.fullmatch(r"\d{1,9}", by, re.ASCII):
        return by
    try:
        return pwd.getpwuid(int(by)).pw_name
    except KeyError:
        return by


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, Unreachable) and not isinstance(error, TimedOut | RateLimited)
