"""Requests in the Globus Resource Specification Language (RSL 1.0), read and written as GRAM understands it."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from adapters import Value, canonical_name

if TYPE_CHECKING:
    from lark import Lark, Token, Tree, UnexpectedInput

    Node: TypeAlias = Tree[Token]

MAX_BYTES = 64_000
"""The longest RSL message that a GRAM job manager accepts; variables may not make a request longer either."""

MAX_DEPTH = 32
"""How many parentheses may be open at once inside a relation."""

# Characters that XML cannot hold, such as NUL: the request is stored in the XML job database.
_UNSTORABLE = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
ATTRIBUTE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:,@%-]+")

_EXPECTED = {"AMPERSAND": '"&"', "EQUAL": '"="', "OPEN": '"("', "RPAR": '")"', "$END": "the end"}

_TOO_DEEP = f"more than {MAX_DEPTH} parentheses are open here"

_NEVER_CLOSED = {
    "(": "this comment is never closed by *)",
    '"': 'the text quoted here is never closed (a " inside it is written twice)',
    "'": "the text quoted here is never closed (a ' inside it is written twice)",
    "^": "the text quoted here is never closed (its delimiter, the character after ^, ends it)",
}

_ONE_REQUEST = "only one request is understood, &(attribute = value)(attribute = value)"
_ONLY_EQUAL = 'only "=" is understood between an attribute and its values'
_NOT_UNDERSTOOD = {
    "+": f'{_ONE_REQUEST}, no multi-request with "+"',
    "|": f'{_ONE_REQUEST}, no alternatives with "|"',
    "&": f'{_ONE_REQUEST}, with one "&" at the beginning and no requests inside it',
    "(": f"{_ONE_REQUEST}, no requests inside it",
    "!": f"{_ONLY_EQUAL}, not !=",
    "<": f"{_ONLY_EQUAL}, not < or <=",
    ">": f"{_ONLY_EQUAL}, not > or >=",
}


class RslError(ValueError):
    """A request has a fault; with its line and column (from 1)."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


@dataclass(frozen=True)
class Relation:
    """One ``(name = values)`` of a request; its position is ignored in comparisons."""

    name: str
    values: tuple[Value, ...]
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)


Relations = tuple[Relation, ...]
"""A request's relations in the order written; an attribute may occur twice."""


def read_rsl(text: str, variables: Mapping[str, str] = {}) -> Relations:
    """The relations of a request, with variables and rsl_substitution put in; raises RslError, nothing else."""
    check_text(text)
    return tuple(_Substitution(variables).read_relations(_read_tree(text)))


def render_rsl(relations: Iterable[Relation]) -> str:
    """The relations (at least one) as a request, one a line; `read_rsl` is the inverse."""
    lines = [f"({relation.name} = {_render_values(relation.values)})" for relation in relations]
    return "&" + "\n ".join(lines) + "\n"


def _render_values(values: Iterable[Value]) -> str:
    return " ".join(_render_value(value) for value in values)


def _render_value(value: Value) -> str:
    if isinstance(value, tuple):
        return f"({_render_values(value)})"
    if _PLAIN_WORD.fullmatch(value):
        return value
    quoted = value.replace('"', '""')
    return f'"{quoted}"'


def check_text(text: str) -> None:
    """Refuse a request that is too long, or that XML cannot hold; raises RslError."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise RslError(f"the request has {size} bytes, but GRAM takes {MAX_BYTES} at most", 1, 1)
    unstorable = _UNSTORABLE.search(text)
    if unstorable:
        line, column = _read_place(text, unstorable.start())
        raise RslError(f"the character U+{ord(unstorable.group()):04X} cannot be part of a request", line, column)


def _read_place(text: str, position: int) -> tuple[int, int]:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


@functools.cache
def _parser() -> "Lark":
    # lark is slow to load, and most commands read no request.
    from lark import Lark

    grammar = Path(__file__).with_name("rsl.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="request", parser="lalr", propagate_positions=True)


def _read_tree(text: str) -> "Node":
    from lark import UnexpectedCharacters, UnexpectedToken

    try:
        return _parser().parse(text)
    except UnexpectedCharacters as error:
        found = text[error.pos_in_stream or 0]
        raise RslError(_read_stray(found, error.allowed, _read_opened(error)), error.line, error.column) from error
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _read_early_end(text, error.expected, _read_opened(error)) from error
        complaint = _read_complaint(str(error.token), error.expected, _read_opened(error))
        raise RslError(complaint, error.line, error.column) from error


def _read_opened(error: "UnexpectedInput") -> list["Token"]:
    opened = []
    for item in error.state.value_stack:
        kind = getattr(item, "type", "")
        if kind in ("OPEN", "VARIABLE"):
            opened.append(item)
        elif kind == "RPAR":
            opened.pop()
    return opened


def _read_early_end(text: str, expected: Iterable[str], opened: list["Token"]) -> RslError:
    if opened:
        first = opened[-1]
        return RslError(f'this "{first}" is never closed', first.line or 1, first.column or 1)
    line, column = _read_place(text, len(text))
    return RslError(f"expected {_render_expected(expected, opened)}, found the end of the request", line, column)


def _read_stray(found: str, expected: Iterable[str], opened: list["Token"]) -> str:
    if found in _NEVER_CLOSED:
        return _NEVER_CLOSED[found]
    if found == "$":
        return 'a variable is written $(NAME); a value with "$" in it needs quotes'
    return _read_complaint(found, expected, opened)


def _read_complaint(found: str, expected: Iterable[str], opened: list["Token"]) -> str:
    in_values = "QUOTED" in expected
    in_variable = bool(opened) and opened[-1].type == "VARIABLE"
    if found in _NOT_UNDERSTOOD and not in_values and not in_variable:
        return _NOT_UNDERSTOOD[found]
    hint = ""
    if in_values and found in "=+|&!<>":
        hint = f'; a value with "{found}" in it needs quotes'
    if in_values and found == "=" and len(opened) > 1:
        hint += f', or the "(" of line {opened[-2].line}, column {opened[-2].column} is not closed'
    return f"expected {_render_expected(expected, opened)}, found {_render_found(found)}{hint}"


def _render_expected(expected: Iterable[str], opened: list["Token"]) -> str:
    words = [word for name, word in _EXPECTED.items() if name in expected]
    if "QUOTED" in expected:
        words = ["a value", *(word for word in words if word != '"("')]
    elif "WORD" in expected:
        words = ["a variable's name" if opened[-1].type == "VARIABLE" else "an attribute's name"]
    return " or ".join(words)


def _render_found(found: str) -> str:
    first_line = found.split("\n")[0]
    short = first_line if len(first_line) <= 40 else first_line[:37] + "..."
    return short if short[0] in "\"'^" else f'"{short}"'


class _Substitution:
    """Computes values of parse trees with the variables known so far."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._length = 0

    def read_relations(self, request: "Node") -> Iterator[Relation]:
        for relation in _read_subtrees(request):
            token = _read_token(relation, 1)
            name, line, column = str(token), token.line or 1, token.column or 1
            if not ATTRIBUTE_NAME.fullmatch(name):
                allowed = "a letter or _, then letters, digits, _ . -"
                raise RslError(f"{_render_found(name)} is no attribute's name ({allowed})", line, column)
            if canonical_name(name) == "rslsubstitution":
                self._define(relation)
            else:
                yield Relation(name, self._read_values(relation, 0), line, column)

    def _define(self, relation: "Node") -> None:
        for node in _read_subtrees(relation):
            match self._read_value(node, 0):
                case (str(name), str(text)):
                    self._variables[name] = text
                case _:
                    raise _error_at(node, "rsl_substitution takes (NAME value) pairs")

    def _read_values(self, node: "Node", depth: int) -> tuple[Value, ...]:
        if depth > MAX_DEPTH:
            raise _error_at(node, _TOO_DEEP)
        return tuple(self._read_value(value, depth) for value in _read_joined(_read_subtrees(node)))

    def _read_value(self, node: "Node", depth: int) -> Value:
        if node.data == "sequence":
            return self._read_values(node, depth + 1)
        return self._read_text(node, depth)

    def _read_text(self, node: "Node", depth: int) -> str:
        if depth > MAX_DEPTH:
            raise _error_at(node, _TOO_DEEP)
        return "".join(self._read_part(part, depth) for part in _read_subtrees(node))

    def _read_part(self, part: "Node", depth: int) -> str:
        if part.data == "variable":
            return self._read_variable(part, depth)
        text = _read_token(part, 0)
        return read_quoted(text) if part.data == "quoted" else str(text)

    def _read_variable(self, node: "Node", depth: int) -> str:
        name = str(_read_token(node, 1))
        defaults = _read_joined(_read_subtrees(node))
        if len(defaults) > 1:
            raise _error_at(defaults[1], f'"$({name} ...)" takes one default; join several with "#" or quote them')
        if name in self._variables:
            return self._inserted(self._variables[name], node)
        if defaults:
            return self._inserted(self._read_text(defaults[0], depth + 1), node)
        way_out = f"(rsl_substitution = ({name} value)) before this defines it"
        raise _error_at(node, f"the variable {name} is not defined; {way_out}")

    def _inserted(self, text: str, node: "Node") -> str:
        # Variables that each contain another one twice would fill any memory.
        self._length += len(text)
        if self._length > MAX_BYTES:
            raise _error_at(node, f"the variables of this request grow to more than {MAX_BYTES} characters")
        return text


def _read_joined(values: Iterable["Node"]) -> list["Node"]:
    """The values, with adjacent ones at a variable joined (RSL's implicit concatenation)."""
    joined: list[Node] = []
    for value in values:
        if joined and _touch(joined[-1], value):
            joined[-1].children.extend(value.children)
        else:
            joined.append(value)
    return joined


def _touch(left: "Node", right: "Node") -> bool:
    if left.data != "text" or right.data != "text":
        return False
    end, begin = cast("Node", left.children[-1]), cast("Node", right.children[0])
    # Two words are never adjacent, so one of the two is a variable.
    return "quoted" not in (end.data, begin.data) and end.meta.end_pos == begin.meta.start_pos


def read_quoted(token: str) -> str:
    """The text in quotes, inside which the quote is written twice; behind ^, any character is one."""
    quoted = token.removeprefix("^")
    delimiter = quoted[0]
    return quoted[1:-1].replace(delimiter * 2, delimiter)


def _read_subtrees(node: "Node") -> list["Node"]:
    return [child for child in node.children if not isinstance(child, str)]


def _read_token(node: "Node", index: int) -> "Token":
    return cast("Token", node.children[index])


def _error_at(node: "Node", message: str) -> RslError:
    return RslError(message, node.meta.line, node.meta.column)
