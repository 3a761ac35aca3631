"""Breaks modules in which a silent fault would cost most, one small change at a time, and lists what no test sees.

``make mutants`` takes those that differ from BASE, or whose tests do; ``make mutants MODULES="sandbox/gather.py ..."``
those that are named, and ``MODULES=all`` all of them.
"""

import ast
import configparser
import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

TESTS = {
    "jobmanager/completion/collection.py": (
        "jobmanager/completion/test_collection",
        "jobmanager/completion/test_delivery",
        "jobmanager/completion/test_retrying",
    ),
    "jobmanager/completion/delivery.py": ("jobmanager/completion/test_delivery", "jobmanager/test_workflow"),
    "jobmanager/completion/proof.py": (
        "jobmanager/completion/test_collection",
        "jobmanager/completion/test_deletions",
        "jobmanager/completion/test_retrying",
    ),
    "jobmanager/completion/retries.py": ("jobmanager/completion/test_retrying",),
    "jobmanager/control/cancel_requests.py": (
        "jobmanager/control/test_cancel_requests",
        "jobmanager/test_damaged_documents",
    ),
    "jobmanager/control/cancellation.py": (
        "jobmanager/control/test_cancellation",
        "jobmanager/test_damaged_documents",
    ),
    "jobmanager/states/aggregation.py": ("jobmanager/states/test_aggregation", "jobmanager/test_workflow"),
    "jobmanager/states/changes.py": (
        "jobmanager/states/test_changes",
        "jobmanager/submission/test_adoption",
        "jobmanager/completion/test_retrying",
        "jobmanager/test_damaged_documents",
        "jobmanager/test_workflow",
    ),
    "jobmanager/states/driver_status.py": (
        "jobmanager/states/test_driver_status",
        "jobmanager/completion/test_retrying",
    ),
    "jobmanager/states/ends.py": (
        "jobmanager/states/test_ends",
        "jobmanager/states/test_orphans",
        "jobmanager/states/test_transitions",
        "jobmanager/completion/test_deletions",
    ),
    "jobmanager/states/failures.py": ("jobmanager/states/test_failures", "jobmanager/completion/test_retrying"),
    "jobmanager/states/reconciliation.py": (
        "jobmanager/states/test_orphans",
        "jobmanager/states/test_pending_limit",
        "jobmanager/states/test_reconciliation",
    ),
    "jobmanager/states/registration.py": (
        "jobmanager/database/test_database",
        "jobmanager/states/test_changes",
        "jobmanager/states/test_reconciliation",
        "jobmanager/test_damaged_documents",
        "jobmanager/test_run_grid_job",
    ),
    "jobmanager/states/transitions.py": (
        "jobmanager/states/test_transitions",
        "jobmanager/states/test_ends",
        "jobmanager/states/test_reconciliation",
    ),
    "jobmanager/submission/adoption.py": ("jobmanager/submission/test_adoption", "jobmanager/submission/test_submit"),
    "jobmanager/submission/packing.py": ("jobmanager/submission/test_packing", "jobmanager/test_run_grid_job"),
    "jobmanager/submission/submit.py": (
        "jobmanager/submission/test_submit",
        "jobmanager/submission/test_adoption",
        "jobmanager/submission/test_resources",
    ),
    "sandbox/gather.py": ("sandbox/test_gather",),
    "sandbox/pack.py": ("sandbox/test_tar", "sandbox/test_pack", "sandbox/test_gather"),
    "sandbox/status.py": ("sandbox/test_status",),
    "sandbox/unpack.py": ("sandbox/test_unpack",),
}
"""Each module, and the tests/unit/NAME.py that must notice."""
FOLDERS = ("adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox", "tests")
TREE = Path(__file__).parents[1]
WANTED = 0.95
MYPY = (sys.executable, "-m", "mypy", "--output=json", "--no-warn-unused-ignores")
REFUSED = 37
"""What mutmut notes of a mutant that mypy refuses: it counts neither as killed nor as alive."""
SEEN = {1, 3}
"""What it notes of one that a test saw."""
ENDLESS = {-24, 24, 36, 152, 255}
"""What it notes of one that took much longer than the tests do without it."""


def prepare(folder: Path, module: str) -> None:
    """Lay out a tree to be broken: links to ours, and a setup.cfg that names the module and its tests."""
    for name in FOLDERS:
        (folder / name).symlink_to(TREE / name)
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(TREE / "setup.cfg")
    settings["mutmut"] = {
        "source_paths": "\n".join(FOLDERS[:-1]),
        "only_mutate": module,
        "pytest_add_cli_args_test_selection": "\n".join(f"tests/unit/{name}.py" for name in TESTS[module]),
        "pytest_add_cli_args": "-p\nno:cacheprovider",
        # What is logged is for people; the second pattern is for messages on a line of their own.
        "do_not_mutate_patterns": 'logger\\.\\w+\\(\n^ +"%%s[ :]',
        "type_check_command": "\n".join([*MYPY, module]),
    }
    with open(folder / "setup.cfg", "w") as file:
        settings.write(file)


def read_results(folder: Path, module: str) -> tuple[dict[str, int], list[str]]:
    """What became of each mutant, and the differences of those that live."""
    broken = folder / "mutants" / module
    text = broken.read_text()
    functions = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    codes: dict[str, int] = json.loads(Path(f"{broken}.meta").read_text())["exit_code_by_key"]
    living = [key.rpartition(".")[2] for key, code in codes.items() if code not in {*SEEN, *ENDLESS, REFUSED}]
    lines = text.splitlines()

    def source(name: str) -> list[str]:
        node = functions[name]
        return [line.strip().replace(name, "") for line in lines[node.lineno - 1 : node.end_lineno]]

    changes: list[str] = []
    for name in living:
        difference = difflib.ndiff(source(f"{name.rpartition('__')[0]}__mutmut_orig"), source(name))
        changes += [f"  {name}", *(f"    {line}" for line in difference if line[0] in "+-")]
    return codes, changes


def break_module(module: str) -> bool:
    """Run mutmut on one module and print what lives; False where that is too much."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        prepare(folder, module)
        environment = os.environ | {"TMPDIR": name}
        run = subprocess.run([Path(sys.executable).with_name("mutmut"), "run"], cwd=folder, env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip
        if run.returncode != 0:
            sys.exit(run.stdout.decode(errors="replace").rpartition("\r")[2])
        codes, changes = read_results(folder, module)
    endless = sum(code in ENDLESS for code in codes.values())
    valid = len(codes) - list(codes.values()).count(REFUSED)
    killed = endless + sum(code in SEEN for code in codes.values())
    share = killed / max(1, valid)
    print(f"{module}: of {len(codes)} mutants mypy takes {valid}, tests kill {killed} ({endless} endless): {share:.0%}")
    sys.stdout.writelines(f"{line}\n" for line in changes)
    sys.stdout.flush()
    return share >= WANTED


def find_changed(base: str) -> Iterator[str]:
    """The modules that differ from a commit, or whose tests do."""
    command = ["git", "diff", "--name-only", base]
    changed = set(subprocess.run(command, cwd=TREE, check=True, capture_output=True, text=True).stdout.split())
    for module, tests in TESTS.items():
        if changed & {module, *(f"tests/unit/{name}.py" for name in tests)}:
            yield module


def main(base: str, modules: Sequence[str]) -> bool:
    """Break the modules one after another: the machine has other things to do."""
    chosen = TESTS if modules == ["all"] else modules or find_changed(base)
    results = [break_module(module) for module in chosen]
    return all(results)


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1], sys.argv[2:]))
