"""``samgrid check-handler``: every broken promise of a handler is found and named, and nothing else is touched."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.forked_samgrid import ROOT
from tests.samgrid import Samgrid
from tests.waiting import SECONDS

GOOD = '''
from adapters import EVENTS, SLICING, Attribute, JobAdapter, Kind


class Sample(JobAdapter):
    """A sample."""

    jobType = "sample"
    attributes = (EVENTS, *SLICING)

    def prepareWorkArea(self, workArea):
        (workArea / "program").write_text("#!/bin/sh\\n: >output/result\\necho a phase\\n")
        (workArea / "program").chmod(0o755)

    def getCommandAndArguments(self, localJob):
        return ["./program"]
'''


def write_handler(tmp_path: Path, replacement: tuple[str, str] = ("", ""), more: str = "") -> Path:
    """A good handler, with one thing replaced, or more methods."""
    old, new = replacement
    assert old in GOOD
    path = tmp_path / "sample.py"
    path.write_text(GOOD.replace(old, new, 1) + textwrap.indent(textwrap.dedent(more), "    "))
    return path


def test_a_good_handler_has_no_faults_and_leaves_nothing(samgrid: Samgrid, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    samgrid = replace(samgrid, settings={"TMPDIR": str(temporary)})
    chmod = '(workArea / "program").chmod(0o755)'
    path = write_handler(tmp_path, (chmod, f'{chmod}\n        (workArea / "loop").symlink_to("loop")'))
    done = samgrid("check-handler", str(path))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "no faults"), done.stdout + done.stderr
    assert "output: result (0 bytes)" in done.stdout
    done = samgrid("check-handler", str(path.with_suffix("")))
    assert (done.returncode, done.stderr.endswith("; the name of a file ends in .py\n")) == (1, True)
    assert not samgrid.state.exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("replacement", "fault"),
    [
        (('"""A sample."""', ""), "has no docstring"),
        (('jobType = "sample"', ""), "jobType is None"),
        (('"sample"', '"my sample"'), "jobType is 'my sample'"),
        (("*SLICING", '*SLICING, Attribute("Min_Success", "How many.")'), "every job type has min_success"),
        (("*SLICING", '*SLICING, Attribute("SEED", "A seed.")'), "declared already, as seed"),
        (("def prepare", "def __init__(self): pass\n\n    def prepare"), "must take request and site, and call super"),
        (("*SLICING", "*SLICING, 7"), "attributes holds 7"),
        (("(EVENTS, *SLICING)", "EVENTS"), "attributes is Attribute(name='events'"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", choices="xyz")'), "its choices are one text, 'xyz'"),
        (("*SLICING", '*SLICING, Attribute("b c", "A name.")'), "is no name"),
        (("*SLICING", '*SLICING, Attribute("b", "no sentence")'), "is no sentence"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", "int")'), "its kind is 'int'"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", Kind.INTEGER, default="7")'), "the default '7' is not"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", Kind.INTEGER, default=True)'), "gives the handler int\n"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", Kind.INTEGER, default=7, maximum=6)'), "own default is refused"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", choices=("x",), default="y")'), "its own default is refused"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", default="y", required=True)'), "has a default, which is never"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", Kind.INTEGER, choices=("1",))'), "choices go with Kind.TEXT"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", minimum=1)'), "only numbers have a minimum"),
        (("*SLICING", '*SLICING, Attribute("b", "B.", Kind.NUMBER, minimum=2, maximum=1)'), "no number is from 2 to 1"),
        (('jobType = "sample"', 'jobType = "sample"\n    requestIdAttribute = "run"'), "there is no attribute 'run'"),
        (('["./program"]', '"./program"'), "which is no list of words\n"),
        (('["./program"]', '["./program", 7]'), "getCommandAndArguments gave 7, which is no text"),
        (('["./program"]', '["./program", "a\\0"]'), "a NUL character"),
        (('["./program"]', "[]"), "a local job has no command"),
        (('["./program"]', '["./program", str(id(self))]'), "getCommandAndArguments gave ["),
        (('["./program"]', '["./program"] if 1 / 0 else []'), "ZeroDivisionError: division by zero (at "),
        ((": >output/result", "exec no-such-program"), "with exit code 127"),
        (('(workArea / "program").write_text("', '(workArea / "program").write_text(f"#{id(self)}'), "made .samgrid/"),
        (('(workArea / "program").chmod(0o755)', '(workArea / "out").symlink_to("/etc")'), "sandbox cannot be made"),
        (('(workArea / "program").chmod(0o755)', "pass"), "with exit code 126"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_named(samgrid: Samgrid, tmp_path: Path, replacement: tuple[str, str], fault: str) -> None:
    done = samgrid("check-handler", str(write_handler(tmp_path, replacement)))
    assert (done.returncode, done.stderr) == (1, "")
    assert fault in done.stdout
    assert done.stdout.splitlines()[-1].startswith("faults: ")


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("def getNumSubmissionTimes(self):\n    return 6", "asks for 6 local jobs for a size of 5"),
        ("def getNumSubmissionTimes(self):\n    return 0", "asks for 0 local jobs"),
        (
            "def getNumSubmissionTimes(self):\n    return 3.2",
            "getNumSubmissionTimes gave 3.2, which is no whole number",
        ),
        (f"def getNumSubmissionTimes(self):\n    return {10**9}", f"refused: the request makes {10**9} local jobs"),
        ("def getSize(self):\n    return '5'", "getSize gave '5', which is no whole number"),
        ("def getPhaseOfLine(self, line):\n    return line or None", "'a phase' is no adapters.Phase"),
        ("def getPhaseOfLine(self, line):\n    return int(line) and None", "getPhaseOfLine about the line 'a phase'"),
        ("def getPhaseOfLine(self, line):\n    1 / (len(line) < 60000)", "about the line 'aaaaaaaaaa"),
        ("def getNumSubmissionTimes(self):\n    return next(N)", "was cut differently"),
        ("def getSize(self):\n    return 1 / 0", "ZeroDivisionError"),
        ("def checkErrors(self):\n    return ['no good']", "the request is refused: no good"),
        ("def getEnvironment(self):\n    return {'A B': '1'}", "the environment name 'A B' is none"),
        ("def findWarnings(self):\n    return 'careful'", "findWarnings gave 'careful', not a list of sentences"),
        ("def getSummary(self, outputs):\n    return {'n': 7}", "getSummary gave {'n': 7}"),
        ("def getSummary(self, outputs):\n    return 1 / 0", "getSummary failed: ZeroDivisionError: "),
        (
            "def getSummary(self, outputs):\n    return {'n': [(one / 'result').read_text() for one in outputs][0]}",
            "/empty/result' (at /",
        ),
        ("def getSummary(self, outputs):\n    raise SystemExit(0)", "getSummary failed: SystemExit"),
        ("def getSize(self):\n    raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_method_that_breaks_its_promise_is_named(samgrid: Samgrid, tmp_path: Path, method: str, fault: str) -> None:
    path = write_handler(tmp_path, more=method)
    # The file is loaded more than once: what counts must outlive that.
    count = "N = builtins.__dict__.setdefault('numbers_of_test', itertools.count(1))"
    path.write_text(f"import builtins, itertools\n{count}\n{path.read_text()}")
    done = samgrid("check-handler", str(path))
    assert (done.returncode, done.stderr) == (1, "")
    assert fault in done.stdout


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("\nimport nothing_of_this_name", "No module named 'nothing_of_this_name' (at "),
        ("from adapters import Kind\nKind.FLOAT", "sample.py, line 2)"),
        ("x = 1", "defines no JobAdapter that is complete: it needs"),
        (
            "from adapters import JobAdapter\nclass A(JobAdapter):\n    prepareWorkArea = None",
            "A lacks getCommandAndArguments\n",
        ),
        ("def (", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
    ids=["import", "name", "no handler", "no method", "syntax", "exit"],
)
def test_a_file_that_is_no_handler_is_one_clear_error(
    samgrid: Samgrid, tmp_path: Path, source: str, error: str
) -> None:
    path = tmp_path / "sample.py"
    path.write_text(source)
    done = samgrid("check-handler", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_two_handlers_of_one_type_are_a_fault(samgrid: Samgrid, tmp_path: Path) -> None:
    path = write_handler(tmp_path)
    path.write_text(path.read_text() + "\n\nclass Again(Sample):\n" + '    """A sample, too."""\n')
    done = samgrid("check-handler", str(path), "--no-run")
    assert done.returncode == 1
    assert "2 handlers have the jobType 'sample'" in done.stdout


def test_requests_of_ones_own_are_tried(samgrid: Samgrid, tmp_path: Path) -> None:
    good, bad, other = tmp_path / "good.rsl", tmp_path / "bad.rsl", tmp_path / "other.rsl"
    good.write_text("&(samgrid_type = sample)(events = 9)(events_per_local_job = 4)")
    bad.write_text("&(samgrid_type = sample)(events = none)")
    other.write_text("&(samgrid_type = command)(executable = /bin/true)")
    requests = [word for file in (good, bad, other) for word in ("--request", str(file))]
    done = samgrid("check-handler", str(write_handler(tmp_path)), *requests, "--no-run")
    assert done.returncode == 1
    assert "3 local jobs, whose slices hold each of 9 events once" in done.stdout
    assert "the request is refused: events must be an integer" in done.stdout
    assert f"{other} is of type command" in done.stdout
    assert done.stdout.splitlines()[-1] == "faults: 2"
    assert "exit code" not in done.stdout


def test_a_local_job_that_takes_too_long_is_killed(samgrid: Samgrid, tmp_path: Path) -> None:
    path = write_handler(tmp_path, (": >output/result", "sleep 600"))
    done = samgrid("check-handler", str(path), "--run-time", "1")
    assert done.returncode == 1
    assert "killed after 1 s" in done.stdout


HANG = "import time; time.sleep(3600)"


@pytest.mark.parametrize(
    "method",
    [
        "def getCommandAndArguments(self, localJob):",
        "def prepareWorkArea(self, workArea):",
        "def getNumSubmissionTimes(self):",
        "def getPhaseOfLine(self, line):",
        "def getSummary(self, outputs):",
    ],
)
def test_a_method_that_hangs_is_told_with_its_place(samgrid: Samgrid, tmp_path: Path, method: str) -> None:
    # All other calls come to their end in that time, on a busy machine, too.
    samgrid = replace(samgrid, settings={"SAMGRID_HANDLERS_TIME_LIMIT": "5"})
    done = samgrid("check-handler", str(write_handler(tmp_path, more=f"{method}\n    {HANG}")))
    assert (done.returncode, done.stderr) == (1, "")
    name = method.removeprefix("def ").partition("(")[0]
    assert f"no end after 5 s: {name} ({tmp_path}/sample.py, line " in done.stdout


def test_phases_that_a_handler_reads_out_of_lines_are_told(samgrid: Samgrid, tmp_path: Path) -> None:
    method = "def getPhaseOfLine(self, line):\n    return adapters.Phase(line, 1, 2) if line == 'a phase' else None"
    path = write_handler(tmp_path, (">output/result", ">output/result\\necho phase"), method)
    path.write_text(f"import adapters\n{path.read_text().replace('a phase', 'phase')}")
    done = samgrid("check-handler", str(path))
    assert "phases: phase 1/2" in done.stdout
    assert "it reported no phases" not in done.stdout


@pytest.mark.parametrize(
    "words",
    [("submit", "r.rsl"), ("submit", "--dry-run", "r.rsl"), ("check-handler", "sample.py"), ("doctor",)],
    ids=" ".join,
)
def test_a_handler_that_ends_the_process_is_told_by_the_one_above(
    samgrid: Samgrid, tmp_path: Path, words: tuple[str, ...]
) -> None:
    handler = write_handler(tmp_path, more="def checkErrors(self):\n    import os\n    os._exit(0)\n")
    if words == ("doctor",):  # it only loads the module
        handler.write_text("import os\nos._exit(0)")
    request = tmp_path / "r.rsl"
    request.write_text("&(samgrid_type=sample)(events=3)")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    samgrid = replace(samgrid, settings={"SAMGRID_HANDLERS_MODULES": str(handler), "TMPDIR": str(temporary)})
    done = samgrid(*[str(tmp_path / word) if "." in word else word for word in words])
    sentence = "a handler's code has ended the process that asked it, with exit status 0"
    assert (done.returncode, done.stderr) == (1, f"samgrid {words[0]}: {sentence}\n")
    assert list(temporary.iterdir()) == []


def test_a_handler_that_stops_the_process_is_let_go_on(samgrid: Samgrid, tmp_path: Path) -> None:
    stop = "import os, signal\n    os.kill(os.getpid(), signal.SIGSTOP)\n    return []"
    done = samgrid(
        "check-handler", "--no-run", str(write_handler(tmp_path, more=f"def checkErrors(self):\n    {stop}"))
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "no faults"), done.stdout + done.stderr


def test_who_presses_ctrl_c_while_a_handler_is_asked_is_obeyed_at_once(samgrid: Samgrid, tmp_path: Path) -> None:
    press = "import os, signal, time\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(3600)"
    handler = write_handler(tmp_path, more=f"def checkErrors(self):\n    {press}")
    (tmp_path / "r.rsl").write_text("&(samgrid_type=sample)(events=3)")
    samgrid = replace(samgrid, settings={"SAMGRID_HANDLERS_MODULES": str(handler)})
    done = samgrid("submit", str(tmp_path / "r.rsl"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "place", ["jobmanager.commands.cli.main", "batch_adapters.running.commands.die_with_parent"], ids=["cli", "child"]
)
def test_who_presses_ctrl_c_while_a_command_starts_sees_no_traceback(place: str) -> None:
    module, _, function = place.rpartition(".")
    program = (
        "import os, signal, sys; from importlib import import_module; from batch_adapters import launch\n"
        f"setattr(import_module({module!r}), {function!r}, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['samgrid', 'types']; sys.exit(launch.run())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
