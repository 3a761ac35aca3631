"""Finds job types: ours, the site's, and those of installed packages."""

import errno
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from adapters import Attribute, JobAdapter
from jobmanager import UserError
from jobmanager.requests.attributes import BadRequest, suggest
from sandbox.files import read_regular

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KNOWN_TYPES = {
    "command": "handlers.command",
    "pythia": "handlers.pythia",
    "dzero_monte_carlo": "handlers.production",
    "dzero_reconstruction": "handlers.production",
    "cdf_monte_carlo": "handlers.production",
    "dzero_merge": "handlers.merge",
    "cdf_concatenate": "handlers.merge",
    "structured": "handlers.structured",
}
"""Our job types and their modules, so that a request loads only its own."""
ENTRY_POINT_GROUP = "samgrid.handlers"
HANDLER_FAILURES = (BaseException,)
"""What an experiment's code may raise. It must not end our process, not even by SystemExit."""

_PASSING = (
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    # A file system whose server is gone: NFS, or NFS mounted "softerr", and FUSE.
    *(errno.ESTALE, errno.ENOTCONN),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
    *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
)
"""Errors of a disk, the network or the machine."""
_HTTP_LATER = (408, 425, 429, 500, 502, 503, 504)
_MOST_CAUSES = 20
_LONGEST_WORDS = 2000
_LONGEST_MODULE = 1_000_000
"""Bytes."""
_DECLARED = re.compile(r"""\bjobType\b[^=\n]*=\s*["']([^"'\n]+)["']""")
_Loader = Callable[[], list[type[JobAdapter]]]
_MOST_TEXTS = 1000


class TooLong(BaseException):
    """Raised inside a handler that hangs; no `Exception`, so that ``except Exception`` does not catch it."""


class Interrupted(KeyboardInterrupt):
    """Raised where a person presses Ctrl-C: a KeyboardInterrupt that a handler raises by itself is its fault."""


class HandlerError(UserError):
    """A handler's module cannot be loaded, or a handler failed; the message names it."""


class HandlerUnreachable(HandlerError):
    """A handler did not reach what it needs, such as a catalogue, or had no memory: asked again later, it may."""


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever an experiment's code raises in the block into a HandlerError that begins with ``what``."""
    try:
        yield
    except (BadRequest, HandlerError, Interrupted, TooLong):
        raise
    except HANDLER_FAILURES as error:
        kind = HandlerUnreachable if any(map(_may_pass, _find_causes(error))) else HandlerError
        raise kind(f"{what}: {render_failure(error)}") from error


def _find_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and what a traceback says it was raised from: libraries wrap what the system says in their own."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _may_pass(error: BaseException) -> bool:
    """True for what the network, a server or the machine may be over later."""
    if isinstance(error, ConnectionError | TimeoutError) or (isinstance(error, OSError) and error.errno in _PASSING):
        return True
    # Slow to load, and rarely needed.
    from socket import gaierror
    from ssl import SSLError
    from subprocess import TimeoutExpired
    from urllib.error import HTTPError, URLError

    if isinstance(error, HTTPError):
        return error.code in _HTTP_LATER
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        return _may_pass(error.reason)
    return isinstance(error, gaierror | SSLError | TimeoutExpired)


def render_failure(error: BaseException) -> str:
    """What an experiment's code has raised, for people, however strange or long its words are."""
    try:
        return f"{type(error).__name__}: {str(error)[:_LONGEST_WORDS]}".rstrip(": ")
    except HANDLER_FAILURES:
        return f"{type(error).__name__}, which fails when it is to be shown"


def render_value(value: object) -> str:
    """The same of what it gives."""
    try:
        return repr(value)[:_LONGEST_WORDS]
    except HANDLER_FAILURES:
        return f"a {type(value).__name__}, which fails when it is to be shown"


def read_texts(method: str, answer: Iterable[object]) -> list[str]:
    """The sentences that a handler's method gives; raises TypeError: it gives something else."""
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise TypeError(f"{method} gave {render_value(answer)}, not a list of sentences")
    texts = list(islice(answer, _MOST_TEXTS))
    if strange := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(f"{method} gave {strange[0]!r}, which is no text")
    return [str(text)[:_LONGEST_WORDS] for text in texts]


def find_job_type(name: str, site_modules: Sequence[str]) -> type[JobAdapter]:
    """The handler of a job type; raises HandlerError: there is none; the message lists the known types.

    :raises HandlerUnreachable: it may be one of those that cannot be loaded, which the site will mend.
    """
    known = [KNOWN_TYPES[name]] if name in KNOWN_TYPES else []
    types, faults = _gather(map(_loader, (*known, *site_modules)))
    if name not in types and name not in faults:
        others, more_faults = read_job_types(())
        types, faults = others | types, more_faults | faults
    if name in types:
        return types[name]
    if name in faults:
        raise HandlerUnreachable(str(faults[name]))
    unknown = f'unknown job type "{name}"{suggest(name, types)}: known are {", ".join(sorted(types))}'
    if faults:
        raise HandlerUnreachable("; ".join([unknown, *dict.fromkeys(map(str, faults.values()))]))
    raise HandlerError(unknown)


def load_job_types(site_modules: Sequence[str]) -> dict[str, type[JobAdapter]]:
    """Every job type by name, for what must know all of them; raises HandlerError: one cannot be loaded."""
    types, faults = read_job_types(site_modules)
    for fault in faults.values():
        raise fault
    return types


def read_job_types(site_modules: Sequence[str]) -> tuple[dict[str, type[JobAdapter]], dict[str, HandlerError]]:
    """Every job type by name, and what is wrong with those that cannot be loaded, by their names or their modules'.

    For the same name, the site's handler is preferred to ours, and ours to a package's.
    """
    from importlib.metadata import entry_points  # slow to load, and not needed for known types

    packages = ((point.value, partial(_load_entry_point, point)) for point in entry_points(group=ENTRY_POINT_GROUP))
    return _gather(chain(packages, map(_loader, dict.fromkeys((*KNOWN_TYPES.values(), *site_modules)))))


def _loader(module: str) -> tuple[str, _Loader]:
    return module, partial(load_handlers, module)


def _load_entry_point(entry_point: "EntryPoint") -> list[type[JobAdapter]]:
    with blaming(f"handler {entry_point.value} of entry point {entry_point.name}"):
        loaded = entry_point.load()
    return _handlers_in(loaded) if isinstance(loaded, ModuleType) else [loaded]


def _gather(
    loaders: Iterable[tuple[str, _Loader]],
) -> tuple[dict[str, type[JobAdapter]], dict[str, HandlerError]]:
    """Handlers by the names of their types, the later preferred to the earlier, and the faults by name or module."""
    types: dict[str, type[JobAdapter]] = {}
    faults: dict[str, HandlerError] = {}
    for module, load in loaders:
        try:
            handlers = load()
        except HandlerError as error:
            for declared in _find_declared(module) or [module]:
                faults[declared] = error
                types.pop(declared, None)
            continue
        for handler in handlers:
            name = getattr(handler, "jobType", None)
            if fault := _find_fault(handler):
                name = name if isinstance(name, str) else module
                faults[name] = HandlerError(fault)
                types.pop(name, None)
            else:
                types[handler.jobType] = handler
                faults.pop(handler.jobType, None)
    return types, faults


def _find_declared(module: str) -> list[str]:
    """The job types in the text of a module that cannot be loaded: no other handler may take their grid jobs."""
    try:
        with blaming(module):
            spec = None if module.endswith(".py") else importlib.util.find_spec(module)
            file = module if module.endswith(".py") else spec and spec.origin
        text = read_regular(Path(file or "").resolve(), _LONGEST_MODULE)
    except (HandlerError, OSError):
        return []
    return _DECLARED.findall(text.decode(errors="replace"))


def _find_fault(handler: object) -> str:
    """Why nothing can work with it; "samgrid check-handler" looks closer."""
    if not (inspect.isclass(handler) and issubclass(handler, JobAdapter)):
        return f"handler {render_value(handler)} of an entry point is neither a module nor a JobAdapter"
    where = f"handler {handler.__name__} of {handler.__module__}"
    if not isinstance(getattr(handler, "jobType", None), str):
        return f"{where} has no jobType"
    for name in ("attributes", "siteAttributes"):
        declared = getattr(handler, name)
        if not (isinstance(declared, Sequence) and all(isinstance(one, Attribute) for one in declared)):
            return f"{where}: its {name} are no sequence of adapters.Attribute, such as (EVENTS, *SLICING)"
    return ""


def load_handlers(name: str) -> list[type[JobAdapter]]:
    """The handlers in a module, given as a dotted name or the absolute path of a .py file.

    :raises HandlerError: it cannot be loaded, or has no complete handler.
    """
    module = _load_module(name)
    if handlers := _handlers_in(module):
        return handlers
    raise HandlerError(f"handler module {name} defines no JobAdapter that is complete: {_find_lack(module)}")


def _find_lack(module: ModuleType) -> str:
    lacks = [f"{one.__name__} lacks {', '.join(sorted(one.__abstractmethods__))}" for one in _adapters_in(module)]
    return "; ".join(lacks) or "it needs a jobType, prepareWorkArea and getCommandAndArguments"


def _load_module(name: str) -> ModuleType:
    with blaming(f"handler module {name} cannot be loaded"):
        # By __import__: importlib does not know what our short names mean in other interpreters.
        if name.endswith(".py"):
            return _load_file(Path(name))
        try:
            return __import__(name, fromlist=["__name__"])
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise ImportError(f"{error}; the name of a file ends in .py") from error
            raise


def _load_file(path: Path) -> ModuleType:
    name = f"samgrid_handler_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    # Not one that is missing, which Python describes better; it would wait for ever for what a named pipe holds.
    if spec is None or spec.loader is None or (path.exists() and not path.is_file()):
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # So that its "from adapters import" means ours, even if there is another module of that name.
    vars(module)["__builtins__"] = __builtins__
    spec.loader.exec_module(module)
    return module


def _handlers_in(module: ModuleType) -> list[type[JobAdapter]]:
    return [one for one in _adapters_in(module) if not inspect.isabstract(one)]


def _adapters_in(module: ModuleType) -> list[type[JobAdapter]]:
    classes = filter(inspect.isclass, vars(module).values())
    return [one for one in classes if issubclass(one, JobAdapter) and one.__module__ == module.__name__]
