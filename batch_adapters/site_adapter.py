"""A site's own words on a batch system: a table ``[batch.NAME]`` changes fields of an adapter, or makes a new one.

The keys are the fields of `BatchAdapter` and `Command`; the two readers are given as patterns of a line: ``jobs`` (and
``jobs_others``), ``ended`` (and ``ended_others``), see `Lines`. ``based_on`` names the adapter to start from.
"""

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from batch_adapters.adapter import OK, Answer, BatchAdapter, Command, Lines, Naming, Outcome
from batch_adapters.registry import ADAPTERS, BadAdapter, Tables, check_name, find_builtin
from batch_adapters.states import CAUSE_OF_WORD, STATE_OF_WORD

_COMMANDS = (
    *("submit", "queue", "find", "status", "cancel", "history", "array_limit", "version"),
    *("suspend", "resume", "hold", "release", "priority", "analyze", "forget"),
)
_WANTED = ("submit", "naming", "queue", "find", "status", "jobs", "cancel", "states", "local_id_words", "index_words")
_READERS = {"jobs": "read_jobs", "ended": "read_history"}
_STATES = ("pending", "active", "failed", "done", "suspended")


def find_adapter(name: str, tables: Tables) -> BatchAdapter:
    """The batch adapter of that name, as the site wants it.

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
    """The adapter that a table makes of another, or of nothing.

    :raises BadAdapter: naming every fault.
    """
    reading = _Reading(name, base)
    for key, value in table.items():
        if key != "based_on":
            reading.read_key(key, value)
    if base is None:
        reading.faults += [f"{key} is wanted" for key in _WANTED if key not in table]
    if reading.faults:
        raise BadAdapter(reading.faults)
    if base is None:
        return BatchAdapter(name=name, **reading.values)
    return replace(base, **{"name": name, **reading.values})


class _Wrong(Exception):
    """A value is not what it must be."""


class _Reading:
    """One table on its way to an adapter."""

    def __init__(self, name: str, base: BatchAdapter | None) -> None:
        self._base = base
        self.values: dict[str, Any] = {}
        self.faults: list[str] = []

    def read_key(self, key: str, value: object) -> None:
        try:
            self._read(key, value)
        except _Wrong as error:
            self.faults.append(f"{key} {error}")

    def _read(self, key: str, value: Any) -> None:
        if key in _COMMANDS:
            self.values[key] = _read_command(value, getattr(self._base, key, None))
        elif key == "naming":
            self.values[key] = _read_naming(value, getattr(self._base, key, None))
        elif key == "states":
            self.values[key] = {**getattr(self._base, key, {}), **_read_states(value)}
        elif key == "blocks":
            # The site's own come first: of the patterns the first that fits counts.
            self.values[key] = {**_read_blocks(value), **getattr(self._base, key, {})}
        elif key == "causes":
            self.values[key] = {**getattr(self._base, key, {}), **_read_causes(value)}
        elif key.removesuffix("_others") in _READERS:
            self._read_lines(key, value)
        elif key in _SIMPLE:
            self.values[key] = _SIMPLE[key](value)
        else:
            known = ", ".join(
                sorted([*_COMMANDS, *_READERS, *_SIMPLE, "naming", "states", "causes", "blocks", "based_on"])
            )
            raise _Wrong(f"is unknown; the keys are {known}")

    def _read_lines(self, key: str, value: Any) -> None:
        field = _READERS[key.removesuffix("_others")]
        before = self.values.get(field) or getattr(self._base, field, None)
        before = before if isinstance(before, Lines) else Lines("(?!)")
        pattern = _read_pattern(value)
        if key.endswith("_others"):
            self.values[field] = replace(before, others=pattern)
            return
        missing = {"id", "state"} - re.compile(pattern).groupindex.keys()
        if missing:
            raise _Wrong(f"has no group (?P<{min(missing)}>...)")
        self.values[field] = replace(before, pattern=pattern)


def _read_command(value: object, base: Command | None) -> Command:
    table = _read_table(value, ("argv", "outcomes", "stdin", "timeout", "attempts"))
    values: dict[str, Any] = {}
    if "argv" in table:
        values["argv"] = tuple(_read_template(text) for text in _read_words(table["argv"]))
        # Another question, which is about no ids: then nobody is asked for them.
        if not any("ids" in text for text in values["argv"]):
            values["listing"] = None
    if "stdin" in table:
        values["stdin"] = _read_template(table["stdin"])
    if "outcomes" in table:
        values["outcomes"] = _read_outcomes(table["outcomes"])
    if "timeout" in table:
        values["timeout"] = _read_number(table["timeout"], 0.01, 3600)
    if "attempts" in table:
        values["attempts"] = int(_read_number(table["attempts"], 1, 10))
    if base is not None:
        return replace(base, **values)
    if not values.get("argv"):
        raise _Wrong("has no argv, the list of the program and its arguments")
    return Command(**values)


def _read_outcomes(value: object) -> tuple[Outcome, ...]:
    if not isinstance(value, list):
        raise _Wrong(f"outcomes must be a list of tables, not {value!r}")
    outcomes = []
    for item in value:
        table = _read_table(item, ("exit_code", "pattern", "answer"))
        words = [answer.value for answer in Answer]
        if table.get("answer") not in words:
            raise _Wrong(f"outcomes: answer must be one of {', '.join(words)}, not {table.get('answer')!r}")
        code = table.get("exit_code")
        exit_code = None if code is None else int(_read_number(code, 0, 255))
        outcomes.append(Outcome(exit_code, _read_pattern(table.get("pattern", "")), Answer(table["answer"])))
    return tuple(outcomes) or (OK,)


def _read_naming(value: object, base: Naming | None) -> Naming:
    table = dict(_read_table(value, [field.name for field in fields(Naming)]))
    if "first" in table:
        table["first"] = int(_read_number(table["first"], 0, 1))
    for key in table.keys() - {"first"}:
        _read_text(table[key])
    _read_pattern(table.get("submitted", ""))
    missing = [name for name in ("submitted", "single") if name not in table]
    if base is None and missing:
        raise _Wrong(f"has no {', '.join(missing)}")
    naming = Naming(**table) if base is None else replace(base, **table)
    _check_formats(naming)
    return naming


def _check_formats(naming: Naming) -> None:
    groups = re.compile(naming.submitted).groupindex.keys() - {"last"}
    element = _read_names(naming.element)
    known = {"single": groups | {"n"}, "element": groups | {"n"}, "array": element - {"n"}, "span": element | {"last"}}
    for key, names in known.items():
        unknown = _read_names(getattr(naming, key)) - names
        if unknown:
            raise _Wrong(f"{key} has {{{min(unknown)}}}, but there is only {', '.join(sorted(names)) or 'nothing'}")
    if naming.element and "n" not in element:
        raise _Wrong("element has no {n}, the number of the element")


def _read_names(text: str) -> set[str]:
    """The names in a format's braces."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise _Wrong(f"is no format: {text!r}: {error}") from error


def _read_states(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or any(state not in _STATES for state in value.values()):
        raise _Wrong(f"must give each native state one of {', '.join(_STATES)}, not {value!r}")
    return {native: STATE_OF_WORD[state] for native, state in value.items()}


def _read_causes(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or any(cause not in list(CAUSE_OF_WORD) for cause in value.values()):
        raise _Wrong(f"must give each native state one of {', '.join(CAUSE_OF_WORD)}, not {value!r}")
    return {native: CAUSE_OF_WORD[cause] for native, cause in value.items()}


def _read_blocks(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Wrong(f"must be a table from patterns to commands, not {value!r}")
    for pattern, command in value.items():
        _read_pattern(pattern)
        if unknown := _read_names(_read_text(command)) - {"id", "array"}:
            raise _Wrong(f"has {{{min(unknown)}}}, but there is only array, id")
    return value


def _read_table(value: object, keys: "list[str] | tuple[str, ...]") -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"must be a table with the keys {', '.join(keys)}, not {value!r}")
    unknown = [key for key in value if key not in keys]
    if unknown:
        raise _Wrong(f"has the unknown key {unknown[0]!r}; the keys are {', '.join(keys)}")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"must be a string, not {value!r}")
    return value


def _read_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _Wrong(f"must be a list of strings, not {value!r}")
    return tuple(value)


def _read_template(value: object) -> str:
    import jinja2  # slow to load, and many a table has none

    text = _read_text(value)
    if not re.fullmatch(r"\{\{ *\w+\* *\}\}", text):
        try:
            jinja2.Environment(autoescape=False).parse(text)
        except jinja2.TemplateSyntaxError as error:
            raise _Wrong(f"is no template: {text!r}: {error}") from error
    return text


def _read_pattern(value: object) -> str:
    text = _read_text(value)
    try:
        re.compile(text)
    except re.error as error:
        raise _Wrong(f"is no pattern: {text!r}: {error}") from error
    return text


def _read_group_pattern(value: object) -> str:
    text = _read_pattern(value)
    if not re.compile(text).groups:
        raise _Wrong(f"has no group (...) around what is wanted: {text!r}")
    return text


def _read_number(value: object, smallest: float, largest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not smallest <= value <= largest:
        raise _Wrong(f"must be a number from {smallest:g} to {largest:g}, not {value!r}")
    return value


def _whole(smallest: int, largest: int) -> Callable[[object], int]:
    return lambda value: int(_read_number(value, smallest, largest))


def _read_patterns(value: object) -> tuple[str, ...]:
    return tuple(_read_pattern(word) for word in _read_words(value))


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"must be true or false, not {value!r}")
    return value


_SIMPLE: Mapping[str, Callable[[object], Any]] = {
    "local_id_words": _read_text,
    "index_words": _read_text,
    "job_folder_words": _read_text,
    "event_module": _read_text,
    "event_log": _read_template,
    "read_array_limit": _read_group_pattern,
    "read_version": _read_group_pattern,
    "read_analysis": _read_group_pattern,
    "leaving": lambda value: frozenset(_read_words(value)),
    "max_array": _whole(1, 10**6),
    "cancel_at_once": _whole(1, 10**4),
    "commands_per_minute": _whole(0, 10**4),
    "longest_pause": lambda value: _read_number(value, 1, 86400),
    "settle_time": lambda value: _read_number(value, 0, 86400),
    "outputs_lag": lambda value: _read_number(value, 0, 86400),
    "ignored_variables": _read_words,
    "request_options": _read_patterns,
    "options": _read_words,
    "carries_files": _read_switch,
}
