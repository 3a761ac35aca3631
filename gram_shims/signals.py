"""GRAM signals a job: of GRAM's own signals four reach the job manager type (globus_gram_protocol_constants.h)."""

import enum
import re

from batch_adapters.adapter import BatchError, Refused
from batch_adapters.states import State
from gram_shims.answers import Answer, GramError, refuse
from gram_shims.calls import cancel
from gram_shims.description import JobDescription
from gram_shims.origin import find_grid_job
from jobmanager.gram.answers import told_state
from jobmanager.site.account import Account

_PRIORITY = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class JobSignal(enum.Enum):
    """What a client can wish of a job that exists."""

    CANCEL = "1"
    SUSPEND = "2"
    RESUME = "3"
    PRIORITY = "4"


def signal(account: Account, description: JobDescription) -> Answer:
    """As `gram_shims.calls.cancel` for that signal; of the others the state that the grid job is in then.

    :raises DatabaseError, OSError: not now.
    """
    number = description.word("signal")
    try:
        wish = JobSignal(number)
    except ValueError:
        return refuse(GramError.UNKNOWN_SIGNAL, f"{number!r} is no signal of GRAM's for jobs")
    if wish is JobSignal.CANCEL:
        return cancel(account, description)
    identity = find_grid_job(account, description)
    if identity is None:
        return refuse(GramError.SIGNALLING_JOB, f"there is no grid job {description.word('jobid')!r}")
    try:
        return Answer(_pass_on(account, identity, wish, description.word("signalarg")))
    except Refused as error:
        return refuse(GramError.SIGNALLING_JOB, f"{wish.name.lower()}: {error}")
    except BatchError as error:
        return refuse(GramError.SIGNALLING_JOB, f"{wish.name.lower()} may be tried again: {error}")


def _pass_on(account: Account, grid_job: str, wish: JobSignal, argument: str) -> State | None:
    """The state to tell GRAM; None: it stays.

    :raises BatchError: see `jobmanager.control.suspension`.
    """
    # Heavy, and seldom wanted.
    from jobmanager.control.suspension import find_signalled, prioritize_grid_job, resume_grid_job, suspend_grid_job

    part = find_signalled(account, grid_job)
    if wish is JobSignal.SUSPEND:
        return State.SUSPENDED if suspend_grid_job(account, part) else None
    if wish is JobSignal.RESUME:
        resume_grid_job(account, part)
        # It may even have ended since, which the next poll or event tells.
        is_going_on = told_state(account.database.grid_jobs.get(part).state) not in (State.PENDING, State.SUSPENDED)
        return State.ACTIVE if is_going_on else None
    if not _PRIORITY.fullmatch(argument):
        raise Refused(f"{argument!r} is no whole number")
    prioritize_grid_job(account, part, int(argument))
    return None
