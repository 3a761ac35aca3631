"""A module of ours has two names, and is one: in our programs, in other interpreters, in a clone's folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.installed import link_package, run_python

HANDLER = """\
from pathlib import Path
{line}

class TrackerAdapter(JobAdapter):
    \"\"\"Simulates hits in the tracker.\"\"\"

    jobType = "tracker_mc"

    def prepareWorkArea(self, workArea: Path) -> None: ...
    def getCommandAndArguments(self, localJob):
        return ["/bin/true"]
"""
SHORT, LONG = "from adapters import JobAdapter", "from samgrid_jobmanager.adapters import JobAdapter"
OWN = 'whose = "mine"\n'
SAME = """
from samgrid_jobmanager.adapters import JobAdapter as by_long_name
from adapters import JobAdapter as by_short_name
import adapters.sweep, samgrid_jobmanager.adapters.sweep
assert by_long_name is by_short_name
assert adapters.sweep is samgrid_jobmanager.adapters.sweep
assert adapters is samgrid_jobmanager.adapters
from samgrid_jobmanager.handlers.command import CommandAdapter
assert issubclass(CommandAdapter, by_short_name)
print("same")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_package(tmp_path_factory.mktemp("linked"))


@pytest.mark.parametrize("first", ["", f"{SHORT}\n", "import samgrid_jobmanager\n" + SHORT], ids=str)
def test_both_names_give_one_class_in_a_clones_folder(first: str, site: Path, source: Path) -> None:
    assert run_python(site, first + SAME, source) == "same\n"


@pytest.mark.parametrize("first", ["", "import samgrid_jobmanager\n" + SHORT], ids=str)
def test_both_names_give_one_class_elsewhere(first: str, installed: Path, tmp_path: Path) -> None:
    assert run_python(installed, first + SAME, tmp_path) == "same\n"


def test_both_names_give_one_class_where_our_folders_are_on_the_module_path(site: Path, source: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(source)!r})\n{SAME}\nassert adapters.__name__ == 'adapters'"
    assert run_python(site, code, Path("/")) == "same\n"


def test_both_names_give_one_class_where_a_clone_is_installed(source: Path, tmp_path: Path) -> None:
    build = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    site = tmp_path / "site"
    code = f"import site; site.addsitedir({str(site)!r})\n{SAME}\nprint(samgrid_jobmanager.adapters.__file__)"
    # On the module path it comes before whatever this interpreter has installed.
    assert run_python(site, code, tmp_path).splitlines() == ["same", str(source / "adapters" / "__init__.py")]


@pytest.mark.parametrize("first", ["import adapters, handlers", "import samgrid_jobmanager.jobmanager.run_grid_job"])
def test_nobodys_own_module_is_shadowed(first: str, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "adapters.py").write_text(OWN)
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "__init__.py").write_text(OWN)
    (tmp_path / "handlers" / "pythia.py").write_text(OWN)
    (tmp_path / "tracker.py").write_text(HANDLER.format(line=SHORT))
    code = f"""{first}
from samgrid_jobmanager.jobmanager.requests.job_types import load_job_types
types = load_job_types([{str(tmp_path / "tracker.py")!r}])
from samgrid_jobmanager.batch_adapters.registry import find_builtin
find_builtin("slurm")
import adapters, handlers, handlers.pythia, sys
print(adapters.whose, handlers.whose, handlers.pythia.whose, "tracker_mc" in types, types["pythia"].__module__)
short = {{"adapters", "batch_adapters", "gram_shims", "handlers", "jobmanager", "sandbox"}}
print(*sorted(name for name in sys.modules if name.partition(".")[0] in short))
"""
    said = "mine mine mine True samgrid_jobmanager.handlers.pythia\nadapters handlers handlers.pythia\n"
    assert run_python(installed, code, tmp_path) == said


def test_the_module_path_stays_as_it_is(installed: Path, tmp_path: Path) -> None:
    code = "import sys; before = [*sys.path]; import samgrid_jobmanager; samgrid_jobmanager.submit"
    assert run_python(installed, f"{code}; print(before == sys.path)", tmp_path) == "True\n"


@pytest.mark.parametrize("line", [SHORT, LONG])
@pytest.mark.parametrize("start", ["the launcher", "a console script"])
def test_a_handler_may_use_either_name_in_our_programs(start: str, line: str, installed: Path, tmp_path: Path) -> None:
    handler = tmp_path / "tracker.py"
    handler.write_text(HANDLER.format(line=line))
    launch = installed / "samgrid_jobmanager" / "batch_adapters" / "launch.py"
    code = "import sys; sys.argv = ['samgrid', *sys.argv[1:]]; from samgrid_jobmanager.batch_adapters.launch import run"
    words = ["-P", str(launch), "samgrid"] if start == "the launcher" else ["-c", f"{code}; sys.exit(run())"]
    environment = {**os.environ, "PYTHONPATH": str(installed), "SAMGRID_HANDLERS_MODULES": str(handler)}
    command = [sys.executable, *words, "types", "tracker_mc"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "Simulates hits in the tracker" in done.stdout, done.stderr


@pytest.mark.parametrize("line", [SHORT, LONG])
def test_authors_can_import_their_handler_in_their_tests(line: str, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tracker.py").write_text(HANDLER.format(line=line))
    code = "import samgrid_jobmanager\nfrom tracker import TrackerAdapter\nprint(TrackerAdapter.__mro__[1].__module__)"
    assert run_python(installed, code, tmp_path) == "samgrid_jobmanager.adapters.job_adapter\n"


def test_a_console_script_loads_nothing_more_for_the_package(installed: Path, tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['samgrid', '--help']; from samgrid_jobmanager.batch_adapters.launch import run\n"
    code += "try: run()\nexcept SystemExit: print(*sys.modules)"
    loaded = run_python(installed, code, tmp_path).splitlines()[-1].split()
    assert not {"asyncio", "importlib.abc", "importlib.metadata", "lxml"} & {*loaded}
    assert [name for name in loaded if name.startswith("samgrid_jobmanager")] == [
        "samgrid_jobmanager",
        "samgrid_jobmanager.batch_adapters",
        "samgrid_jobmanager.batch_adapters.launch",
    ]


USER = """\
from pathlib import Path
from samgrid_jobmanager import BadRequest, JobStatus, submit, submit_map
from samgrid_jobmanager.adapters import Attribute, JobAdapter, Kind

def show(status: JobStatus) -> None:
    reveal_type(status.may_end)

job = submit({"samgrid_type": "command"})
job.wait(show)
reveal_type(job.outputs("out"))
reveal_type(submit_map(len, ["a"], folder="maps").results())
try:
    submit(3)
except BadRequest as error:
    reveal_type(error.faults)

class Tracker(JobAdapter):
    jobType = 7
"""


def test_type_checkers_of_others_know_our_types(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (packages / "samgrid_jobmanager").symlink_to(installed / "samgrid_jobmanager")
    (tmp_path / "user.py").write_text(USER)
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--no-error-summary", "--hide-error-context"]
    interpreter = ["--python-executable", str(tmp_path / "venv" / "bin" / "python")]
    command = [sys.executable, "-m", "mypy", *options, *interpreter, "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        'user.py:6: note: Revealed type is "datetime.datetime | None"',
        'user.py:10: note: Revealed type is "dict[int, pathlib.Path]"',
        'user.py:11: note: Revealed type is "list[int]"',
        'user.py:13: error: Argument 1 to "submit" has incompatible type "int"; '
        'expected "Mapping[str, object] | str | PathLike[str]"  [arg-type]',
        'user.py:15: note: Revealed type is "list[str]"',
        "user.py:18: error: Incompatible types in assignment "
        '(expression has type "int", base class "JobAdapter" defined the type as "str")  [assignment]',
    ]
