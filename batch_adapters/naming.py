"""The local ids of one batch system: reads them from what submit prints, and knows which jobs form an array."""

import functools
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

TOKEN = re.compile(r"([a-z][a-z0-9]{7})-[0-9a-z]{1,6}", re.ASCII)
"""The name of each submission of ours; group 1 is the grid job."""
_OUTPUT = re.compile(rf"/({TOKEN.pattern})\.(?:[^/|]+\.)?driver\b", re.ASCII)


def find_token(output: str) -> str:
    """The token in the path of the file for what the batch system prints for a job; empty: there is none.

    It says what the job was submitted as: people and sites rename jobs, but leave their files alone.
    """
    found = _OUTPUT.search(output)
    return found[1] if found else ""


@dataclass(frozen=True)
class Naming:
    """Formats of ids. They use the named groups of ``submitted``, and ``{n}``, the number of an element in its array.

    With ``(?P<id>\\d+)`` as ``submitted``, Slurm's elements are ``{id}_{n}``. A group ``last`` must match the number of
    the last element that was submitted.
    """

    submitted: str
    """Pattern for all that submit prints, except trailing white space."""
    single: str
    """Id of a local job that is not in an array."""
    element: str = ""
    """Id of an element of an array; empty: there are no arrays."""
    array: str = ""
    """Id of a whole array; empty: it has none."""
    first: int = 1
    """Number of an array's first element."""
    span: str = ""
    """Id for cancelling elements ``{n}`` to ``{last}`` of an array; empty: there is none."""

    def read_submitted(self, printed: str, count: int) -> dict[int, str] | None:
        """The local id of each position (1 to ``count``); None if the answer is not as expected."""
        match = re.fullmatch(self.submitted, printed.rstrip())
        # Without the line break, the id may be cut short, and be that of another job.
        if match is None or not printed.endswith("\n"):
            return None
        groups = match.groupdict()
        last = groups.pop("last", None)
        if last is not None and last != str(self.first + count - 1):
            return None
        if count == 1:
            return {1: self.single.format(**groups, n=self.first)}
        return {number + 1: self.element.format(**groups, n=self.first + number) for number in range(count)}

    def position_of(self, local_id: str) -> int:
        """The position of a local job in its array, from 1."""
        match = self._match(local_id)
        return int(match["n"]) - self.first + 1 if match else 1

    def array_of(self, local_id: str) -> str:
        """The id of a local job's array; its own id if it is not in an array."""
        match = self._match(local_id)
        return self.array.format_map(_without_number(match)) if match else local_id

    def fold(self, ids: Iterable[str]) -> list[str]:
        """Fewer ids for the same local jobs: one id for consecutive elements of an array, if there are such ids."""
        if not self.span:
            return list(ids)
        folded = []
        arrays: dict[str, dict[int, re.Match[str]]] = {}
        for local_id in ids:
            match = self._match(local_id)
            if match is None:
                folded.append(local_id)
            else:
                arrays.setdefault(self.array_of(local_id), {})[int(match["n"])] = match
        return folded + [local_id for elements in arrays.values() for local_id in self._fold_elements(elements)]

    def _fold_elements(self, elements: Mapping[int, re.Match[str]]) -> Iterator[str]:
        for n in sorted(elements):
            if n - 1 in elements:
                continue
            last = n
            while last + 1 in elements:
                last += 1
            template = self.element if last == n else self.span
            yield template.format(**_without_number(elements[n]), n=n, last=last)

    def _match(self, local_id: str) -> re.Match[str] | None:
        return _reverse(self.element).fullmatch(local_id) if self.element else None


def _without_number(match: re.Match[str]) -> Mapping[str, str]:
    return {name: value for name, value in match.groupdict().items() if name != "n"}


@functools.cache
def _reverse(template: str) -> re.Pattern[str]:
    """The pattern of all texts that a format can give."""
    pattern = ""
    for text, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(text)
        if name is not None:
            pattern += r"(?P<n>\d+)" if name == "n" else f"(?P<{name}>.*?)"
    return re.compile(pattern)
