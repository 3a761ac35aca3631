"""The embedded batch system: samgrid-fork, whose words are those of batch_adapters/fork/commands.py.

That the real one does what this one does, test_exactly_once.py and test_fork_system.py show.
"""

import os
from collections.abc import Callable, Sequence

from tests.conformance.fakes.book import BROKEN, CANCELLED, ENDED, HELD, LEAVING, PENDING, RUNNING, SUSPENDED, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Options, Reply, Show, Submit, UnknownCommand, want

PROGRAMS = ("samgrid-fork",)
NAMES = ("samgrid-fork",)
HAS_HISTORY = False

_WORDS = {
    **{PENDING: "queued", HELD: "queued", RUNNING: "running", SUSPENDED: "running", LEAVING: "running"},
    **{ENDED: "ended", BROKEN: "lost"},
}


def read(program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
    """See `Dialect`."""
    command, *words = Options(arguments, "--spool --slots --grace").rest
    match command:
        case "submit":
            return _read_submission(Options(words, "--token --count --stdout --stderr --directory --wall-time --cores"))
        case "query":
            options = Options(words, "--token")
            if options.has("--token"):
                token = options.get("--token")
                return Show("find", lambda job: _is_shown(job) and job.token == token, _render_jobs)
            if options.rest:
                return Show("status", lambda job: _is_shown(job) and local_id(job) in options.rest, _render_jobs)
            return Show("queue", _is_shown, _render_jobs)
        case "cancel":
            return Cancel(lambda job: local_id(job) in words, lambda jobs: _render_cancelled(jobs, words))
    raise UnknownCommand(command)


def _is_shown(job: Job) -> bool:
    return not job.forgotten


def _read_submission(options: Options) -> Submit:
    last = int(options.get("--count"))
    want(options.rest[0] == "/bin/sh", f"the program {options.rest}")
    return Submit(
        options.get("--token"),
        range(1, last + 1),
        options.rest,
        lambda jobs: Reply(f"{options.get('--token')} 1-{last}\n"),
    )


def _render_jobs(jobs: Sequence[Job]) -> Reply:
    return Reply("".join(f"{local_id(job)} {_describe(job)}\n" for job in jobs))


def _describe(job: Job) -> str:
    if job.state == CANCELLED:
        return f"{'killed 143' if job.runs else 'cancelled -'} cancelled-outside by {os.geteuid()}"
    return f"{_WORDS[job.state]} {job.exit_code if job.state == ENDED else '-'}"


def _render_cancelled(jobs: Sequence[Job], words: Sequence[str]) -> Reply:
    states = {local_id(job): job for job in jobs}

    def outcome(word: str) -> str:
        if word not in states:
            return "unknown"
        job = states[word]
        return "ended" if not job.is_live else "signalled" if job.state == RUNNING else "cancelled"

    return Reply("".join(f"{word} {outcome(word)}\n" for word in words))


def say_down(program: str) -> Reply:
    """See `Dialect`: the spool cannot be read."""
    return Reply("", "samgrid-fork: /spool/fork/queue.lock: Input/output error\n", 1)


def say_cut_off() -> Reply:
    """See `Dialect`: the disk fails under it."""
    return say_down("samgrid-fork")


def local_id(job: Job) -> str:
    """See `Dialect`."""
    return f"{job.token}.{job.element}"


def variables(job: Job) -> dict[str, str]:
    """See `Dialect`."""
    return {"SAMGRID_FORK_ID": local_id(job), "SAMGRID_FORK_INDEX": str(job.element)}
