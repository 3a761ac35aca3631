"""How batch systems name what they took: one id from the submit command makes the ids of all local jobs of an array."""

import functools
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Naming:
    """Formats over the named groups of what submit prints, and ``{n}``, the number of an array's element.

    With ``(?P<id>\\d+)`` as ``submitted``, Slurm's elements are ``{id}_{n}``. Where the answer names the last element,
    group ``last``, it must be the number of the last one that was asked for.
    """

    submitted: str
    """Pattern for all that submit prints but white space at its end."""
    single: str
    """Id of a local job that was submitted alone."""
    element: str = ""
    """Id of an element of an array; empty where there are no arrays."""
    array: str = ""
    """Id of an array as a whole; empty where it has none."""
    first: int = 1
    """Number of an array's first element."""

    def read_submitted(self, printed: str, count: int) -> dict[int, str] | None:
        """From position (1 to ``count``) to local id; None where the answer is not what it should be."""
        match = re.fullmatch(self.submitted, printed.rstrip())
        # Without its line break, an id may be cut short: the id of another job.
        if match is None or not printed.endswith("\n"):
            return None
        groups = match.groupdict()
        last = groups.pop("last", None)
        if last is not None and int(last) != self.first + count - 1:
            return None
        if count == 1:
            return {1: self.single.format(**groups, n=self.first)}
        return {number + 1: self.element.format(**groups, n=self.first + number) for number in range(count)}

    def position_of(self, local_id: str) -> int:
        """The place of a local job in its array, from 1."""
        match = self._match(local_id)
        return int(match["n"]) - self.first + 1 if match else 1

    def array_of(self, local_id: str) -> str:
        """The id of the array that a local job is an element of; its own id where it is none."""
        match = self._match(local_id)
        return self.array.format_map(_without_number(match)) if match else local_id

    def _match(self, local_id: str) -> re.Match[str] | None:
        return _reverse(self.element).fullmatch(local_id) if self.element else None


def _without_number(match: re.Match[str]) -> Mapping[str, str]:
    return {name: value for name, value in match.groupdict().items() if name != "n"}


@functools.cache
def _reverse(template: str) -> re.Pattern[str]:
    """The pattern of all that a format can give."""
    pattern = ""
    for text, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(text)
        if name is not None:
            pattern += r"(?P<n>\d+)" if name == "n" else f"(?P<{name}>.*?)"
    return re.compile(pattern)
