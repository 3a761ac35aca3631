"""GRAM signals a job: of GRAM's own signals four reach the job manager type (globus_gram_protocol_constants.h)."""

import enum

from gram_shims.answers import Answer, refuse
from gram_shims.cancel import cancel
from gram_shims.description import JobDescription
from gram_shims.errors import GramError
from jobmanager.account import Account


class JobSignal(enum.Enum):
    """What a client can wish of a job that exists."""

    CANCEL = "1"
    SUSPEND = "2"
    RESUME = "3"
    PRIORITY = "4"


def signal(account: Account, description: JobDescription) -> Answer:
    """As `gram_shims.cancel.cancel` for that signal; the others are refused, since no batch adapter knows them.

    :raises DatabaseError, OSError: not now.
    """
    number = description.word("signal")
    try:
        wish = JobSignal(number)
    except ValueError:
        return refuse(GramError.UNKNOWN_SIGNAL, f"{number!r} is no signal of GRAM's for jobs")
    if wish is JobSignal.CANCEL:
        return cancel(account, description)
    return refuse(GramError.SIGNALLING_JOB, f"{wish.name.lower()}: no batch system takes that signal from here")
