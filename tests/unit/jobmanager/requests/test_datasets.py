"""Datasets that a site's command lists: what it may print, and that a grid job is cut by what it said first."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters import UnknownDataset
from handlers.merge import DzeroMergeAdapter
from jobmanager.control.resubmission import prepare_whole
from jobmanager.requests import datasets
from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.datasets import Datasets, read_list
from jobmanager.requests.request_handler import make_adapter
from jobmanager.site.account import Account
from jobmanager.site.settings import SiteSettings

NAME = "mc16:top/p1"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"events-{number}" for number in range(3)]
    for file in found:
        file.write_text("0123456789")
    return found


def say(folder: Path, script: str) -> SiteSettings:
    """A site whose command is that shell script."""
    program = folder / "list-files"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    return SiteSettings(dataset_command=(str(program), "--of={name}"))


def use(account: Account, site: SiteSettings) -> Account:
    return replace(account, configuration=replace(account.configuration, site=site))


def accept(account: Account, name: str = NAME) -> str:
    # One file for each local job.
    given = {"samgrid_type": "dzero_merge", "input_dataset": name, "target_size": "0.00001", "concatenate": "yes"}
    return accept_grid_job(account, [(word, (value,)) for word, value in given.items()], Path("/"))


def inputs_of(account: Account, job_id: str) -> list[list[str]]:
    job = account.database.grid_jobs.get(job_id)
    adapter = make_adapter(account, job.request(), job.request_folder, job_id)
    assert isinstance(adapter, DzeroMergeAdapter)
    return [[one.name for one in group] for group in adapter.groups]


def test_a_grid_job_is_cut_by_what_the_command_said_first(account: Account, tmp_path: Path, files: list[Path]) -> None:
    first, second, third = map(str, files)
    site = use(account, say(tmp_path, f'echo "$1" >>{tmp_path}/asked; printf "%s\\n" {third} {first}'))
    job_id = accept(site)
    assert account.database.grid_jobs.get(job_id).count == 2
    say(tmp_path, f"echo {second}")
    assert inputs_of(site, job_id) == [[first], [third]]
    # The site may have no such command any more.
    again = prepare_whole(account, account.database.grid_jobs.get(job_id))
    assert (again.count, again.listed_datasets) == (2, {NAME: [third, first]})
    assert (tmp_path / "asked").read_text() == f"--of={NAME}\n"
    assert inputs_of(site, accept(site)) == [[second]]


def test_lists_that_are_damaged_are_told_and_not_asked_for_again(
    account: Account, tmp_path: Path, files: list[Path]
) -> None:
    site = use(account, say(tmp_path, f"echo {files[0]}"))
    job_id = accept(site)
    site.places.datasets(job_id).write_text("[")
    with pytest.raises(OSError, match="the lists of its datasets are damaged"):
        inputs_of(site, job_id)


def test_a_folder_or_a_list_of_the_sites_comes_first(account: Account, tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "top.list").write_text(f"{files[1]}\n")
    site = use(account, say(tmp_path, f"echo {files[0]}"))
    types = {"dzero_merge": {"datasets": str(tmp_path / "datasets")}}
    site = replace(site, configuration=replace(site.configuration, types=types))
    assert inputs_of(site, accept(site, "top")) == [[str(files[1])]]
    assert inputs_of(site, accept(site, "bottom")) == [[str(files[0])]]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param("echo no such >&2; exit 3", "list-files ended with exit code 3: no such", id="code"),
        pytest.param("exit 1", "list-files ended with exit code 1: it said nothing", id="nothing said"),
        pytest.param("true", "has no files", id="empty"),
        pytest.param("printf '/a\\377\\n'", "line 1 of what its command printed is no file's name", id="no UTF-8"),
        pytest.param("printf '/a\\n/b\\033[2J\\n'", "line 2 of what its command printed is no", id="control character"),
        pytest.param("printf '/a\\0b\\n'", "line 1 of what its command printed is no file's name", id="NUL"),
        pytest.param("echo relative", "a list names absolute paths", id="relative"),
        pytest.param("echo /nonexistent", "there is no file '/nonexistent'", id="not there"),
    ],
)
def test_what_is_no_list_of_files_is_one_clear_error(account: Account, tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        accept(use(account, say(tmp_path, script)))
    (fault,) = caught.value.faults
    assert fault.startswith(f"dataset {NAME!r}")
    assert words in fault
    assert fault.isprintable()


def test_a_command_that_hangs_is_killed_and_told(account: Account, tmp_path: Path) -> None:
    site = replace(say(tmp_path, "exec sleep 1000"), dataset_time_limit=0.2)
    with pytest.raises(BadRequest, match=r"did not answer within 0\.2 s"):
        accept(use(account, site))


def test_a_program_that_is_not_there_is_told(account: Account) -> None:
    with pytest.raises(BadRequest, match="/nonexistent/list cannot be run: there is no such program"):
        accept(use(account, SiteSettings(dataset_command=("/nonexistent/list", "{name}"))))


@pytest.mark.parametrize("name", ["-rf", "a\nb", "x" * 5000])
def test_what_no_dataset_is_called_is_not_asked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownDataset, match="a dataset's name is printable"):
        Datasets(say(tmp_path, f"touch {tmp_path}/asked")).find(name)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("command", [("list",), ("list", "name"), ("{name}",)])
def test_a_command_without_a_place_for_the_name_is_a_fault_of_the_sites(command: tuple[str, ...]) -> None:
    with pytest.raises(UnknownDataset, match=r"\[site\] dataset_command names no program with an argument"):
        Datasets(SiteSettings(dataset_command=command)).find("x")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: "/a\n" * 4, id="too many"),
        pytest.param(lambda: "/" + "a" * 5000, id="too long"),
        pytest.param(lambda: "/a\n \n", id="blank"),
    ],
)
def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch, make: Callable[[], str]) -> None:
    monkeypatch.setattr(datasets, "_MOST_FILES", 3)
    with pytest.raises(UnknownDataset):
        read_list(make())
    assert read_list("/a\n\n /b c \n") == ["/a", "/b c"]


def test_nothing_is_kept_of_a_request_that_is_refused(account: Account, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        accept(use(account, say(tmp_path, "echo /nonexistent")))
    assert not account.places.jobs.exists()


def test_what_is_kept_can_be_read(account: Account, tmp_path: Path, files: list[Path]) -> None:
    job_id = accept(use(account, say(tmp_path, f"echo {files[0]}")))
    kept = account.places.datasets(job_id)
    assert json.loads(kept.read_text()) == {NAME: [str(files[0])]}
    assert kept.stat().st_mode & 0o777 == 0o600
