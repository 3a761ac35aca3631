"""Imports run one way, and light commands stay light."""

import ast
import os
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


_SUBMIT = """\
import os, sys
sink = os.fdopen(os.dup(1), "w")  # the account's log takes the place of 1
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gram_shims import program
from jobmanager import configuration, monitor_client
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
    slow = "argparse batch_adapters.adapter hashlib jinja2 jobmanager.local_job lark rich secrets sh shutil tenacity"
    assert not set(slow.split()) & loaded
