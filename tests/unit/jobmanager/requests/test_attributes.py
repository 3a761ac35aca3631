"""A request is checked against what its job type declares: every fault is named at once."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from adapters import Attribute, JobAdapter, Kind, PlannedJob, Value
from jobmanager.database.grid_job import GramOrigin
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest, Given, find_values, read_request, read_site_values, read_type
from jobmanager.requests.job_types import (
    HandlerError,
    HandlerUnreachable,
    find_job_type,
    load_job_types,
    read_job_types,
)
from jobmanager.site.account import Account
from jobmanager.site.settings import NotificationSettings


class Reco(JobAdapter):
    """A job type of these tests."""

    jobType = "reco"
    attributes: ClassVar[Sequence[Attribute]] = (
        Attribute("files_per_job", "Files.", Kind.INTEGER, "files", default=10, minimum=1, maximum=100),
        Attribute("dataset", "Dataset.", required=True),
    )
    siteAttributes = (Attribute("facility", "Facility's name.", default="fnal"),)

    def prepareWorkArea(self, workArea: Path) -> None:
        raise NotImplementedError

    def getCommandAndArguments(self, localJob: PlannedJob) -> Sequence[str]:
        raise NotImplementedError


def given(**attributes: Value) -> Given:
    return [(name, value if isinstance(value, tuple) else (value,)) for name, value in attributes.items()]


def test_names_are_compared_as_globus_compares_them() -> None:
    request, faults = read_request(given(samgrid_type="reco", FILES_perJob="7", DataSet="x"), Reco, Path("/"))
    assert faults == []
    assert (request["files_per_job"], request["dataset"]) == (7, "x")


def test_defaults_are_filled_in() -> None:
    request, _ = read_request(given(samgrid_type="reco", dataset="x"), Reco, Path("/"))
    assert (request["files_per_job"], request["min_success"], request["environment"]) == (10, 1.0, ())


def test_an_attribute_given_twice_counts_as_last_given() -> None:
    twice = [*given(samgrid_type="reco", dataset="a"), ("data_set", ("b",))]
    request, _ = read_request(twice, Reco, Path("/"))
    assert request["dataset"] == "b"


COMMAND = given(samgrid_type="command", executable="/bin/true")


@pytest.mark.parametrize(
    "word", ["-Xsendmail=/bin/sh", "|id", "a/b", "/etc/x", "a b", "a\nb", "", "é@x", "#room", "x" * 255], ids=ascii
)
def test_whom_to_notify_is_nothing_that_a_mail_program_could_take_for_more(account: Account, word: str) -> None:
    with pytest.raises(BadRequest, match=r"notify: .* is no address"):
        accept_grid_job(account, [*COMMAND, ("notify", ("a@b", word))], Path("/"))
    assert account.database.grid_jobs.overview() == []


@pytest.mark.parametrize("name", ["notify", "NotifyUser", "notify_user"])
def test_whom_to_notify_is_kept_and_said_in_vain_where_nobody_would_be(
    account: Account, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("maria@example.org", "higgs-group", "m.x+tag@h")
    job_id = accept_grid_job(account, [*COMMAND, (name, words)], Path("/"))
    assert find_values(account.database.grid_jobs.get(job_id).request(), "notify") == words
    assert "notify: nobody is notified, as the configuration names no [notification] command" in caplog.text
    caplog.clear()
    told = replace(account.configuration, notification=NotificationSettings(command=("/bin/true",)))
    accept_grid_job(replace(account, configuration=told), [*COMMAND, (name, words)], Path("/"))
    accept_grid_job(account, COMMAND, Path("/"))
    assert "nobody is told" not in caplog.text


@pytest.mark.parametrize(
    "name", ["x" * 201, "x" * 10_000, "two\nlines", "\x1b[2J", "\u202egnp", "\udcff", "", "  "], ids=ascii
)
def test_a_name_that_nobody_could_show_is_refused(account: Account, name: str) -> None:
    with pytest.raises(BadRequest, match="name must be at most 200 printable characters"):
        accept_grid_job(account, given(samgrid_type="command", executable="/bin/true", name=name), Path("/"))
    assert account.database.grid_jobs.overview() == []


@pytest.mark.parametrize("name", ["Z → μμ, tune 7", "<b>&amp;", "x" * 200], ids=ascii)
def test_a_name_is_kept_as_it_is(account: Account, name: str) -> None:
    job_id = accept_grid_job(account, given(samgrid_type="command", executable="/bin/true", name=name), Path("/"))
    (row,) = account.database.grid_jobs.overview(job_id)
    assert row.name == account.database.grid_jobs.get(job_id).name == name


def test_every_fault_is_named_at_once() -> None:
    wrong = given(samgrid_type="reco", colour="green", files_per_job="101", max_memory="much")
    _, faults = read_request(wrong, Reco, Path("/"))
    text = "\n".join(faults)
    assert len(faults) == 4
    for word in ("colour", "files_per_job", "1 to 100", "max_memory", "dataset is missing"):
        assert word in text


def test_a_request_without_a_type_says_what_is_missing() -> None:
    with pytest.raises(BadRequest, match="samgrid_type"):
        read_type(given(executable="/bin/true"))


def test_an_old_request_calls_the_type_job_type() -> None:
    old = given(job_type="reco", dataset="x")
    assert read_type(old) == "reco"
    request, faults = read_request(old, Reco, Path("/"))
    assert (request["samgrid_type"], faults) == ("reco", [])
    assert read_type([*old, ("samgrid_type", ("command",))]) == "command", "the last one counts, as with any attribute"


def test_site_values_are_checked_too() -> None:
    assert read_site_values(Reco, {"facility": "desy"}) == {"facility": "desy"}
    with pytest.raises(BadRequest, match=r"\[type.reco\] has no key 'colour'; the keys are facility"):
        read_site_values(Reco, {"colour": "green"})


def test_an_unknown_job_type_lists_the_known_ones() -> None:
    with pytest.raises(HandlerError, match=r'"cooking": known are .*command, .*pythia'):
        find_job_type("cooking", ())


def test_a_mistyped_word_is_answered_with_what_may_have_been_meant() -> None:
    _, faults = read_request(given(samgrid_type="reco", dataset="x", max_walltim="5"), Reco, Path("/"))
    assert 'unknown attribute "max_walltim" for job type reco (did you mean max_wall_time?); known are' in faults[0]
    # GRAM's clients see the beginning of a long message: no list stands before another fault.
    _, faults = read_request(given(samgrid_type="reco", max_walltim="5", colour="red", cores="x"), Reco, Path("/"))
    assert [fault.split()[0] for fault in faults] == ["cores", "dataset", "unknown", "unknown"]
    assert [fault.count("known are") for fault in faults] == [0, 0, 0, 1]
    with pytest.raises(HandlerError, match=r'"Comand" \(did you mean command\?\): known are '):
        find_job_type("Comand", ())


def test_a_handler_in_a_file_of_the_site_is_found(tmp_path: Path) -> None:
    module = tmp_path / "my_handler.py"
    source = Path(__file__).read_text().split("class Reco")[1].split("\n\n\ndef ")[0]
    head = "from collections.abc import Sequence\nfrom pathlib import Path\nfrom typing import ClassVar\n"
    head += "from adapters import Attribute, JobAdapter, Kind, PlannedJob\n\n\nclass Reco"
    module.write_text(head + source)
    assert find_job_type("reco", [str(module)]).jobType == "reco"
    assert set(load_job_types([str(module)])) == {*load_job_types(()), "reco"}


def test_a_module_of_the_site_is_executed_once_at_each_acceptance(account: Account, tmp_path: Path) -> None:
    module, executions = tmp_path / "site_handler.py", tmp_path / "executions"
    module.write_text(
        "import handlers.command\n"
        "class Site(handlers.command.CommandAdapter):\n"
        '    jobType = "site"\n'
        f"open({str(executions)!r}, 'a').write('x')\n"
    )
    handlers = replace(account.configuration.handlers, modules=(str(module),))
    site = replace(account, configuration=replace(account.configuration, handlers=handlers))
    for number in (1, 2):
        accept_grid_job(site, given(samgrid_type="site", executable="/bin/true"), tmp_path)
        assert executions.read_text() == number * "x"


@pytest.mark.parametrize("is_package", [False, True], ids=["a file", "a module"])
def test_no_other_handler_takes_the_job_type_of_a_module_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_package: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "for_the_site.py").write_text("class Own(:\n    jobType: ClassVar[str] = 'command'\n    x = 'pythia'\n")
    modules = ["for_the_site" if is_package else str(tmp_path / "for_the_site.py")]
    with pytest.raises(HandlerUnreachable, match=r"^handler module .*for_the_site.* cannot be loaded: SyntaxError"):
        find_job_type("command", modules)
    assert find_job_type("pythia", modules) is find_job_type("pythia", [])
    assert "command" not in read_job_types(modules)[0]


@pytest.mark.parametrize("source", ["syntax error", "raise SystemError('no')", "x = 1"])
def test_a_broken_handler_module_is_named_and_refuses_only_its_own_types(tmp_path: Path, source: str) -> None:
    module = tmp_path / "broken.py"
    module.write_text(source)
    with pytest.raises(HandlerUnreachable, match=r'^unknown job type "own": known are .*pythia.*; .*broken\.py'):
        find_job_type("own", [str(module)])
    assert find_job_type("command", [str(module)]) is find_job_type("command", [])
    assert read_job_types([str(module)])[0] == load_job_types([])
    with pytest.raises(HandlerError, match=r"broken\.py"):  # who recovers a request must know them all
        load_job_types([str(module)])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        pytest.param({"samgrid_type": "cooking"}, "unknown job type", id="unknown job type"),
        pytest.param({"samgrid_type": "command", "executable": "/no/such"}, "/no/such", id="missing executable"),
        pytest.param({"samgrid_type": "command"}, "executable is missing", id="no executable"),
        pytest.param({"samgrid_type": "pythia", "events": "0"}, "at least 1", id="0 events"),
        pytest.param({"samgrid_type": "pythia", "events": "1000000000000"}, "4000000000 local jobs", id="10^12 events"),
        pytest.param({"samgrid_type": "pythia", "events": "many"}, "'many'", id="wrong type"),
        pytest.param({"samgrid_type": "pythia", "events": "1", "colour": "x"}, "colour", id="unknown attribute"),
        pytest.param(
            {"samgrid_type": "command", "executable": "/bin/true", "stdin": "/no/input"}, "/no/input", id="no stdin"
        ),
        pytest.param(
            {"samgrid_type": "command", "executable": "/bin/true", "directory": "/no/dir"}, "/no/dir", id="no directory"
        ),
        pytest.param(
            {"samgrid_type": "command", "executable": "/bin/true", "count": "100001"}, "100000", id="too many"
        ),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_created(
    account: Account, attributes: dict[str, Value], message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        accept_grid_job(account, given(**attributes), Path("/"))
    assert account.database.grid_jobs.overview() == []
    assert not account.places.jobs.exists()


def test_faults_of_values_and_of_what_they_name_are_told_together(account: Account) -> None:
    wrong = given(samgrid_type="command", executable="/no/such", stdin="/no/input", max_wall_time="0", colour="red")
    with pytest.raises(BadRequest) as caught:
        accept_grid_job(account, wrong, Path("/"))
    text = "\n".join(caught.value.faults)
    assert all(word in text for word in ("/no/such", "/no/input", "max_wall_time", "colour"))


def test_an_accepted_grid_job_knows_its_slices(account: Account) -> None:
    job_id = accept_grid_job(account, given(samgrid_type="pythia", events="1001", seed="5"), Path("/"))
    job = account.database.grid_jobs.get(job_id)
    assert (job.count, job.size_and_seed, job.job_type) == (5, (1001, 5), "pythia")


def test_grid_jobs_without_a_seed_get_different_ones(account: Account) -> None:
    request = given(samgrid_type="pythia", events="10")
    jobs = [account.database.grid_jobs.get(accept_grid_job(account, request, Path("/"))) for _ in range(3)]
    assert len({job.size_and_seed for job in jobs}) == 3


# --- where the tar is wanted


NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("no/such/out.tar", "no such folder, or none that you may enter: {}/no/such"),
        ("file/out.tar", "no such folder, or none that you may enter: {}/file"),
        ("folder", "{}/folder is a folder"),
        ("link", "no such folder, or none that you may enter: {}/nowhere"),
        ("n" * 300, "no file can have so long a name"),
        ("loop/out.tar", "no such folder, or none that you may enter: {}/loop"),
        pytest.param("closed/out.tar", "{}/closed takes no files", marks=NOT_ROOT),
        pytest.param("read-only", "you may not write {}/read-only", marks=NOT_ROOT),
    ],
    ids=[
        "no folder",
        "a file for a folder",
        "a folder",
        "a link into nowhere",
        "too long",
        "a loop",
        "closed",
        "read-only",
    ],
)
def test_a_tar_is_not_wanted_where_no_file_can_be_written(
    account: Account, tmp_path: Path, place: str, fault: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere/out.tar")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "read-only").touch(mode=0o400)
    request = given(samgrid_type="command", executable="/bin/true", samgrid_output=f"{tmp_path}/{place}")
    with pytest.raises(BadRequest, match=re.escape(f"samgrid_output: {fault.format(tmp_path)}")):
        accept_grid_job(account, request, Path("/"))
    assert account.database.grid_jobs.overview() == []


@pytest.mark.parametrize("place", ["out.tar", "there", "link", "stdout"])
def test_a_tar_is_wanted_where_a_file_can_be_written_and_nothing_is_written_yet(
    account: Account, tmp_path: Path, place: str
) -> None:
    (tmp_path / "there").write_text("from before")
    (tmp_path / "link").symlink_to("new.tar")
    word = place if place == "stdout" else f"{tmp_path}/{place}"
    accept_grid_job(account, given(samgrid_type="command", executable="/bin/true", samgrid_output=word), Path("/"))
    assert (tmp_path / "there").read_text() == "from before"
    assert not (tmp_path / "new.tar").exists()
    assert not (tmp_path / "out.tar").exists()


def test_through_gram_the_tar_is_seen_from_the_directory_of_the_request(account: Account, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    origin = GramOrigin("uniqid", "https://localhost/1/2/", "/dev/null", "/dev/null", is_plain=False)
    request = given(samgrid_type="pythia", events="10", samgrid_output="run/out.tar")
    accept_grid_job(account, request, tmp_path, origin)
    with pytest.raises(BadRequest, match=r"samgrid_output: no such folder, .*/elsewhere/run"):
        accept_grid_job(account, request, tmp_path / "elsewhere", replace(origin, uniqid="another"))
