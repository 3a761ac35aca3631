"""The commands that submit again what has failed."""

import argparse

from jobmanager.commands.arguments import AddCommand, AddForJob
from jobmanager.site.account import look_into_account

RESUBMIT_HELP = """\
The new grid job has the request of the one that has ended; its id is printed.
--failed: only the local jobs that did not succeed, with their numbers, events and seeds; of a structured grid job the
steps from the first that is not done, which read the outputs of those that are."""

RECOVER_HELP = """\
Finds the grid jobs of a request by the experiment's own id of it, and all that repeat them, and submits again what none
of them has made. Does nothing while one of them has not ended, and nothing when nothing is missing."""


def add_commands(add: AddCommand, add_for_job: AddForJob) -> None:
    """Make the commands known to the command line."""
    command = add_for_job("resubmit", resubmit, "Submit a grid job again that has ended.", RESUBMIT_HELP)
    command.add_argument("--failed", action="store_true", help="only what did not succeed")
    command = add("recover", recover, "Submit again what is missing of a request.", RECOVER_HELP)
    command.add_argument("--request", metavar="ID", required=True, help="the experiment's own id of the request")


def resubmit(options: argparse.Namespace) -> int:
    """Print the id of the repetition."""
    from jobmanager.commands.grid_jobs import CommandError, wake_for
    from jobmanager.control.resubmission import NotRepeatable, repeat_grid_job
    from jobmanager.monitor.client import end_other_monitor

    account = look_into_account(options.state_dir)
    identity = account.database.grid_jobs.find(options.id)
    end_other_monitor(account)
    try:
        job = repeat_grid_job(account, identity, options.failed)
    except NotRepeatable as error:
        raise CommandError(str(error)) from error
    wake_for(account, job.identity)
    print(job.identity)
    return 0


def recover(options: argparse.Namespace) -> int:
    """Say what was missing, and which grid jobs make it now."""
    from jobmanager.commands.grid_jobs import CommandError, wake_for
    from jobmanager.control.resubmission import UnknownRequest, recover_request
    from jobmanager.monitor.client import end_other_monitor
    from jobmanager.views.grid_jobs import printable

    account = look_into_account(options.state_dir)
    end_other_monitor(account)
    try:
        found, jobs = recover_request(account, options.request)
    except UnknownRequest as error:
        raise CommandError(str(error)) from error
    name = f"request {printable(options.request)}"
    if found.running:
        print(f"{name}: nothing is submitted before these have ended: {', '.join(found.running)}")
    elif not jobs:
        print(f"{name}: nothing is missing")
    for gap, job in zip(found.gaps, jobs, strict=False):
        number = len(gap.indexes)
        what = f"{number} local job{'s' if number > 1 else ''}" if number else "the last steps"
        print(f"{name}: {job.identity} makes {what} of {gap.grid_job} again")
    for job in jobs[:1]:
        wake_for(account, job.identity)
    return 0
