"""A site's tables ``[batch.NAME]``: each changes fields of a batch adapter, or defines a new one.

The keys are the fields of `BatchAdapter` and `Command`; the two readers are given as patterns of a line: ``jobs`` (and
``jobs_others``), ``ended`` (and ``ended_others``), see `Lines`. ``based_on`` names the adapter to start from.
"""

import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from adapters.attributes import Attribute, Kind, read_table
from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Lines, Meaning
from batch_adapters.naming import Naming
from batch_adapters.registry import ADAPTERS, BadAdapter, Tables, check_name, find_builtin
from batch_adapters.states import CAUSE_OF_WORD, STATE_OF_WORD

_COMMANDS = (
    *("submit", "queue", "find", "status", "cancel", "history", "array_limit", "version"),
    *("suspend", "resume", "hold", "release", "priority", "analyze", "forget"),
)
_WANTED = ("submit", "naming", "queue", "find", "status", "jobs", "cancel", "states", "local_id_words", "index_words")
_READERS = {"jobs": "read_jobs", "ended": "read_history"}
_STATES = {word: STATE_OF_WORD[word] for word in ("pending", "active", "failed", "done", "suspended")}


def find_adapter(name: str, tables: Tables) -> BatchAdapter:
    """The batch adapter of that name, with the site's changes.

    :raises UnknownBatchSystem: naming the known ones; BadAdapter: the site's table is wrong.
    """
    check_name(name, tables)
    table = tables.get(name)
    if table is None:
        return find_builtin(name)
    origin = table.get("based_on", name if name in ADAPTERS else None)
    base = None if origin is None else find_builtin(str(origin))
    return read_adapter(name, table, base)


def read_adapter(name: str, table: Mapping[str, Any], base: BatchAdapter | None) -> BatchAdapter:
    """The adapter that a table makes, with or without another one to start from.

    :raises BadAdapter: naming every fault.
    """
    values, faults = read_table(table, dict(sorted(_make_readers(base).items())))
    if base is None:
        faults += [f"{key} is missing" for key in _WANTED if key not in table]
    if faults:
        raise BadAdapter(faults)
    values.pop("based_on", None)
    for key, field in _READERS.items():
        if key in values or f"{key}_others" in values:
            before = getattr(base, field, None)
            before = before if isinstance(before, Lines) else Lines("(?!)")
            values[field] = Lines(values.pop(key, before.pattern), values.pop(f"{key}_others", before.others))
    return BatchAdapter(name=name, **values) if base is None else replace(base, name=name, **values)


def _make_readers(base: BatchAdapter | None) -> dict[str, Callable[[Any], Any]]:
    """The reader of each key; tables within the table change parts of the base's field."""
    return {
        **_SIMPLE,
        **{key: partial(_read_command, base=getattr(base, key, None)) for key in _COMMANDS},
        **{f"{key}{end}": read for key in _READERS for end, read in (("", _read_lines), ("_others", _read_pattern))},
        "based_on": str,
        "naming": partial(_read_naming, base=base.naming if base else None),
        "states": lambda value: {**(base.states if base else {}), **_read_words_of(_STATES, value)},
        "causes": lambda value: {**(base.causes if base else {}), **_read_words_of(CAUSE_OF_WORD, value)},
        # The site's come first, as the first match decides.
        "blocks": lambda value: {**_read_blocks(value), **(base.blocks if base else {})},
    }


def _read_part(
    value: object, readers: Mapping[str, Callable[[Any], Any]], wanted: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of a table within the table; raises ValueError with its first fault."""
    if not isinstance(value, dict):
        raise ValueError(f"must be a table with the keys {', '.join(readers)}, not {value!r}")
    values, faults = read_table(value, readers)
    faults += [f"has no {key}" for key in wanted if key not in value]
    if faults:
        raise ValueError(faults[0])
    return values


def _read_command(value: object, base: Command | None) -> Command:
    values = _read_part(value, _COMMAND, () if base else ("argv",))
    if "argv" in values:
        values["waiting"] = ()
    # The site's command needs no ids, so they need not be listed first.
    if "argv" in values and not any("ids" in text for text in values["argv"]):
        values["listing"] = None
    return replace(base, **values) if base else Command(**values)


def _read_argv(value: object) -> tuple[str, ...]:
    words = tuple(_read_template(word) for word in _words(value))
    if not words:
        raise ValueError("must be the program and its arguments, not []")
    return words


def _read_outcomes(value: object) -> tuple[Meaning, ...]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of tables, not {value!r}")
    tables = [{"exit_code": None, "pattern": "", **_read_part(item, _OUTCOME, ["answer"])} for item in value]
    return tuple(Meaning(**{**table, "answer": Answer(table["answer"])}) for table in tables) or (OK,)


def _read_naming(value: object, base: Naming | None) -> Naming:
    values = _read_part(value, _NAMING, () if base else ("submitted", "single"))
    naming = replace(base, **values) if base else Naming(**values)
    _check_formats(naming)
    return naming


def _check_formats(naming: Naming) -> None:
    groups = re.compile(naming.submitted).groupindex.keys() - {"last"}
    element = _read_names(naming.element)
    known = {"single": groups | {"n"}, "element": groups | {"n"}, "array": element - {"n"}, "span": element | {"last"}}
    for key, names in known.items():
        unknown = _read_names(getattr(naming, key)) - names
        if unknown:
            raise ValueError(f"{key} has {{{min(unknown)}}}, but there is only {', '.join(sorted(names)) or 'nothing'}")
    if naming.element and "n" not in element:
        raise ValueError("element has no {n}, the number of the element")


def _read_names(text: str) -> set[str]:
    """The names in a format's braces."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ValueError(f"is no format: {text!r}: {error}") from error


def _read_words_of(known: Mapping[str, Any], value: object) -> dict[str, Any]:
    """What each native state means."""
    if not isinstance(value, dict) or any(word not in list(known) for word in value.values()):
        raise ValueError(f"must give each native state one of {', '.join(known)}, not {value!r}")
    return {native: known[word] for native, word in value.items()}


def _read_blocks(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a table from patterns to commands, not {value!r}")
    for pattern, command in value.items():
        _read_pattern(pattern)
        if unknown := _read_names(_text(command)) - {"id", "array"}:
            raise ValueError(f"has {{{min(unknown)}}}, but there is only array, id")
    return value


def _read_template(value: object) -> str:
    import jinja2  # imported late: slow to load, and many tables have no template

    text: str = _text(value)
    if not re.fullmatch(r"\{\{ *\w+\* *\}\}", text):
        try:
            jinja2.Environment(autoescape=False).parse(text)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"is no template: {text!r}: {error}") from error
    return text


def _read_pattern(value: object) -> str:
    text: str = _text(value)
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no pattern: {text!r}: {error}") from error
    return text


def _read_lines(value: object) -> str:
    pattern = _read_pattern(value)
    missing = {"id", "state"} - re.compile(pattern).groupindex.keys()
    if missing:
        raise ValueError(f"has no group (?P<{min(missing)}>...)")
    return pattern


def _read_group_pattern(value: object) -> str:
    text = _read_pattern(value)
    if not re.compile(text).groups:
        raise ValueError(f"has no group (...) around what is wanted: {text!r}")
    return text


def _number(smallest: float, largest: float, kind: Kind = Kind.NUMBER) -> Callable[[object], Any]:
    return Attribute("", "", kind, minimum=smallest, maximum=largest).read_plain


_whole = partial(_number, kind=Kind.INTEGER)
_text = Attribute("", "").read_plain
_words = Attribute("", "", Kind.WORDS).read_plain

_COMMAND: Mapping[str, Callable[[Any], Any]] = {
    "argv": _read_argv,
    "outcomes": _read_outcomes,
    "stdin": _read_template,
    "timeout": _number(0.01, 3600),
    "attempts": _whole(1, 10),
}
_OUTCOME: Mapping[str, Callable[[Any], Any]] = {
    "exit_code": _whole(0, 255),
    "pattern": _read_pattern,
    "answer": Attribute("", "", choices=tuple(answer.value for answer in Answer)).read_plain,
}
_NAMING: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys((field.name for field in fields(Naming)), _text),
    "submitted": _read_pattern,
    "first": _whole(0, 1),
}
_SIMPLE: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("local_id_words", "index_words", "started_words", "job_folder_words", "host_words"), _text),
    **dict.fromkeys(("fetch_words", "event_module", "parallel_environment"), _text),
    **dict.fromkeys(("read_array_limit", "read_version", "read_analysis"), _read_group_pattern),
    **dict.fromkeys(("settle_time", "outputs_lag"), _number(0, 86400)),
    **dict.fromkeys(("ignored_variables", "options"), _words),
    "event_log": _read_template,
    "leaving": lambda value: frozenset(_words(value)),
    "max_array": _whole(1, 10**6),
    "cancel_at_once": _whole(1, 10**4),
    "commands_per_minute": _whole(0, 10**4),
    "longest_pause": _number(1, 86400),
    "request_options": lambda value: tuple(map(_read_pattern, _words(value))),
    "carries_files": Attribute("", "", Kind.FLAG).read_plain,
}
