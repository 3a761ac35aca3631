"""Imports run one way, and light commands stay light."""

import ast
import functools
import graphlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "adapters": set(),
    "sandbox": set(),
    "batch_adapters": set(),
    "handlers": {"adapters"},
    "jobmanager": {"adapters", "handlers", "sandbox", "batch_adapters"},
    "gram_shims": {"jobmanager", "adapters", "handlers", "sandbox", "batch_adapters"},
}
GROUND = {"adapters.attributes", "sandbox.files"}
"""What everybody may import: typed values are declared, and files written, in one way."""
ROOMS = (
    *("commands", "web", "checks", "views", "monitor", "run_grid_job", "workflow", "completion", "control"),
    *("submission", "states", "gram", "requests", "site", "database"),
)
"""The rooms of jobmanager/, the top one first: each imports those below it only."""
MOST_ENTRIES = 16
"""What may lie side by side in a folder."""


def find_modules(root: Path) -> dict[str, Path]:
    """Every module of ours below a folder, by its dotted name."""
    files = {path.relative_to(root): path for folder in MAY_IMPORT for path in (root / folder).rglob("*.py")}
    return {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for name, path in files.items()}


def find_imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, wherever in it."""
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        named = set()
        for module, names in read_imports(path.read_text(), package):
            named |= {f"{module}.{one}" for one in names} & modules.keys() or {module}
        found[name] = named & modules.keys()
    return found


@functools.cache
def read_imports(source: str, package: str) -> list[tuple[str, tuple[str, ...]]]:
    """What a module imports: others, and names of others."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((find_module(node, package), tuple(alias.name for alias in node.names)))
    return found


def find_module(node: ast.ImportFrom, package: str) -> str:
    """The dotted name of what is imported from in a module of that package."""
    above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    return ".".join([*above, node.module] if node.module else above)


def find_floor(names: list[str]) -> int:
    """How far down a module of jobmanager/ lies; its ``__init__``, which has no names, below all rooms."""
    return (*ROOMS, "").index(names[0] if names else "")


def find_faults(root: Path) -> list[str]:
    """What is wrong with the house: imports that run up or in a circle, folders that are too full."""
    modules = find_modules(root)
    imports = find_imports(modules)
    faults = []
    for name, others in imports.items():
        top, *rest = name.split(".")
        for other in others:
            other_top, *other_rest = other.split(".")
            if other_top != top and other_top not in MAY_IMPORT[top] and other not in GROUND:
                faults.append(f"{name} imports {other}")
            elif top == other_top == "jobmanager" and find_floor(rest) > find_floor(other_rest):
                faults.append(f"{name} imports {other}, which is above it")
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        faults.append(f"a circle: {' -> '.join(error.args[1])}")
    for folder in {parent for path in modules.values() for parent in path.relative_to(root).parents} - {Path()}:
        entries = [entry.name for entry in (root / folder).iterdir() if entry.name != "__pycache__"]
        if len(entries) > MOST_ENTRIES:
            faults.append(f"{folder} has {len(entries)} entries")
    return faults


def test_imports_run_one_way_and_no_folder_is_too_full() -> None:
    assert len(find_modules(ROOT)) > 100
    assert find_faults(ROOT) == []


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("sandbox/pack.py", "import jobmanager.run_grid_job", "sandbox.pack imports jobmanager.run_grid_job"),
        ("adapters/attributes.py", "from handlers import command", "adapters.attributes imports handlers.command"),
        (
            "jobmanager/states/changes.py",
            "def late() -> None:\n    from jobmanager.control.removal import sweep",
            "jobmanager.states.changes imports jobmanager.control.removal, which is above it",
        ),
        ("jobmanager/__init__.py", "import jobmanager.site", "jobmanager imports jobmanager.site, which is above it"),
        ("batch_adapters/states.py", "import batch_adapters.adapter", "a circle: "),
        ("adapters/attributes.py", "from .job_adapter import JobAdapter", "a circle: "),
    ],
    ids=["a folder above", "handlers", "a room above, late", "a room, from below", "a circle", "a relative one"],
)
def test_what_breaks_the_order_is_found(tmp_path: Path, module: str, line: str, fault: str) -> None:
    for folder in MAY_IMPORT:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / module).write_text(f"{(tmp_path / module).read_text()}\n{line}\n")
    assert any(found.startswith(fault) for found in find_faults(tmp_path))


def test_a_folder_that_is_too_full_is_found(tmp_path: Path) -> None:
    (tmp_path / "sandbox").mkdir()
    for number in range(MOST_ENTRIES + 1):
        (tmp_path / "sandbox" / f"module{number}.py").touch()
    assert find_faults(tmp_path) == [f"sandbox has {MOST_ENTRIES + 1} entries"]


def find_shared_names(root: Path) -> dict[str, list[str]]:
    """Names of classes that stand in several modules; payloads run alone, and private names are their module's own."""
    found: dict[str, list[str]] = {}
    for name, path in find_modules(root).items():
        classes = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        for class_name in classes:
            if not class_name.startswith("_") and not name.startswith("handlers.payload"):
                found.setdefault(class_name, []).append(name)
    return {class_name: names for class_name, names in found.items() if len(names) > 1}


def test_a_class_name_means_one_thing() -> None:
    assert find_shared_names(ROOT) == {}


def test_every_room_says_what_it_is_for() -> None:
    folders = [path.parent for folder in ("jobmanager", "gram_shims") for path in (ROOT / folder).rglob("__init__.py")]
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").read_text().startswith('"""')] == []


def test_there_is_no_drawer_for_things_without_a_place() -> None:
    names = {path.stem for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


@pytest.mark.parametrize(
    ("program", "forbidden"),
    [
        ("import jobmanager.requests.acceptance, jobmanager.monitor.client, jobmanager.requests.rsl", "jinja2 sh rich"),
        ("import gram_shims.program", "jinja2 sh rich lark tenacity tomllib"),
        (
            "import jobmanager.monitor.monitor",
            "asyncio batch_adapters.adapter handlers jinja2 lark sh tarfile tenacity"
            " jobmanager.requests.request_handler",
        ),
        ("import jobmanager.monitor.worker", "handlers handlers.command handlers.pythia"),
        ("import batch_adapters.fork.commands", "batch_adapters.adapter lxml jinja2 sh rich lark"),
        ("import batch_adapters.generator.main", "batch_adapters.adapter lxml jinja2 sh rich lark sqlite3"),
        ("import batch_adapters.generator.collector", "lxml jinja2 sh rich lark"),
    ],
    ids=["submit", "gram", "monitor", "workers' server", "fork", "generator", "collector"],
)
def test_light_programs_load_no_heavy_modules(program: str, forbidden: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(forbidden.split()) & set(loaded.split())


_OF_HELP = "argcomplete asyncio dataclasses datetime importlib.metadata inspect json logging lxml socket sqlite3"
_OF_HELP += " subprocess"
_OF_STATUS = "asyncio batch_adapters.adapter handlers importlib.metadata jinja2 jobmanager.completion"
_OF_STATUS += " jobmanager.database.usage jobmanager.monitor jobmanager.requests json lark logging lxml rich sh socket"
_OF_STATUS += " subprocess tarfile tenacity"


@pytest.mark.parametrize(
    ("word", "forbidden"), [("--help", _OF_HELP), ("status", _OF_STATUS)], ids=["help", "status of nothing"]
)
def test_what_answers_at_once_loads_nothing_else(word: str, forbidden: str, tmp_path: Path) -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    code += f"; sys.path.insert(0, {str(ROOT)!r}); from jobmanager.commands import cli; cli.main([{word!r}])"
    # -S: what the .pth files of this machine's Python import counts for nobody.
    command = [sys.executable, "-S", "-P", "-c", code]
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    loaded = set(done.stderr.split())
    assert "jobmanager.commands.service" in loaded
    assert not set(forbidden.split()) & loaded
    rooms = {name.split(".")[1] for name in loaded if name.startswith("jobmanager.")}
    assert word == "status" or rooms == {"commands"}


_SUBMIT = """\
import os, sys
sink = os.fdopen(os.dup(1), "w")  # the account's log takes the place of 1
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gram_shims import program
from jobmanager.site import configuration
from jobmanager.monitor import client as monitor_client
configuration.read_configuration.__defaults__ = (Path("/nowhere"),)  # whatever this machine's site says
started = []
monitor_client.start_monitor = started.append
attributes = {"executable": ("/bin/true",), "stdin": ("/dev/null",), "count": ("10000",), "uniqid": ("1.1",)}
answer = program.answer_call("submit", sys.argv[2], program.JobDescription(attributes))
assert answer.job_id and started, answer
print(*sys.modules, file=sink)
"""


def test_what_gram_waits_for_at_its_first_submit_is_light(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-P", "-c", _SUBMIT, str(ROOT), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    loaded = set(done.stdout.split())
    assert "lxml.etree" in loaded, done.stderr
    slow = "argparse batch_adapters.adapter hashlib jinja2 jobmanager.database.local_job jobmanager.database.usage lark"
    slow += " rich secrets sh shutil tenacity"
    assert not set(slow.split()) & loaded
