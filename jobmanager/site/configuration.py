"""The configuration: TOML files and environment variables over the defaults of `jobmanager.site.settings`, all checked.

A later layer overrides an earlier one key by key: the site file, the file that ``$SAMGRID_CONFIG`` names, the
variables ``SAMGRID_SECTION_KEY``.
"""

import enum
import errno
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adapters.attributes import read_table, show
from batch_adapters.registry import BadAdapter, UnknownBatchSystem, check_name
from jobmanager import UserError
from jobmanager.site.settings import SECTIONS, SETTINGS, EventsSettings, Sections

SITE_FILE = Path("/etc/samgrid/samgrid.toml")

_DEFAULT = "default"
_TABLES = ("type", "batch")
"""Sections with a table for each name, whose keys are checked by job types and batch adapters."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_VARIABLES = {setting.variable: setting for keys in SETTINGS.values() for setting in keys.values()}

_FORK_JOB_VARIABLES = frozenset(f"SAMGRID_FORK_{name}" for name in ("ID", "INDEX", "CLAIM", "STARTED"))
"""Set by the batch system fork for its local jobs, which may run our commands: these are no settings."""


class ConfigurationError(UserError):
    """The configuration cannot be used; ``faults`` has a sentence for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Configuration(Sections):
    """Every setting's value.

    ``types`` has the tables ``[type.NAME]`` by name, unchecked; ``batch`` the tables ``[batch.NAME]``, each of which is
    known to define a batch adapter.
    """

    types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    events_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables ``[events.NAME]`` by batch system."""
    origins: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(section, key) → where it was set, if it is not a default."""

    def find_events(self, batch: str) -> EventsSettings:
        """Where the events of one batch system come from."""
        return replace(self.events, **self.events_of.get(batch, {}))

    def origin(self, section: str, key: str) -> str:
        """Where this was set: ``default``, a file's path, or ``environment SAMGRID_…``; tables are ``type.NAME``."""
        return self.origins.get((section, key), _DEFAULT)


def read_configuration(environment: Mapping[str, str], site_file: Path = SITE_FILE) -> Configuration:
    """The configuration in force, from the site file, if there is one, and the environment.

    :raises ConfigurationError: naming every fault of every layer.
    """
    layers = _Layers()
    layers.add_file(site_file)
    if named := environment.get("SAMGRID_CONFIG"):
        layers.add_file(Path(named), "environment SAMGRID_CONFIG: ")
    layers.add_environment(environment)
    layers.check_batch_systems()
    if layers.faults:
        raise ConfigurationError(layers.faults)
    sections = {name: keys(**layers.tables[name]) for name, keys in SECTIONS.items()}
    types, batch, events_of = map(layers.find_named, ("type", "batch", "events"))
    return Configuration(**sections, types=types, batch=batch, events_of=events_of, origins=layers.origins)


class _Layers:
    """The values of the layers read so far, later over earlier, and the faults found in them."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        """By title, such as ``fork`` or ``type.pythia``."""
        self.origins: dict[tuple[str, str], str] = {}
        self.faults: list[str] = []

    def add_file(self, path: Path, named: str = "") -> None:
        """Add a file; ``named`` begins what is said about one that somebody has named: it must be there."""
        try:
            if named:
                _check_named(path)
            document = _read_document(path)
        except (OSError, ValueError) as error:
            if named or not isinstance(error, FileNotFoundError):
                self.faults.append(named + _describe_unreadable(path, error))
        else:
            self._add_document(path, document)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        for name, text in sorted(environment.items()):
            setting = _VARIABLES.get(name)
            if setting is None:
                self._check_unknown_variable(name)
                continue
            origin = f"environment {name}"
            try:
                self.tables[setting.section][setting.name] = setting.read_text(text)
                self.origins[setting.section, setting.name] = origin
            except ValueError as error:
                self.faults.append(f"{origin}: {error}")

    def _check_unknown_variable(self, name: str) -> None:
        prefix, _, rest = name.partition("_")
        section = rest.partition("_")[0].lower()
        if prefix != "SAMGRID" or not name.startswith(f"SAMGRID_{section.upper()}_") or name in _FORK_JOB_VARIABLES:
            return
        if section in SETTINGS:
            known = ", ".join(setting.variable for setting in SETTINGS[section].values())
            self.faults.append(f"environment {name}: unknown variable; those of [{section}] are {known}")
        elif section in _TABLES:
            self.faults.append(f"environment {name}: unknown variable; tables [{section}.NAME] are set in a file only")

    def _add_document(self, path: Path, document: Mapping[str, Any]) -> None:
        for section, table in document.items():
            if section not in SETTINGS and section not in _TABLES:
                known = ", ".join([*SETTINGS, *(f"{name}.NAME" for name in _TABLES)])
                self.faults.append(f"{path}: unknown section or key {show(section)}; the sections are {known}")
                continue
            self._add_table(path, section, section, table)
            for name in _find_named(section, table):
                self._add_table(path, section, f"{section}.{name}", table[name])

    def _add_table(self, path: Path, section: str, title: str, table: object) -> None:
        if not isinstance(table, dict):
            self.faults.append(f"{path}: {title} must be a section, [{title}], not {show(table)}")
            return
        named = _find_named(title, table)
        found, faults = read_table(
            {key: value for key, value in table.items() if key not in named}, _make_readers(section, table)
        )
        self.tables.setdefault(title, {}).update(found)
        self.faults += [f"{path}: [{title}] {fault}" for fault in faults]
        self.origins.update({(title, key): str(path) for key in found})

    def find_named(self, section: str) -> dict[str, dict[str, Any]]:
        """The tables ``[SECTION.NAME]`` by name."""
        titles = {title.partition(".")[2]: title for title in self.tables if title.startswith(f"{section}.")}
        return {name: self.tables[title] for name, title in titles.items()}

    def check_batch_systems(self) -> None:
        """Check tables of batch systems at the end, because they depend on all layers and on each other."""
        batch = self.find_named("batch")
        for name in batch:
            try:
                if not _NAME.fullmatch(name):
                    raise BadAdapter([f"the name {show(name)} must be a word of letters, digits, - and _"])
                from batch_adapters.site_adapter import find_adapter  # few accounts have such tables

                find_adapter(name, batch)
            except UnknownBatchSystem as error:
                self.faults.append(f"[batch.{name}] based_on: {error}")
            except BadAdapter as error:
                self.faults += [f"[batch.{name}] {fault}" for fault in error.faults]
        for name in self.find_named("events"):
            try:
                check_name(name, batch)
            except UnknownBatchSystem as error:
                self.faults.append(f"[events.{name}] {error}")


def _read_document(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        import tomllib  # many accounts have no file

        try:
            return tomllib.load(file)
        except RecursionError:
            raise ValueError("lists or tables are nested far too deep") from None


def _check_named(path: Path) -> None:
    if not path.is_absolute():
        # Monitor and workers inherit the variable, but run in other folders.
        raise OSError(errno.EINVAL, "it must be an absolute path")
    # Opening a FIFO would wait for ever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _describe_unreadable(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"cannot read {path}: {error.strerror}"
    return f"{path}: this is not TOML: {error}"


def _find_named(title: str, table: object) -> list[str]:
    """The keys of a section that are tables ``[SECTION.NAME]``, or must be."""
    if not isinstance(table, dict) or title not in (*_TABLES, "events"):
        return []
    own = SETTINGS.get(title, {})
    return [key for key, value in table.items() if title in _TABLES or (key not in own and isinstance(value, dict))]


def _make_readers(section: str, table: Iterable[str]) -> Mapping[str, Callable[[Any], Any]]:
    """The functions that read the keys of a section's tables."""
    if section in SETTINGS:
        return {key: setting.read_plain for key, setting in SETTINGS[section].items()}
    return dict.fromkeys(table, _check_plain if section == "type" else lambda value: value)


def _check_plain(value: object) -> object:
    if not _is_plain(value):
        kinds = "a string, an integer, a number, a boolean or a list of these"
        raise ValueError(f"must be {kinds}, not {show(value)}")
    return value


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float)


def render_configuration(configuration: Configuration) -> str:
    """The configuration as a TOML file; comments say where each value was set, and its unit."""
    lines = []
    for section, settings in SETTINGS.items():
        lines.append(f"[{section}]")
        for key, setting in settings.items():
            value = getattr(getattr(configuration, section), key)
            lines.append(_render_line(key, value, [configuration.origin(section, key), setting.unit]))
        lines.append("")
    named = {"events": configuration.events_of, "type": configuration.types, "batch": configuration.batch}
    for section, tables in named.items():
        for name, table in tables.items():
            lines.append(f"[{section}.{_render_key(name)}]")
            for key, value in table.items():
                origin = configuration.origin(f"{section}.{name}", key)
                lines.append(_render_line(_render_key(key), value, [origin]))
            lines.append("")
    return "\n".join(lines)


def _render_line(key: str, value: object, remarks: Sequence[str]) -> str:
    comment = "; ".join(filter(None, remarks))
    return f"{key + ' = ' + _render_value(value):<40}  # {_render_printable(comment)}"


def _render_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_render_key(key)} = {_render_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_render_value, value)) + "]"
    if isinstance(value, bool | int | float):
        return repr(value).lower()
    text = str(value.value if isinstance(value, enum.Enum) else value or "")
    return '"' + _render_printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _render_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _render_value(key)


def _render_printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08X}" for letter in text)
