"""Reads a request from a file: in RSL, or in the form of SAMGrid's old job description files."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters import JobAdapter, UnusableFile, canonical_name, open_input
from jobmanager.requests.attributes import COMMON_ATTRIBUTES, BadRequest, Given, find_name, read_type
from jobmanager.requests.job_types import find_job_type
from jobmanager.requests.rsl import MAX_BYTES, Relation, Relations, RslError, check_text, read_quoted, read_rsl

MEANINGLESS = frozenset(
    (
        "executable", "sam_experiment", "sam_universe", "group", "instances", "check_consistency", "station_name",
    )
)  # fmt: skip
"""Attributes for SAMGrid's old clients or schedulers: ignored, unless the job type declares them."""

_RSL = re.compile(r"\s*(?:[&|(]|\+\s*[(&|]|$)")
_BLANK = re.compile(r"\s*(?:#.*)?")
_ATTRIBUTE = re.compile(r"\s*\+?\s*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*")
_EQUAL = re.compile(r"=\s*")
_QUOTED = r""""(?:[^"]|"")*"|'(?:[^']|'')*'"""
_WORD = re.compile(rf"(?P<quoted>{_QUOTED})(?=\s|$)|(?P<plain>[^\s\"'][^\s\"']*)(?=\s|$)")
_BETWEEN = re.compile(r"\s*(?:(?<=\s)#.*)?")


def is_job_description(text: str) -> bool:
    """True if a request begins as no RSL does."""
    return not _RSL.match(text)


def read_job_description(text: str) -> Relations:
    """The attributes of a job description file, in their order; raises RslError.

    It is a line ``attribute = value``, or ``+attribute = value``, for each. A value is one word or several with blanks
    between them; "a b" and 'a b' are one word, and a quote inside is written twice. What follows a # at the beginning
    of a line or after a blank, and not inside quotes, is a comment.
    """
    check_text(text)
    lines = enumerate(text.split("\n"), 1)
    return tuple(_read_line(line, number) for number, line in lines if not _BLANK.fullmatch(line))


def drop_meaningless(given: Given, handler: type[JobAdapter]) -> tuple[Given, Sequence[str]]:
    """The attributes without meaningless ones for this job type, and the names of those as written."""
    declared = {find_name(attribute.name) for attribute in (*COMMON_ATTRIBUTES, *handler.attributes)}
    ignored = {canonical_name(name) for name in MEANINGLESS} - declared
    kept = [(name, values) for name, values in given if canonical_name(name) not in ignored]
    return kept, [name for name, _ in given if canonical_name(name) in ignored]


def _read_line(line: str, number: int) -> Relation:
    name = _ATTRIBUTE.match(line)
    if name is None:
        column = len(line) - len(line.lstrip()) + 1
        raise RslError("expected an attribute's name, as in: attribute = value", number, column)
    equal = _EQUAL.match(line, name.end())
    if equal is None:
        raise RslError(f'expected "=" behind {name["name"]}', number, name.end() + 1)
    words = tuple(_read_words(line, equal.end(), number))
    if not words:
        raise RslError(f'{name["name"]} has no value: an empty one is written ""', number, equal.end() + 1)
    return Relation(name["name"], words, number, name.start("name") + 1)


def _read_words(line: str, position: int, number: int) -> Iterator[str]:
    position = _skip(line, position)
    while position < len(line):
        word = _WORD.match(line, position)
        if word is None:
            raise RslError(_describe_fault(line[position]), number, position + 1)
        yield word["plain"] or read_quoted(word["quoted"])
        position = _skip(line, word.end())


def _skip(line: str, position: int) -> int:
    between = _BETWEEN.match(line, position)
    return between.end() if between else position


def _describe_fault(found: str) -> str:
    if found in "\"'":
        return f"the text quoted here is not closed by {found} and a blank ({found} inside it is written twice)"
    return f"a word with a quote in it is put into quotes itself, and the quote inside is written twice: {found}..."


def read_request_file(file: str, site_modules: Sequence[str]) -> tuple[Given, Path]:
    """A request's attributes, and the folder for relative file names; ``-`` is standard input.

    :raises BadRequest: it is no request.
    """
    source = file
    if file == "-":
        source = "standard input"
        if sys.stdin is None:
            raise BadRequest(["standard input is closed: name a file"])
        data, folder = sys.stdin.buffer.read(MAX_BYTES + 1), Path.cwd()
    else:
        try:
            with open_input(Path(file)) as stream:
                data, folder = stream.read(MAX_BYTES + 1), Path(file).resolve().parent
        except UnusableFile as error:
            raise BadRequest([f"{error}; standard input is named -"]) from error
    try:
        return read_request_text(data.decode("utf-8-sig"), source, site_modules), folder
    except UnicodeDecodeError as error:
        raise BadRequest([f"{source}: byte {error.start + 1} is no UTF-8 text: save it as UTF-8"]) from error


def read_request_text(text: str, source: str, site_modules: Sequence[str]) -> Given:
    """A request's attributes; ignored attributes of old job descriptions are named on stderr.

    :param source: the name of the text for messages.
    :param site_modules: the site's modules with job types.
    :raises BadRequest: it is no request.
    """
    try:
        if not is_job_description(text):
            known = {name: os.environ[name] for name in ("HOME", "LOGNAME") if name in os.environ}
            return _read_given(read_rsl(text, known))
        given = _read_given(read_job_description(text))
    except RslError as error:
        raise BadRequest([f"{source}: {error}"]) from error
    kept, ignored = drop_meaningless(given, find_job_type(read_type(given), site_modules))
    if ignored:
        print(f"samgrid: ignored: {', '.join(ignored)}", file=sys.stderr)
    return kept


def _read_given(relations: Relations) -> Given:
    seen = set()
    for relation in relations:
        name = canonical_name(relation.name)
        if name in seen:
            raise RslError(f"{relation.name} is given twice", relation.line, relation.column)
        seen.add(name)
    return [(relation.name, relation.values) for relation in relations]
