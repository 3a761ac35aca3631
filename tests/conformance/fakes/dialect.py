"""What a dialect is: how the commands of one batch system are understood, and the words of its answers.

A dialect is a module of this folder, with the functions and names of `Dialect`. Its option tables are the manual's, its
words those of the recordings; what they do not have, it must not understand.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from tests.conformance.fakes.book import Job


class UnknownCommand(Exception):
    """The real command knows no such arguments, as far as the dialect's sources say."""


class Reply(NamedTuple):
    """What a command prints, and how it ends."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class Submit(NamedTuple):
    """Somebody submits ``count`` local jobs under one name; ``elements`` None: alone, and not as an array."""

    token: str
    elements: Sequence[int] | None
    script: Sequence[str]
    """The driver with its argument, the token."""
    render: Callable[[Sequence[Job]], Reply]
    brings: Callable[[int], tuple[str, ...]] = lambda element: ()
    """The files to be carried to an element."""
    kind: str = "submit"


class Show(NamedTuple):
    """Somebody asks for local jobs; kind is ``queue``, ``find``, ``status`` or ``history``.

    Where such a question is two commands, the second is of the kind ``details``.
    """

    kind: str
    chosen: Callable[[Job], bool]
    render: Callable[[Sequence[Job]], Reply]


class Cancel(NamedTuple):
    """Somebody cancels local jobs; the answer gets them as they were before."""

    chosen: Callable[[Job], bool]
    render: Callable[[Sequence[Job]], Reply]
    kind: str = "cancel"


class Say(NamedTuple):
    """Somebody asks what never changes: a limit, a version."""

    kind: str
    reply: Reply


Ask = Submit | Show | Cancel | Say


class Dialect(Protocol):
    """One batch system's words."""

    PROGRAMS: Sequence[str]
    """Its commands."""
    NAMES: Sequence[str]
    """Words that only messages about this batch system may have."""
    HAS_HISTORY: bool
    """Some command of it tells of ended jobs."""

    def read(self, program: str, arguments: Sequence[str], stdin: Callable[[], str]) -> Ask:
        """What a command wants; raises UnknownCommand."""

    def say_down(self, program: str) -> Reply:
        """What a command says while the daemon is dead, as recorded."""

    def say_cut_off(self) -> Reply:
        """What a submit command says whose connection broke when the daemon had what it was sent."""

    def local_id(self, job: Job) -> str:
        """The id that people and commands use."""

    def variables(self, job: Job) -> dict[str, str]:
        """What a running job finds in its environment."""


def find_dialect(name: str) -> Dialect:
    """The dialect of that name."""
    return cast(Dialect, import_module(f"tests.conformance.fakes.{name}"))


class Options:
    """The options of a command line, as the command's manual lists them, and the arguments after them."""

    def __init__(self, arguments: Iterable[str], valued: str, flags: str = "") -> None:
        """``valued`` and ``flags`` are the options with and without a value; ``--name=value`` is understood as well.

        :raises UnknownCommand: for any other.
        """
        self._values: list[tuple[str, str]] = []
        self.rest: list[str] = []
        words = iter(arguments)
        for word in words:
            name, equals, value = word.partition("=")
            if word == "--":
                self.rest += words
            elif word in flags.split():
                self._values.append((word, ""))
            elif word in valued.split():
                self._values.append((word, self._next(words, word)))
            elif equals and name.startswith("--") and name in valued.split():
                self._values.append((name, value))
            elif word.startswith("-") and word != "-":
                raise UnknownCommand(f"option {word}")
            else:
                # The script's own arguments follow.
                self.rest += [word, *words]

    @staticmethod
    def _next(words: "Iterable[str]", option: str) -> str:
        for word in words:
            return word
        raise UnknownCommand(f"option {option} without its value")

    def has(self, *names: str) -> bool:
        """True if one of the option's spellings is there."""
        return any(name in names for name, _ in self._values)

    def get(self, *names: str) -> str:
        """The last value given to one of the option's spellings; raises UnknownCommand if there is none."""
        values = [value for name, value in self._values if name in names]
        if not values:
            raise UnknownCommand(f"no {names[0]}")
        return values[-1]


def want(is_so: bool, what: str) -> None:
    """Raise UnknownCommand unless it is so."""
    if not is_so:
        raise UnknownCommand(what)
