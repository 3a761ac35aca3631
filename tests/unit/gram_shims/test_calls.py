"""What GRAM's four calls do to the job database, and what they answer."""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import gram_shims.calls
from adapters import Value, canonical_name
from batch_adapters.states import State
from gram_shims.calls import ACKNOWLEDGES, signal
from gram_shims.program import answer_call
from gram_shims.request import JobDescription
from jobmanager.database.database import Database, OpenGridJob
from jobmanager.gram.answers import NO_CHANGE, GramAnswer, gram_id, read_gram_id
from jobmanager.requests.rsl import read_rsl
from jobmanager.site.account import Account
from tests.clients_of_gram import REQUESTS, render_globus_rsl, write_files
from tests.unit.jobmanager.credential_files import write_secret

CONTACT = "https://localhost:1/2/3/"


@pytest.fixture(autouse=True)
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[Account]:
    """Who was woken: no monitor is started."""
    woken: list[Account] = []
    monkeypatch.setattr(gram_shims.calls, "wake_monitor", woken.append)
    return woken


def describe(uniqid: str = "1.2.3", **attributes: tuple[Value, ...]) -> JobDescription:
    return JobDescription(
        {
            "executable": ("/bin/true",),
            "directory": ("/",),
            "stdin": ("/dev/null",),
            "stdout": ("out",),
            "uniqid": (uniqid,),
            **attributes,
        },
        {"GLOBUS_GRAM_JOB_CONTACT": CONTACT},
    )


def about(job_id: str, **attributes: tuple[Value, ...]) -> JobDescription:
    return describe("", jobid=(gram_id(job_id),), **attributes)


def submit(account: Account, uniqid: str = "1.2.3") -> str:
    """The new grid job, of which GRAM is told another id."""
    answer = gram_shims.calls.submit(account, describe(uniqid))
    assert answer.state is State.PENDING, answer
    uid, _, job_id = answer.job_id.partition(".")
    assert uid == str(os.getuid())
    return job_id


def end(account: Account, job_id: str, state: State) -> None:
    def change(job: SimpleNamespace) -> None:
        job.reason = "1 of 1 local jobs failed"
        job.end(state, 1.0)

    account.database.grid_jobs.change(job_id, change)  # type: ignore[arg-type]


def test_a_request_becomes_a_grid_job_that_knows_where_it_came_from(account: Account, wakes: list[Account]) -> None:
    job_id = submit(account)
    origin = account.database.grid_jobs.get(job_id).origin
    assert origin is not None
    assert (origin.uniqid, origin.contact) == ("1.2.3", CONTACT)
    assert (origin.stdout, origin.stderr, origin.is_plain) == ("/out", "/dev/null", True)
    assert wakes == [account]


@pytest.mark.parametrize(
    ("attributes", "environment", "is_handed_on"),
    [
        pytest.param({}, {}, True, id="by default"),
        pytest.param({"x509userproxy": ("",)}, {}, False, id="the request wants none"),
        pytest.param({}, {"X509_USER_PROXY": "/nonexistent"}, False, id="it is not there"),
        pytest.param({}, {"X509_USER_PROXY": "proxy"}, False, id="no path"),
    ],
)
def test_grams_proxy_is_the_credential_of_a_request_that_names_none(
    account: Account,
    tmp_path: Path,
    attributes: dict[str, tuple[Value, ...]],
    environment: dict[str, str],
    is_handed_on: bool,
) -> None:
    proxy = write_secret(tmp_path / "proxy", b"-")
    description = describe("1.2.3", **attributes)
    description = replace(description, environment={"X509_USER_PROXY": str(proxy), **environment})
    answer = gram_shims.calls.submit(account, description)
    job = account.database.grid_jobs.get(answer.job_id.partition(".")[2])
    sources = [(entry.name, entry.source, entry.is_gram_default) for entry in job.credentials]
    assert sources == ([("x509_user_proxy", str(proxy), True)] if is_handed_on else [])


def test_a_proxy_that_the_client_puts_into_the_environment_stands(account: Account, tmp_path: Path) -> None:
    proxy = write_secret(tmp_path / "proxy", b"-")
    by_gram = ("X509_USER_PROXY", str(proxy))
    credentials = []
    for uniqid, pairs in (("1.2", (by_gram,)), ("1.3", (by_gram, ("X509_USER_PROXY", "/own")))):
        description = replace(describe(uniqid, environment=pairs), environment=dict([by_gram]))
        answer = gram_shims.calls.submit(account, description)
        job = account.database.grid_jobs.get(answer.job_id.partition(".")[2])
        credentials.append([entry.name for entry in job.credentials])
    assert credentials == [["x509_user_proxy"], []]


@pytest.mark.parametrize(
    ("attributes", "is_staged_out"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"filestreamout": (("/out", "https://client/out"),)}, True, id="standard output"),
        pytest.param({"filestageout": (("/tar", "gsiftp://host/tar"),)}, True, id="a file"),
    ],
)
def test_it_is_known_whether_gram_asks_us_once_it_has_brought_files_back(
    attributes: dict[str, tuple[Value, ...]], is_staged_out: bool
) -> None:
    assert gram_shims.calls.make_origin(describe("", **attributes), Path("/")).is_staged_out is is_staged_out


def test_the_same_request_is_the_same_grid_job_also_when_its_files_have_gone(account: Account) -> None:
    first = submit(account)
    gone = describe(directory=("/nowhere",))
    assert gram_shims.calls.submit(account, gone) == GramAnswer(State.PENDING, gram_id(first))
    assert submit(account, "1.2.4") != first
    assert len(account.database.grid_jobs.list_open()) == 2


def test_a_request_without_a_name_is_known_by_its_contact_or_is_one_of_its_own(account: Account) -> None:
    assert submit(account, "") == submit(account, "")
    nameless = JobDescription(describe("").attributes)
    assert (
        gram_shims.calls.make_origin(nameless, Path("/")).uniqid
        != gram_shims.calls.make_origin(nameless, Path("/")).uniqid
    )


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        pytest.param({}, "", id="the same"),
        pytest.param({"environment": (("A", "2"),)}, "", id="another environment"),
        pytest.param({"executable": ("/bin/false",)}, "", id="a file staged anew"),
        pytest.param({"stdout": ("https://host:2/out",)}, "", id="another URL"),
        pytest.param({"executable": ("/nowhere",)}, "", id="a file that has gone"),
        pytest.param({"count": ("3",)}, "count: 3 is not 2, but grid job {id} has the same uniqid", id="another count"),
        pytest.param(
            {"arguments": ("b", "c")}, "arguments: b c is not a\ufffd, but grid job {id}", id="other arguments"
        ),
    ],
)
def test_a_uniqid_names_one_request(
    account: Account, attributes: Mapping[str, tuple[Value, ...]], message: str
) -> None:
    first: dict[str, tuple[Value, ...]] = {"samgridtype": ("command",), "count": ("2",), "arguments": ("a\x01",)}
    job_id = gram_shims.calls.submit(account, describe("1", **first)).job_id.rpartition(".")[2]
    answer = gram_shims.calls.submit(account, describe("1", **{**first, **attributes}))
    assert message.format(id=job_id) in answer.message
    assert (answer.error is None) is (message == "")
    assert [job.id for job in account.database.grid_jobs.list_open()] == [job_id]


def test_a_uniqid_that_no_xml_holds_names_one_grid_job(account: Account) -> None:
    assert submit(account, "\udcff\x01") == submit(account, "\udcff\x01")


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"executable": ("/nowhere",)}, 5, "executable: there is no /nowhere"),
        ({"samgridtype": ("nosuch",)}, 134, "nosuch"),
        ({"jobtype": ("nosuch",)}, 19, "nosuch"),
        ({"samgridtype": ("command",), "minsuccess": ("2",), "frobnicate": ("1",)}, 134, "frobnicate"),
        ({"environment": (("A B", "c"),)}, 54, "'A B'"),
        ({"queue": (("a",),)}, 37, "queue"),
    ],
    ids=["executable", "type", "old type", "two faults", "variable", "queue"],
)
def test_a_refused_request_leaves_nothing(
    account: Account, attributes: Mapping[str, tuple[Value, ...]], error: int, message: str
) -> None:
    answer = gram_shims.calls.submit(account, describe("1", **attributes))
    assert answer.error == error
    assert message in answer.message
    assert account.database.grid_jobs.list_open() == []


OF_A_PROGRAM: Mapping[str, tuple[Value, ...]] = {
    "executable": ("/nowhere/of/the/client",),
    "arguments": ("a", "b"),
    "count": ("3",),
    "jobtype": ("multiple",),
}
"""What clients write that know of no job types."""


@pytest.mark.parametrize("job_type", REQUESTS)
def test_a_type_takes_what_clients_always_write_and_notes_what_it_does_not_use(
    account: Account, job_type: str, tmp_path: Path
) -> None:
    write_files(tmp_path / "files")
    rsl = read_rsl("&" + render_globus_rsl(job_type, tmp_path / "files"))
    asked = {canonical_name(relation.name): relation.values for relation in rsl}
    directory = {"directory": (str(tmp_path),)}
    answer = gram_shims.calls.submit(account, describe("1", **OF_A_PROGRAM, **directory, **asked))
    assert answer.error is None, answer.message
    job = account.database.grid_jobs.get(read_gram_id(answer.job_id))
    assert {canonical_name(name): values for name, values in job.request() if name != "environment"} == asked | (
        directory if job_type == "structured" else {}
    )
    assert job.origin is not None
    unused = ("executable", "arguments", "count", "directory")
    assert job.origin.unused == (unused[:3] if job_type == "structured" else unused)
    assert job.request_folder == tmp_path


def test_a_type_notes_nothing_of_grams_defaults(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/usr")
    defaults = {"executable": ("",), "arguments": (), "count": ("1",), "directory": ("/usr",)}
    answer = gram_shims.calls.submit(account, describe("1", **defaults, samgridtype=("structured",), steps=STEPS))
    origin = account.database.grid_jobs.get(read_gram_id(answer.job_id)).origin
    assert origin is not None
    assert origin.unused == ()


STEPS: tuple[Value, ...] = (("one", ("samgrid_type", "command"), ("executable", "/bin/true")),)


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"frobnicate": ("1",)}, 134, "frobnicate"),
        ({"events": ("10",)}, 134, 'unknown attribute "events"'),
        ({"minsuccess": ("2",)}, 134, "min_success"),
        ({"directory": ("/nowhere",)}, 4, "/nowhere"),
        ({"directory": ("/", "/")}, 52, "one word"),
        ({"stdin": ("/nowhere",)}, 11, "/nowhere"),
        ({"jobtype": ("mpi",)}, 26, "mpi"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_beside_a_program_that_is_not_used_all_else_is_still_checked(
    account: Account, attributes: Mapping[str, tuple[Value, ...]], error: int, message: str
) -> None:
    answer = gram_shims.calls.submit(
        account, describe("1", **{**OF_A_PROGRAM, "samgridtype": ("structured",), "steps": STEPS, **attributes})
    )
    assert (answer.error, message in answer.message) == (error, True), answer.message
    assert account.database.grid_jobs.list_open() == []


def test_who_acknowledges_finds_a_mark_to_remove_and_nobody_else(account: Account) -> None:
    marks = account.places.withdrawn
    submit(account, "1.1")
    assert not marks.exists()
    for uniqid, executable in (("1.2", "/bin/true"), ("1.3", "/nowhere")):
        told = describe(uniqid, executable=(executable,))
        gram_shims.calls.submit(account, replace(told, environment={**told.environment, ACKNOWLEDGES: "yes"}))
    (mark,) = marks.iterdir()
    assert mark.name == "1.2"
    assert 0 < mark.stat().st_mtime - time.time() <= 60


def test_an_accepted_request_is_not_refused_because_no_monitor_starts(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Account) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr(gram_shims.calls, "wake_monitor", fail)
    submit(account)


def test_submit_publishes_the_first_answer_and_never_takes_back_what_the_monitor_said(account: Account) -> None:
    file = account.places.gram / submit(account)
    assert file.read_text() == "JOB_STATE:1\n"
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.write_text("JOB_STATE:8\n")
    submit(account)
    assert file.read_text() == "JOB_STATE:8\n"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_poll_tells_the_state_and_wakes_the_monitor_while_there_is_work(
    account: Account, wakes: list[Account]
) -> None:
    job_id = submit(account)
    assert gram_shims.calls.poll(account, about(job_id)) == GramAnswer(State.PENDING)
    assert len(wakes) == 2
    end(account, job_id, State.DONE)
    assert gram_shims.calls.poll(account, about(job_id)) == GramAnswer(State.DONE)
    assert len(wakes) == 2


def test_a_poll_of_a_failed_grid_job_says_why(account: Account) -> None:
    job_id = submit(account)
    end(account, job_id, State.FAILED)
    answer = gram_shims.calls.poll(account, about(job_id))
    assert (answer.state, answer.error) == (State.FAILED, 17)
    assert "1 of 1 local jobs failed" in answer.message
    assert f"{job_id}.tar" in answer.message


def test_a_job_manager_that_never_learned_the_id_is_told_by_uniqid(account: Account) -> None:
    submit(account)
    assert gram_shims.calls.poll(account, describe(jobid=("",))) == GramAnswer(State.PENDING)


@pytest.mark.parametrize("job_id", ["zzzzzzzz", "", "../../etc/passwd", "11,12", "\udcff", "a\nb"])
def test_of_an_unknown_grid_job_a_poll_knows_nothing(account: Account, job_id: str) -> None:
    submit(account)
    assert gram_shims.calls.poll(account, JobDescription({"jobid": (job_id,)})) == NO_CHANGE


def test_cancel_records_the_request_and_wakes_the_monitor(account: Account, wakes: list[Account]) -> None:
    job_id = submit(account)
    for _ in range(2):
        assert gram_shims.calls.cancel(account, about(job_id)) == GramAnswer(State.FAILED)
    assert account.database.grid_jobs.list_open() == [
        OpenGridJob(job_id, "fork", cancelled=True, state=State.UNSUBMITTED)
    ]
    assert len(wakes) == 3


@pytest.mark.parametrize("state", [State.DONE, State.FAILED])
def test_cancel_tells_the_state_of_what_has_ended(account: Account, state: State) -> None:
    job_id = submit(account)
    end(account, job_id, state)
    assert gram_shims.calls.cancel(account, about(job_id)) == GramAnswer(state)
    assert not account.database.grid_jobs.get(job_id).cancelled


def test_cancel_of_an_unknown_grid_job_fails(account: Account) -> None:
    assert gram_shims.calls.cancel(account, about("zzzzzzzz")).error == 31


@pytest.mark.parametrize(
    ("number", "error"),
    [("2", 107), ("3", 107), ("4", 107), ("5", 108), ("", 108), ("x", 108)],
    ids=["suspend", "resume", "priority", "commit", "none", "no number"],
)
def test_a_signal_that_cannot_be_passed_on_is_refused(account: Account, number: str, error: int) -> None:
    job_id = submit(account)
    assert signal(account, about(job_id, signal=(number,), signalarg=("now",))).error == error
    assert not account.database.grid_jobs.get(job_id).cancelled


def test_signal_1_cancels(account: Account) -> None:
    job_id = submit(account)
    assert signal(account, about(job_id, signal=("1",), signalarg=("x",))) == GramAnswer(State.FAILED)
    assert account.database.grid_jobs.get(job_id).cancelled


# whatever goes wrong


@pytest.fixture
def _outputs_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's own descriptors do not become the log, and its umask comes back."""
    monkeypatch.setattr("gram_shims.program._log_into", lambda root: None)
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_outputs_stay")
@pytest.mark.parametrize(
    ("command", "error"), [("submit", 17), ("poll", None), ("cancel", 31), ("signal", 107)], ids=str
)
@pytest.mark.parametrize("kind", ["a file", "open to all", "broken database"])
def test_where_nothing_can_be_known_or_done_there_is_an_answer(
    command: str, error: int | None, kind: str, tmp_path: Path
) -> None:
    root = tmp_path / "home" / "state"
    root.mkdir(parents=True, mode=0o700)
    if kind == "a file":
        root.rmdir()
        root.write_text("")
    elif kind == "open to all":
        root.chmod(0o777)
    else:
        (root / "broken").write_text("this is no database" * 100)
        (root / "broken").rename(root / "jobs.db")
    answer = answer_call(command, str(root), describe(jobid=("abcdefgh",), signal=("1",)))
    if kind == "broken database":
        (root / "jobs.db").unlink()
    assert answer.error == error
    assert answer.state is None
    assert answer.message or command == "poll"


@pytest.mark.usefixtures("_outputs_stay")
def test_only_a_submit_makes_a_state_folder(tmp_path: Path) -> None:
    for command in ("poll", "cancel", "signal"):
        answer_call(command, str(tmp_path / "none"), about("abcdefgh", signal=("1",)))
        assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("_outputs_stay")
@pytest.mark.parametrize("error", [SystemExit(3), ValueError("a\n\nb"), RecursionError()], ids=repr)
def test_whatever_a_call_raises_gram_is_answered(
    account: Account, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(gram_shims.calls, "accept_grid_job", fail)
    answer = answer_call("submit", str(account.places.root), describe())
    assert answer.error == 17
    assert answer.message


def test_a_locked_database_is_read(account: Account) -> None:
    job_id = submit(account)
    other = Database(account.places.database)
    with other.transaction():
        assert gram_shims.calls.poll(account, about(job_id)) == GramAnswer(State.PENDING)
    other.close()


@pytest.mark.usefixtures("_outputs_stay")
def test_one_line_of_the_log_has_all_of_a_call(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_call("submit", str(account.places.root), describe(uniqid="1.2\n3"))
    (whole,) = [line for line in capsys.readouterr().err.splitlines() if CONTACT in line]
    line = whole.partition(" INFO ")[2]
    assert line.startswith(f"submit contact={CONTACT} uniqid=1.23 job={answer.job_id} seconds=")
    assert line.endswith(f"answer=JOB_ID:{answer.job_id} JOB_STATE:1")
    assert os.umask(0o022) == 0o077
