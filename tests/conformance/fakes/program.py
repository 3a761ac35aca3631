"""What every command of a fake batch system does.

It understands the command, does to the book what it wants, and answers, all in the dialect's words, unless the plan has
a way to misbehave for it. Arguments that the dialect does not know end it with exit code 99.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conformance.fakes.book import CANCELLED, LOST, RUNNING, SUSPENDED, Book, Job
from tests.conformance.fakes.dialect import Ask, Cancel, Dialect, Reply, Say, Show, Submit, UnknownCommand

UNKNOWN = 99


class Way(NamedTuple):
    """How a command misbehaves: what it does, and what becomes of its answer."""

    does: str
    """``all`` it should, ``nothing``, ``half`` of an array, ``lost`` (its answer is a lie), ``late`` or ``stale``."""
    says: str = "answer"
    """The ``answer``, a part of it or more than it, other words, or nothing at all."""


WAYS = {
    "good": Way("all"),
    "hang-before": Way("nothing", "hang"),
    "hang-after": Way("all", "hang"),
    "die-before": Way("nothing", "die"),
    "die-after": Way("all", "die"),
    "fail-before": Way("nothing", "fail"),
    "fail-after": Way("all", "fail"),
    "down-before": Way("nothing", "down"),
    "cut-after": Way("all", "cut off"),
    "garbage-before": Way("nothing", "garbage"),
    "garbage-after": Way("all", "garbage"),
    "silent-before": Way("nothing", "silent"),
    "silent-after": Way("all", "silent"),
    "banner": Way("all", "banner"),
    "torn": Way("all", "torn"),
    "half": Way("half", "fail"),
    "lost": Way("lost"),
    "late": Way("late", "die"),
    "stale": Way("stale"),
}
LATE = 30.0
"""Seconds after which a late submission is there."""


class Outcome(NamedTuple):
    """What a command prints before it ends, hangs or dies."""

    reply: Reply
    end: str = "exit"


def answer(book: Book, dialect: Dialect, program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Outcome:
    """Run one command: what it prints, and how it ends."""
    try:
        ask = dialect.read(program, arguments, lambda: _read_script(stdin))
    except _NoScript:
        return Outcome(Reply("", "there is nothing to submit\n", 1))
    except UnknownCommand as error:
        book.note_call("unknown", [program, *arguments])
        return Outcome(Reply("", f"the fake {program} does not know {error}\n", UNKNOWN))
    way = WAYS[book.note_call(ask.kind, [program, *arguments])]
    if book.is_down:
        return Outcome(dialect.say_down(program))
    reply = obey(book, ask, way.does)
    if way.says in ("hang", "die"):
        return Outcome(Reply(), way.says)
    return Outcome(spoil(reply, dialect, program, way.says))


class _NoScript(Exception):
    """Who called the command was killed before it could say what is to be submitted."""


def _read_script(stdin: Callable[[], str]) -> str:
    text = stdin()
    if not text:
        raise _NoScript
    return text


def obey(book: Book, ask: Ask, does: str) -> Reply:
    """Do what the command wants, as far as it is to be done; the right answer."""
    if isinstance(ask, Say) or does == "nothing":
        return ask.reply if isinstance(ask, Say) else Reply()
    if isinstance(ask, Submit):
        return submit(book, ask, does)
    if isinstance(ask, Show):
        return ask.render([job for job in book.visible(is_stale=does == "stale") if ask.chosen(job)])
    return cancel(book, ask)


def submit(book: Book, ask: Submit, does: str) -> Reply:
    """Take local jobs."""
    *_, driver, token = ask.script
    if token != ask.token or not driver.startswith("/"):
        raise SystemExit(f"what {ask.token} is to run is {ask.script}")
    now = book.now()
    indexes = read_indexes(Path(driver).parent, token)

    def make(number: int) -> list[Job]:
        elements = [None] if ask.elements is None else ask.elements
        jobs = [
            Job(
                number,
                element,
                position,
                ask.token,
                driver,
                indexes[position - 1],
                ask.brings(element or 0),
                appears=now,
            )
            for position, element in enumerate(elements, start=1)
        ]
        if does == "late":
            return [job._replace(appears=now + LATE) for job in jobs]
        return [job._replace(state=LOST) for job in jobs] if does == "lost" else jobs[: half(jobs, does)]

    taken = book.add(make)
    return ask.render(taken) if taken else Reply()


def read_indexes(sandbox: Path, token: str) -> list[int]:
    """Which local job is at each position of a submission, as its drivers read it."""
    files = sorted(sandbox.glob(f"{token}.*"), key=lambda file: int(file.suffix[1:]))
    return [int(line.split(b" ")[0]) for file in files for line in file.read_bytes().splitlines()[::2]]


def half(jobs: Sequence[Job], does: str) -> int:
    """How many of them are taken."""
    return len(jobs) // 2 if does == "half" else len(jobs)


def cancel(book: Book, ask: Cancel) -> Reply:
    """End local jobs: at once those that wait, a second later those that run."""
    now = book.now()
    chosen = [job for job in book.visible() if ask.chosen(job)]
    ends = {(job.number, job.element, job.appears) for job in chosen if job.is_live}

    def end(job: Job) -> Job:
        if (job.number, job.element, job.appears) not in ends or not job.is_live:
            return job
        return job._replace(state=CANCELLED, gone=now + 1 if job.state in (RUNNING, SUSPENDED) else now)

    book.change(end)
    return ask.render(chosen)


def spoil(reply: Reply, dialect: Dialect, program: str, says: str) -> Reply:
    """What becomes of an answer on its way."""
    match says:
        case "fail":
            return Reply("", "Segmentation fault\n", 139)
        case "down":
            return dialect.say_down(program)
        case "cut off":
            return dialect.say_cut_off()
        case "garbage":
            return Reply("%!@\n")
        case "silent":
            return Reply()
        case "banner":
            return reply._replace(stdout="*** Maintenance on Monday! ***\n" + reply.stdout)
        case "torn":
            return reply._replace(stdout=reply.stdout[: len(reply.stdout) * 2 // 3])
    return reply
