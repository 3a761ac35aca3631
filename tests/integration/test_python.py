"""Grid jobs from Python: docs/python.md and the notebook, run as they are, and what handles do beside that."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from jobmanager import UserError
from jobmanager.commands.python import (
    BadRequest,
    CallFailed,
    CannotGoOn,
    JobHandle,
    JobStatus,
    MapHandle,
    NoOutput,
    NotRepeatable,
    QueryError,
    Recovered,
    UnknownJob,
    UnknownRequest,
    grid_job,
    grid_jobs,
    query,
    recover,
    submit,
    submit_map,
)
from jobmanager.commands.python.statuses import read_status
from jobmanager.database.database import Database
from jobmanager.site.account import Account
from jobmanager.views import watching
from sandbox.unpack import unpack
from tests.conftest import find_monitor
from tests.installed import ROOT, link_package
from tests.integration.test_terminal import read_terminal
from tests.samgrid import Samgrid
from tests.waiting import SECONDS, is_gone, wait_until

PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def variables(samgrid: Samgrid, tmp_path: Path) -> Mapping[str, str]:
    """What an interpreter gets that has the package."""
    return {**samgrid.environment(), "PYTHONPATH": str(link_package(tmp_path / "site"))}


@pytest.fixture
def state(samgrid: Samgrid, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The state folder that is meant in this process, whose working directory is an empty folder."""
    return _enter(samgrid, monkeypatch, tmp_path)


@pytest.fixture
def shared(shared_samgrid: Samgrid, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As `state`, of an account that has grid jobs of other tests, too."""
    return _enter(shared_samgrid, monkeypatch, tmp_path)


def _enter(samgrid: Samgrid, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name, value in samgrid.environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return samgrid.state


def test_the_page_does_what_it_says(variables: Mapping[str, str], tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    code = "\n".join(_BLOCK.findall(PAGE.read_text()))
    (tmp_path / "page.py").write_text(code)
    command = [sys.executable, str(tmp_path / "page.py")]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "done {'done': 4}" in done.stdout
    assert "2 of 2" in done.stdout
    assert 'unknown attribute "executabel"' in done.stdout
    assert "count must be an integer, at least 1 (local jobs), not 0" in done.stdout


def test_the_notebook_runs(variables: Mapping[str, str], tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("cloudpickle")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    limits = dict.fromkeys(("startup_timeout", "timeout", "iopub_timeout"), int(SECONDS))
    client = nbclient.NotebookClient(notebook, **limits, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=dict(variables))
    waited, shown, squares, cubes = (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert [output.output_type for output in waited] == ["display_data"]
    for output in (waited[-1], shown[-1]):
        card = output.data["text/html"]
        assert "squares" in card
        assert "4 of 4" in card
        assert ": done" in card
    assert squares[-1].data["text/plain"] == "[1, 4, 9, 16]"
    assert cubes[-1].data["text/plain"] == "[0, 1, 8]"


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


TRUE = "&(samgrid_type = command)(executable = /bin/true)"
WAITING = """
&(samgrid_type = command)(executable = /bin/sh)(count = 2)
 (arguments = -c "echo up >&2; while echo again; [ ! -e $FILE ]; do sleep 0.1; done; echo $SAMGRID_INDEX >output/it")
 (environment = (FILE "{file}"))
"""


def test_a_mapping_a_text_and_a_file_say_the_same(shared: Path) -> None:
    text = """
    &(samgrid_type = command)(executable = /bin/echo)(arguments = "a ""b"" $(c)" 7 1.5 yes /tmp (d e))(count = 2)
     (environment = (A 1) (B "x y"))
    """.replace('$(c)"', '"#"$"#"(c)"')
    mapping = {
        "samgrid_type": "command",
        "executable": Path("/bin/echo"),
        "arguments": ['a "b" $(c)', 7, 1.5, True, Path("/tmp"), ["d", "e"]],
        # As numpy's numbers are
        "count": Fraction(2),
        "environment": {"A": 1, "B": "x y"},
        "max_memory": None,
    }
    with pytest.raises(BadRequest, match="arguments must be a list of words") as of_text:
        submit(text)
    with pytest.raises(BadRequest) as of_mapping:
        submit(mapping)
    assert of_mapping.value.faults == of_text.value.faults
    text = text.replace("(d e)", "d")
    mapping["arguments"] = ['a "b" $(c)', 7, 1.5, True, Path("/tmp"), "d"]
    Path("request.rsl").write_text(text)
    jobs = [submit(mapping), submit(text), submit(Path("request.rsl")), submit(text, folder="/", name="by two")]
    database = Database(shared / "jobs.db")
    first, second, third, fourth = (database.grid_jobs.get(job.id) for job in jobs)
    database.close()
    assert first.request() == second.request() == third.request()
    assert first.request_folder == third.request_folder == Path.cwd()
    assert (fourth.request_folder, fourth.name, first.name) == (Path("/"), "by two", None)


def test_a_refused_request_names_every_fault_and_leaves_nothing(state: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        submit({"samgrid_type": "command", "executable": "nowhere", "count": 0, "color": "red"})
    assert [fault.split()[0] for fault in refused.value.faults] == ["count", "unknown", "executable"]
    with pytest.raises(BadRequest) as refused:
        submit({"samgrid_type": "command", "stdin": b"x", "a b": 1, "arguments": [object()], 3: 4, "notify": []})  # type: ignore[dict-item]
    assert [fault.split(":")[0] for fault in refused.value.faults] == ["stdin", "a b", "arguments", "3", "notify"]
    assert refused.value.faults[3:] == [
        "3: no attribute has such a name",
        "notify: it is empty: leave it out, or give None",
    ]
    with pytest.raises(BadRequest, match="a request is a mapping, a text or a path, not of type NoneType"):
        submit(None)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=r"submit\(Path\('request.rsl'\)\)"):
        submit("request.rsl")
    with pytest.raises(BadRequest, match="line 1, column"):
        submit("&(samgrid_type = ")
    with pytest.raises(BadRequest, match="samgrid_type is missing"):
        submit({})
    with pytest.raises(FileNotFoundError):
        submit(Path("request.rsl"))
    assert grid_jobs() == []
    assert list(Path.cwd().iterdir()) == []


def test_what_is_not_there_is_said(shared: Path) -> None:
    job = submit(TRUE, name="all is true")
    asked: list[Callable[[JobHandle], object]] = [
        *(JobHandle.status, JobHandle.wait, JobHandle.cancel, JobHandle.local_jobs, JobHandle.steps, JobHandle.log),
        *(JobHandle.output_tar, lambda none: none.outputs("results"), lambda none: none.stdout(1)),
    ]
    for ask in asked:
        with pytest.raises(UnknownJob, match="zzzzzzzz"):
            ask(JobHandle("zzzzzzzz", str(shared)))
    with pytest.raises(UnknownJob, match="no grid job has the name"):
        grid_job("zzzzzzzz")
    with pytest.raises(UnknownJob, match="has no local job 7"):
        job.stdout(7)
    with pytest.raises(QueryError, match="XPath"):
        query("//[", job=job)
    with pytest.raises(UnknownJob, match="no grid job has the name"):
        query("1", job="zzzzzzzz")
    for ask_lines in (job.stdout, job.stderr):
        with pytest.raises(ValueError, match="lines must be at least 0, or None for all, not -1"):
            ask_lines(1, lines=-1)
    for lines in (-1, "3", 1.5):
        with pytest.raises(ValueError, match=f"lines must be at least 0, or None for all, not {lines!r}"):
            job.log(lines=cast("int", lines))
    with pytest.raises(ValueError, match="number is a local job's, from 1, not '1-3'"):
        job.stdout(cast("int", "1-3"))
    for wait in (job.wait, partial(query, "1")):
        with pytest.raises(ValueError, match="timeout is a number of seconds, not '3'"):
            wait(timeout=cast("int", "3"))
    with pytest.raises(ValueError, match="not 60: say timeout=60 for a limit"):
        job.wait(cast("None", 60))
    with pytest.raises(ValueError, match="there is no state 'runing': it is one of pending, active"):
        grid_jobs(state="runing")
    for since in ("yesterday", 7):
        with pytest.raises(UserError, match=f"{since!r}"):
            grid_jobs(since=since)  # type: ignore[arg-type]
    for asked_by_number in (lambda: grid_job(7), lambda: query("1", job=7)):  # type: ignore[arg-type]
        with pytest.raises(UserError, match="a grid job is named by its id or its name, a text, not by 7"):
            asked_by_number()
    assert "there is no grid job zzzzzzzz" in JobHandle("zzzzzzzz", str(shared))._repr_html_()
    assert grid_jobs(state_dir=shared / "elsewhere") == []
    assert grid_job(job, state_dir=shared / "elsewhere") == job
    for ask_by_handle in (grid_job, lambda gone: query("1", job=gone)):
        with pytest.raises(UnknownJob, match="no grid job has the name"):
            ask_by_handle(JobHandle("zzzzzzzz", str(shared)))


def test_a_handle_says_what_the_commands_say(samgrid: Samgrid, state: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    job = submit(TRUE, name="all is true")
    status = job.wait()
    (told,) = json.loads(samgrid("status", job.id, "--format", "json").stdout)
    assert before <= status.submitted <= (status.ended or before) <= datetime.now(UTC)
    for name, value in told.items():
        shown = getattr(status, name)
        if isinstance(shown, datetime):
            assert shown == datetime.fromisoformat(value)
        else:
            assert shown == (tuple(value) if isinstance(value, list) else value)
    assert job.log() == samgrid("log", job.id).stdout.rstrip("\n")
    assert job.log(lines=0) == ""
    assert str(job.output_tar()) == samgrid("output", job.id).stdout.splitlines()[0]
    (found,) = query("//local-job/@id", job=job)
    assert query("//local-job/@id", job="all is true") == query("//local-job/@id", job=job.id[:6]) == [found]
    assert found.text == job.local_jobs()[0].local_id == samgrid("query", "//local-job/@id").stdout.strip()
    (local_job,) = job.local_jobs()
    assert local_job.succeeded
    assert status.submitted <= (local_job.started or before) <= (local_job.ended or before)
    assert grid_jobs(name="all is *", since=before) == [grid_job("all is true")] == [job]
    assert grid_jobs(since="1h") == grid_jobs(since=before.date()) == [grid_job(job)] == [job]
    with pytest.warns(UserWarning, match="the schema has no name local-jop"):
        assert query("//local-jop") == []
    assert grid_jobs(state="failed") == grid_jobs(since=datetime.now(UTC).replace(year=2100)) == []


def test_waiting_tells_each_change_and_can_be_left(shared: Path, tmp_path: Path) -> None:
    told: list[JobStatus] = []
    job = submit(WAITING.format(file=tmp_path / "go"))
    with pytest.raises(TimeoutError, match=f"grid job {job.id} is"):
        job.wait(timeout=0)
    with pytest.raises(NoOutput, match="its output is there when it has ended"):
        job.outputs("results")

    def note(status: JobStatus) -> None:
        told.append(status)
        if status.counts == {"active": 2}:
            (tmp_path / "go").touch()

    last = job.wait(note)
    assert (told[-1], last.state, last.succeeded) == (last, "done", True)
    assert len({str(status) for status in told}) == len(told) > 1
    assert job.stdout(1, lines=1) == "again"
    assert job.stderr(2) == "up"
    assert not job.cancel()


def test_numbers_may_be_numpys(shared: Path) -> None:
    numpy = pytest.importorskip("numpy")
    job = submit(TRUE)
    assert job.wait(timeout=numpy.int64(600)).succeeded
    assert job.stdout(numpy.int64(1)) == ""


def test_the_end_is_what_is_shown_last(shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown: list[str] = []

    def read_status_of_the_end(account: Account, job_id: str) -> JobStatus:
        # Between the first look and what is shown of it.
        (tmp_path / "go").touch()
        wait_until(lambda: account.database.grid_jobs.get(job_id).state.is_final)
        return read_status(account, job_id)

    show: Any = nullcontext(lambda snapshot, status: shown.append(snapshot.row.state))
    monkeypatch.setattr("jobmanager.commands.python.notebook.show_progress", lambda is_wanted: show)
    monkeypatch.setattr("jobmanager.commands.python.handles.read_status", read_status_of_the_end)
    assert submit(WAITING.format(file=tmp_path / "go")).wait(timeout=0).succeeded
    assert shown[0] != "done"
    assert shown[-1] == "done"


def test_what_still_runs_is_seen_and_cancelled(shared: Path, tmp_path: Path) -> None:
    job = submit(WAITING.format(file=tmp_path / "never"))
    wait_until(lambda: {one.state for one in job.local_jobs()} == {"active"} and "again" in job.stdout(1))
    assert job.cancel()
    status = job.wait()
    assert (status.state, status.outcome, status.succeeded) == ("failed", "cancelled", False)
    assert status.reason is not None
    assert status.reason.startswith("cancelled by ")
    assert {one.outcome for one in job.local_jobs()} == {"cancelled"}


def test_outputs_are_unpacked_once(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    job = submit(WAITING.format(file=tmp_path / "go"))
    job.wait()
    with ThreadPoolExecutor() as threads:
        found, *others = threads.map(job.outputs, ["results"] * 4)
    assert others == [found] * 3
    assert [path.name for path in Path("results").iterdir()] == [job.id]
    assert {number: (path / "it").read_text() for number, path in found.items()} == {1: "1\n", 2: "2\n"}
    (found[1] / "it").write_text("mine")
    job.output_tar().unlink()
    assert (job.outputs(Path("results"))[1] / "it").read_text() == "mine"


def test_who_unpacks_second_takes_what_the_first_has_unpacked(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(TRUE)
    job.wait()
    first = Path("results", job.id)

    def unpack_while_another_does(*arguments: Any) -> None:
        unpack(*arguments)
        (first / f"{job.id}.{job.id}-1.1.output").mkdir(parents=True)

    monkeypatch.setattr("sandbox.unpack.unpack", unpack_while_another_does)
    assert [path.parent.resolve() for path in job.outputs("results").values()] == [first.resolve()]
    assert [path.name for path in Path("results").iterdir()] == [job.id]


def test_a_sequence_has_its_outputs_in_its_steps(shared: Path) -> None:
    step = {"samgrid_type": "command", "executable": "/bin/sh", "arguments": ["-c", "echo it >output/it"]}
    job = submit({"samgrid_type": "structured", "steps": {"one": step, "two": step}})
    status = job.wait()
    assert [(one.name, one.state) for one in status.steps] == [("one", "done"), ("two", "done")]
    with pytest.raises(NoOutput, match="ask its steps"):
        job.outputs("results")
    one, two = job.steps()
    assert (one.status().parent, two.status().parent) == (job.id, job.id)
    assert [(path / "it").read_text() for path in two.outputs("results").values()] == ["it\n"]


def test_what_failed_is_made_again_and_what_is_needed_is_known(
    shared_samgrid: Samgrid, shared: Path, tmp_path: Path
) -> None:
    step = {"samgrid_type": "command", "executable": "/bin/ls", "arguments": tmp_path / "go"}
    first = {**step, "executable": "/bin/sh", "arguments": ["-c", f"until [ -e {tmp_path}/may ]; do sleep 0.1; done"]}
    steps = {"a": first, "b": step, "c": {**step, "after": ["a"]}}
    (tmp_path / "may").touch()
    job = submit({"samgrid_type": "structured", "steps": steps}, name="three")
    status = job.wait()
    assert [one.after for one in status.steps] == [(), ("a",), ("a",)]
    (told,) = json.loads(shared_samgrid("status", job.id, "--format", "json").stdout)
    assert [one["after"] for one in told["steps"]] == [[], ["a"], ["a"]]
    (tmp_path / "go").touch()
    again = job.resubmit(failed=True)
    assert (again.wait().outcome, again.status().repeats) == ("done", job.id)
    with pytest.raises(NotRepeatable, match=f"all steps of {again.id} are done"):
        job.resubmit(failed=True)
    # The next is under way for as long as somebody looks at it.
    (tmp_path / "may").unlink()
    whole = []
    threading.Thread(target=lambda: whole.append(job.resubmit())).start()
    wait_until(lambda: bool(whole and whole[0].steps()))
    monitor = find_monitor(shared)
    with pytest.raises(NotRepeatable, match="wait until it has ended"):
        whole[0].resubmit()
    assert not is_gone(monitor), "it has our configuration"
    whole[0].cancel()


def test_what_is_missing_of_a_request_is_submitted_once(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownRequest, match="no grid job belongs to request 4711"):
        recover(4711)
    (tmp_path / "fail2").touch()
    request = {"samgrid_type": "generator", "request_id": 4711, "events": 4, "events_per_local_job": 2}
    assert submit({**request, "marks": tmp_path}).wait().counts == {"done": 1, "failed": 1}
    (tmp_path / "fail2").unlink()
    found = recover("4711")
    (made,) = found.submitted
    assert found.running == ()
    assert made.wait().counts == {"done": 1}
    assert recover(4711) == Recovered(running=(), submitted=())


def test_threads_may_share_a_handle_and_submit(shared: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        jobs = [*threads.map(lambda _: submit(TRUE), range(4))]
        ended = [*threads.map(lambda job: job.wait(), jobs * 2)]
        ids = [*threads.map(lambda job: query("string(//local-job/@id)", job=job)[0].text, jobs)]
    assert {status.outcome for status in ended} == {"done"}
    assert sorted(ids) == sorted(f"{job.id}-1.1" for job in jobs)


def test_what_keeps_it_from_going_on_is_raised(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_PATIENCE", 0.0)
    monkeypatch.setenv("SAMGRID_EVENTS_PATH", "/no/such/log")
    job = submit("&(samgrid_type = command)(executable = /bin/sleep)(arguments = 60)")
    with pytest.raises(CannotGoOn, match=f"grid job {job.id} cannot go on: .*/no/such/log"):
        job.wait()


def test_a_terminal_has_bars_and_a_pipe_has_nothing(shared_samgrid: Samgrid, tmp_path: Path) -> None:
    variables = {**shared_samgrid.environment(), "PYTHONPATH": str(link_package(tmp_path / "site"))}
    code = f"import samgrid_jobmanager as s; s.submit({TRUE!r}).wait(); print('end')"
    command = [sys.executable, "-c", code]
    piped = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert piped.stdout == "end\n"
    shown = read_terminal(command, {**variables, "TERM": "xterm"}, 80)
    assert "local jobs" in shown
    assert "1/1" in shown
    assert shown.endswith("end\r\n")


def test_a_call_that_does_not_return_is_told(shared: Path) -> None:
    pytest.importorskip("cloudpickle")
    mapped = submit_map(
        lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == 7 else 1 / number, [4, 7, 0], folder="maps"
    )
    with pytest.raises(CallFailed, match="item 2: ") as killed:
        mapped.results()
    assert killed.value.number == 2
    assert str(killed.value) == f"item 2: {mapped.local_jobs()[1].reason}"
    assert "KILL" in str(killed.value)
    again: MapHandle[float] = MapHandle(*(getattr(mapped, field.name) for field in fields(mapped)))
    value, _, failure = again.results(return_exceptions=True)
    assert value == 0.25
    assert isinstance(failure, CallFailed)
    assert failure.number == 3
    assert "ZeroDivisionError: division by zero" in str(failure)


class _NeedsItsModule:
    """Pickled in a local job that has its module, and not loaded here, where that is missing."""

    def __reduce__(self) -> tuple[object, ...]:
        return __import__, ("no_such_module",)


def test_a_result_that_cannot_be_loaded_hides_no_other(shared: Path) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        mapped = submit_map(lambda number: number or _NeedsItsModule(), [0, 1], folder="maps")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    failure, value = mapped.results(return_exceptions=True)
    assert value == 1
    assert str(failure).startswith("item 1: its result cannot be loaded here: ModuleNotFoundError: ")


def test_no_pickle_is_run_that_others_could_have_put_there(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="others can put what they like there"):
        submit_map(len, ["a"], folder=tmp_path / "open")
    (tmp_path / "open").chmod(0o1777)
    mapped = submit_map(len, ["a"], folder=tmp_path / "open")
    assert mapped.results() == [1]
    if os.geteuid() == 0:
        os.chown(mapped.folder, 65534, 65534)
        with pytest.raises(PermissionError, match="others can put what they like there"):
            mapped.results()


def test_a_map_that_is_refused_leaves_nothing(state: Path) -> None:
    pytest.importorskip("cloudpickle")
    with pytest.raises(BadRequest, match="there are no items"):
        submit_map(len, [], folder="maps")
    with pytest.raises(UserError, match="submit_map calls a function, but 7 is none"):
        submit_map(7, ["a"], folder="maps")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a name is a text, not 7"):
        submit("&(samgrid_type = command)(executable = /bin/true)", name=7)  # type: ignore[arg-type]
    assert not Path("maps").exists()
    with pytest.raises(BadRequest) as refused:
        submit_map(len, ["a"], folder="maps", inputFiles=["table.txt"], count=7, directory="/tmp")
    assert refused.value.faults == [
        f"{name}: submit_map says that itself" for name in ("inputFiles", "count", "directory")
    ]
