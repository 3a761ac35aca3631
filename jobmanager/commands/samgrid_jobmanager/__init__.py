"""Grid jobs from Python, in any interpreter that this package is installed for: docs/python.md.

Our modules call each other by the names of their folders, as in ``from adapters import JobAdapter``. In our own
programs and in a clone's tests, whose module path has our folders, those are their names, and
``samgrid_jobmanager.adapters`` is another name of ``adapters``. In everybody else's interpreter it is the other way
round: they are called ``samgrid_jobmanager.adapters`` and so on, for them alone the short names mean these (they get an
``__import__`` of their own), and the module path stays as it is. There ``import adapters`` gives what the interpreter's
owner has of that name, and ours only where there is nothing. In either case a module is loaded once, whatever it is
called.
"""

import builtins
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

    from samgrid_jobmanager.jobmanager.commands.python import *  # noqa: F403

_FOLDERS = ("adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox")
_LAUNCHER = (f"{__name__}.batch_adapters", f"{__name__}.batch_adapters.launch")
"""What console scripts import before they put our folders on the module path; it imports nothing of ours."""


def __getattr__(name: str) -> Any:
    """What people use is loaded when they do: our programs come by here on their way to the launcher."""
    if name in _FOLDERS:
        return import_module(f"{__name__}.{name}")
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.jobmanager.commands.python"), name)


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), *_FOLDERS]


@cache
def _is_ours() -> bool:
    """True where the short names are ours already: in our programs, and in tests of a clone."""
    loaded = getattr(sys.modules.get("adapters"), "__file__", None)
    if loaded is not None and _lies_in_ours(loaded):
        return True
    return any(entry.is_absolute() and _has_launcher(entry) for entry in map(Path, sys.path))


def _lies_in_ours(file: str) -> bool:
    """True for a folder's ``__init__.py`` in a copy of our tree."""
    return _has_launcher(Path(file).parents[1])


def _has_launcher(folder: Path) -> bool:
    return (folder / "batch_adapters" / "launch.py").exists()


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """What ``import`` means in our modules: the names of our folders mean our folders."""
    top = name.partition(".")[0]
    if level or top not in _FOLDERS:
        return __import__(name, globals, locals, fromlist, level)
    module = import_module(f"{__name__}.{name}")
    if fromlist:
        return __import__(module.__name__, globals, locals, fromlist)
    return sys.modules[f"{__name__}.{top}"]


_BUILTINS = {**vars(builtins), "__import__": _import}


class _OurLoader(SourceFileLoader):
    """Loads a module of ours in somebody else's interpreter."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = _BUILTINS
        super().exec_module(module)


class _OtherName:
    """The loader of a module that has another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """One that gives way to the other."""

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what is there when this returns.
        sys.modules[module.__name__] = import_module(self._name)


def _by_other_name(name: str, other: str) -> ModuleSpec:
    # No subclass: `importlib.abc` loads more than a command does.
    return ModuleSpec(name, cast("Loader", _OtherName(other)))


class _Finder:
    """Finds our modules by both of their names."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As every finder on ``sys.meta_path``."""
        top, _, rest = name.partition(".")
        if top == __name__ and rest.partition(".")[0] in _FOLDERS and name not in _LAUNCHER:
            return _by_other_name(name, rest) if _is_ours() else cls._find_ours(name, path)
        if top in _FOLDERS and not _is_ours() and not cls._is_somebody_elses(top, rest):
            return _by_other_name(name, f"{__name__}.{name}")
        return None

    @classmethod
    def _find_ours(cls, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        found = cls._ask_others(name, path)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _OurLoader(name, found.loader.path)
        return found

    @classmethod
    def _is_somebody_elses(cls, top: str, rest: str) -> bool:
        if rest:
            return sys.modules[top].__name__ == top
        found = cls._ask_others(top, None)
        # In the folder of a clone its folders are found: a second copy of what is loaded would be of no use.
        return found is not None and not (found.origin is not None and _lies_in_ours(found.origin))

    @classmethod
    def _ask_others(cls, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        specs = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not cls)
        return next(filter(None, specs), None)


sys.meta_path.insert(0, _Finder)
