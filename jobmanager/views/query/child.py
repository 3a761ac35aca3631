"""The child process of one question: reads it from standard input, and writes the answer to standard output as JSON."""

import functools
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobmanager.database.database import DamagedDocument, Database, DatabaseError
from jobmanager.views.query.xpath import BadExpression, WireItem, evaluate_xpath


@dataclass(frozen=True)
class Question:
    """What is asked, and within which limits (those of `querying.Limits`)."""

    database: str | None
    identity: str | None
    expression: str
    language: str
    memory: int
    seconds: float
    answer: int


class TooLarge(Exception):
    """The answer is larger than it may be."""


def main(argv: Sequence[str] = ()) -> int:
    """Answer one question."""
    question = Question(**json.load(sys.stdin.buffer))
    _limit(question)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as stream:
        stream.write(_answer(question))
    return 0


def _limit(question: Question) -> None:
    # Not RLIMIT_AS: Saxon reserves 32 GB of addresses, of which it uses hardly any.
    resource.setrlimit(resource.RLIMIT_DATA, (question.memory, question.memory))
    # Who asked may be killed; this ends all the same.
    seconds = math.ceil(question.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(question: Question) -> str:
    damages: list[DamagedDocument] = []
    try:
        evaluate = _prepare(question, damages.append)
        _seal()
        items = _take(evaluate(question.expression), question.answer)
        return json.dumps({"items": items, "left_out": [str(damage) for damage in damages]})
    except (BadExpression, DatabaseError, TooLarge) as error:
        return json.dumps({"fault": str(error)})
    except MemoryError:
        return json.dumps({"fault": f"needs more than {question.memory // 1_000_000} MB of memory"})


def _prepare(question: Question, leave_out: Callable[[DamagedDocument], object]) -> Callable[[str], Iterable[WireItem]]:
    """What evaluates an expression, with all that it needs in memory."""
    database = Database(None if question.database is None else Path(question.database))
    tree = database.to_xml(question.identity, leave_out)
    database.close()
    if question.language == "XPath":
        return functools.partial(evaluate_xpath, tree)
    from jobmanager.views.query.xquery import prepare_xquery

    return prepare_xquery(tree)


def _seal() -> None:
    """From here on no file and no connection can be opened, by whatever function, and nothing is printed."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.dup2(nothing, sys.stderr.fileno())
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _take(items: Iterable[WireItem], most: int) -> list[WireItem]:
    taken, size = [], 0
    for item in items:
        size += len(item[1]) + sum(len(name) + len(value) for name, value in item[2])
        if size > most:
            raise TooLarge(f"the answer has more than {most} letters: ask for less, or count")
        taken.append(item)
    return taken
