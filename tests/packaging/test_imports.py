"""Imports run one way, and light commands stay light."""

import ast
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


def imports_of(path: Path) -> set[str]:
    """The top-level packages that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_run_one_way(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        ours = imports_of(path) & MAY_IMPORT.keys()
        assert ours <= MAY_IMPORT[folder] | {folder}, path


def test_there_is_no_drawer_for_things_without_a_place() -> None:
    names = {path.stem for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


@pytest.mark.parametrize(
    ("program", "forbidden"),
    [
        (
            "from jobmanager.database import Database; from jobmanager.listing import render_table",
            "lxml jinja2 sh rich",
        ),
        ("import jobmanager.cli", "lxml jinja2 sh rich lark starlette uvicorn"),
        ("import jobmanager.acceptance, jobmanager.monitor_client, jobmanager.rsl", "jinja2 sh rich"),
        ("import gram_shims.program", "jinja2 sh rich lark tenacity tomllib"),
        ("import jobmanager.worker", "handlers handlers.command handlers.pythia"),
        ("import batch_adapters.fork.commands", "lxml jinja2 sh rich lark sqlite3"),
        ("import batch_adapters.generator.main", "lxml jinja2 sh rich lark sqlite3"),
        ("import batch_adapters.generator.collector", "lxml jinja2 sh rich lark"),
    ],
    ids=["status", "command line", "submit", "gram", "workers' server", "fork", "generator", "collector"],
)
def test_light_programs_load_no_heavy_modules(program: str, forbidden: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(forbidden.split()) & set(loaded.split())
