"""XPath expressions that can be evaluated document by document, selected by columns, without a tree of all documents.

These are paths to grid jobs or local jobs, with predicates that compare attributes with literals, followed by names
only, as in ``//grid-job[@owner="maria"]/local-job[@state="active" or @state="pending"]/phase``; and arithmetic
with counts of such paths. Everything else in XPath needs the tree.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lxml import etree

from jobmanager.database.database import Database
from jobmanager.database.documents import read_document
from jobmanager.database.grid_jobs import GRID_JOB_ATTRIBUTES
from jobmanager.database.local_jobs import LOCAL_JOB_ATTRIBUTES

_TOKEN = re.compile(
    r"""\s*(//|[!<>]=|[][()@/=<>+-]|[A-Za-z_][\w.-]*|\d{1,15}(?![\d.])|"[ !#-~]*"|'[ -&(-~]*')""", re.ASCII
)
_MOST_TOKENS = 200
"""Neither Python nor SQLite accepts unlimited nesting."""
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_ARITHMETIC = (*_COMPARISONS, "(", ")", "+", "-", "div", "mod", "and", "or")


class _NeedsTree(Exception):
    """The expression needs the tree."""


@dataclass(frozen=True)
class Condition:
    """The predicates for a document: SQL for columns with its values, and XPath for everything else."""

    sql: str = "TRUE"
    values: tuple[str, ...] = ()
    xpath: str = ""


@dataclass(frozen=True)
class Path:
    """A path: which documents, and what in each."""

    grid_job: Condition
    local_job: Condition | None
    """None: the path is to grid jobs, not to local jobs."""
    below: str
    """XPath relative to the document's root; empty: the root itself."""

    def find(self, database: Database, job_id: str | None) -> Iterator[object]:
        """What XPath would find, in its order; raises DamagedDocument: a document cannot be read."""
        find = etree.XPath(f"self::*{(self.local_job or self.grid_job).xpath}{self.below}")
        for grid_job, number, data in database.select(job_id, *self._conditions()):
            found = find(read_document("local-job" if self.local_job else "grid-job", data, grid_job, number))
            assert isinstance(found, list)
            yield from found

    def count(self, database: Database, job_id: str | None) -> int:
        """The number of nodes that `find` would give."""
        if self.below or (self.local_job or self.grid_job).xpath:
            return sum(1 for _ in self.find(database, job_id))
        return database.count_selected(job_id, *self._conditions())

    def _conditions(self) -> tuple[str, str | None, tuple[str, ...]]:
        local = self.local_job
        if local is None:
            return self.grid_job.sql, None, self.grid_job.values
        return self.grid_job.sql, local.sql, local.values + self.grid_job.values


@dataclass(frozen=True)
class Arithmetic:
    """An arithmetic expression with counts of paths."""

    parts: tuple[Path | str, ...]

    def render(self, database: Database, job_id: str | None) -> str:
        """The expression with the counts as numbers."""
        return " ".join(part if isinstance(part, str) else str(part.count(database, job_id)) for part in self.parts)


def read_selection(expression: str) -> Path | Arithmetic | None:
    """What an expression selects; None if it needs the tree."""
    try:
        return _Reader(expression).read()
    except _NeedsTree:
        return None


class _Reader:
    """Reads one expression, token by token."""

    def __init__(self, expression: str) -> None:
        self._tokens = _TOKEN.findall(expression)
        if _TOKEN.sub("", expression).strip() or len(self._tokens) > _MOST_TOKENS:
            raise _NeedsTree
        self._at = 0

    def read(self) -> Path | Arithmetic:
        if self._next in ("/", "//"):
            path = self._read_path()
            if self._next or (path.local_job is None and not path.below):
                raise _NeedsTree  # in the tree, a grid job's element contains its local jobs
            return path
        parts: list[Path | str] = []
        while token := self._next:
            self._at += 1
            if token == "count":
                self._need("(")
                parts.append(self._read_path())
                self._need(")")
            elif token in _ARITHMETIC or token.isdigit():
                parts.append(token)
            else:
                raise _NeedsTree
        if not any(isinstance(part, Path) for part in parts):
            raise _NeedsTree
        return Arithmetic(tuple(parts))

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> bool:
        """Consume these tokens if they come next; True if they did."""
        end = self._at + len(wanted)
        is_next = tuple(self._tokens[self._at : end]) == wanted
        self._at = end if is_next else self._at
        return is_next

    def _need(self, *wanted: str) -> None:
        if not self._take(*wanted):
            raise _NeedsTree

    def _read_name(self) -> str:
        name = self._next
        if not re.match(r"[A-Za-z_]", name):
            raise _NeedsTree
        self._at += 1
        return name

    def _read_path(self) -> Path:
        grid_job, local_job = Condition(), None
        if self._take("//", "local-job"):
            local_job = self._read_predicates(LOCAL_JOB_ATTRIBUTES)
        else:
            if not self._take("//", "grid-job"):
                self._need("/", "jobs", "/", "grid-job")
            grid_job = self._read_predicates(GRID_JOB_ATTRIBUTES)
            if self._take("/", "local-job"):
                local_job = self._read_predicates(LOCAL_JOB_ATTRIBUTES)
                if grid_job.xpath:
                    raise _NeedsTree
        below = ""
        while self._take("/"):
            is_attribute = self._take("@")
            below += f"/{'@' if is_attribute else ''}{self._read_name()}"
            if is_attribute:
                break
        return Path(grid_job, local_job, below)

    def _read_predicates(self, columns: Mapping[str, str]) -> Condition:
        sql, values, xpath = "TRUE", list[str](), ""
        while self._take("["):
            start, given = self._at, list[str]()
            part = self._read_or(columns, given)
            self._need("]")
            if part is None:
                xpath += f"[{' '.join(self._tokens[start : self._at - 1])}]"
            else:
                sql += f" AND {part}"
                values += given
        return Condition(sql, tuple(values), xpath)

    def _read_or(self, columns: Mapping[str, str], values: list[str]) -> str | None:
        parts = [self._read_and(columns, values)]
        while self._take("or"):
            parts.append(self._read_and(columns, values))
        return _join(" OR ", parts)

    def _read_and(self, columns: Mapping[str, str], values: list[str]) -> str | None:
        parts = [self._read_term(columns, values)]
        while self._take("and"):
            parts.append(self._read_term(columns, values))
        return _join(" AND ", parts)

    def _read_term(self, columns: Mapping[str, str], values: list[str]) -> str | None:
        """SQL for one comparison; None if there is no such column."""
        if self._take("("):
            inner = self._read_or(columns, values)
            self._need(")")
            return inner
        self._need("@")
        column = columns.get(self._read_name())
        operator = self._next
        if operator not in _COMPARISONS:
            return column and f"{column} IS NOT NULL"
        self._at += 1
        literal = self._next
        self._at += 1
        if literal[:1] in ("'", '"'):
            values.append(literal[1:-1])
            # XPath converts the operands of < and > to numbers.
            return column and f"{column} {operator} ?" if operator in ("=", "!=") else None
        if not literal.isdigit():
            raise _NeedsTree
        return None


def _join(word: str, parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return f"({word.join(known)})" if len(known) == len(parts) else None
