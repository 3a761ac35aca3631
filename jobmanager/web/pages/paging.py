"""Long tables on several pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True)
class Paging:
    """Which page of a long table is shown; pages count from 1."""

    label: str
    page: int
    last: int
    size: int
    parameters: Mapping[str, str]
    anchor: str = ""

    @property
    def first(self) -> int:
        """The first row, counted from 0."""
        return (self.page - 1) * self.size

    def address(self, page: int) -> str:
        """Another page of the same table."""
        return f"?{urlencode({**self.parameters, 'page': page})}{self.anchor}"


def read_paging(label: str, parameters: Mapping[str, str], count: int, size: int, anchor: str = "") -> Paging:
    """The page that a request asks for, or the nearest there is."""
    asked = parameters.get("page", "1")
    last = max(1, -(-count // size))
    page = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 1
    return Paging(label, min(max(page, 1), last), last, size, dict(parameters), anchor)
