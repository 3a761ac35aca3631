"""Job type ``command``: its command line, the files that travel, and faults with their file's name."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapters import PlannedJob, TooLarge
from handlers.command import CommandAdapter
from tests.unit.handlers.experiments import make_handler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A request's folder with a program, a file without x bit, data and a subfolder."""
    place = tmp_path / "request"
    (place / "sub").mkdir(parents=True)
    for name, mode in (("run.sh", 0o755), ("plain.sh", 0o644), ("a.dat", 0o600), ("sub/b.dat", 0o644)):
        (place / name).write_text(name)
        (place / name).chmod(mode)
    return place


def command(folder: Path, most: int = 1000, **words: Any) -> CommandAdapter:
    return make_handler(CommandAdapter, folder, most=most, **words)


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        pytest.param({"executable": ["/bin/sh"]}, ["/bin/sh"], id="installed program"),
        pytest.param({"executable": ["/bin/sh"], "arguments": ["-c", "a b"]}, ["/bin/sh", "-c", "a b"], id="arguments"),
        pytest.param({"executable": ["run.sh"]}, ["./run.sh"], id="program beside the request"),
        pytest.param({"executable": ["./run.sh"]}, ["./run.sh"], id="the same with a dot"),
    ],
)
def test_the_command_line_is_the_same_for_every_local_job(folder: Path, words: dict[str, Any], argv: list[str]) -> None:
    handler = command(folder, **words, count=["2"])
    assert not list(handler.checkErrors())
    assert [handler.getCommandAndArguments(PlannedJob(index, 2)) for index in (1, 2)] == [argv, argv]


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ({"executable": ["run.sh"], "arguments": ["--seed=$SAMGRID_SEED", "$SAMGRID_INDEX"]}, "$SAMGRID_SEED"),
        ({"executable": ["/bin/echo"], "arguments": ["${SAMGRID_INDEX}"]}, "${SAMGRID_INDEX}"),
        ({"executable": ["/bin/sh"], "arguments": ["-c", "echo $SAMGRID_INDEX"]}, None),
        ({"executable": ["/usr/bin/env"], "arguments": ["bash", "-c", "echo $SAMGRID_INDEX"]}, None),
        ({"executable": ["run.sh"], "arguments": ["$HOME"]}, None),
    ],
    ids=str,
)
def test_a_variable_that_no_shell_will_expand_is_warned_of(
    folder: Path, words: dict[str, Any], warned: str | None
) -> None:
    warnings = list(command(folder, **words).findWarnings())
    assert [warning.split(", ")[0] for warning in warnings] == (
        [f"arguments: no shell expands {warned}"] if warned else []
    )


def test_an_installed_program_leaves_the_work_area_empty(folder: Path, tmp_path: Path) -> None:
    area = tmp_path / "area"
    area.mkdir()
    command(folder, executable=["/bin/sh"]).prepareWorkArea(area)
    assert not list(area.iterdir())


def test_a_travelling_program_and_its_files_are_copied_with_their_modes(folder: Path, tmp_path: Path) -> None:
    area = tmp_path / "area"
    area.mkdir()
    handler = command(
        folder, executable=["run.sh"], input_files=["a.dat", "./sub/b.dat", str(folder / "plain.sh"), "run.sh"]
    )
    assert not list(handler.checkErrors())
    handler.prepareWorkArea(area)
    copied = {path.relative_to(area).as_posix() for path in area.rglob("*") if path.is_file()}
    assert copied == {"run.sh", "a.dat", "sub/b.dat", "plain.sh"}
    assert (area / "run.sh").read_text() == "run.sh"
    assert os.access(area / "run.sh", os.X_OK)
    assert (area / "a.dat").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        pytest.param({"executable": ["no.sh"]}, "executable 'no.sh' was not found in {folder}", id="not found"),
        pytest.param({"executable": ["/no/x"]}, "executable '/no/x' was not found", id="absolute, not found"),
        pytest.param({"executable": ["sub"]}, "executable 'sub' is a directory", id="directory"),
        pytest.param({"executable": ["/dev/null"]}, "executable '/dev/null' is not a regular file", id="device"),
        pytest.param(
            {"executable": ["/bin/sh"], "input_files": ["n" * 256]},
            f"input file '{'n' * 256}' cannot be read: File name too long",
            id="name too long",
        ),
        pytest.param(
            {"executable": ["n" * 256]},
            f"executable '{'n' * 256}' cannot be read: File name too long",
            id="long program",
        ),
        pytest.param(
            {"executable": ["/bin/sh"], "input_files": ["sparse"]},
            "the files that travel with the request have 100000000000 bytes together: this site takes 2000000000 bytes"
            " ([sandbox] max_input_size); bring fewer or smaller ones",
            id="too large together",
        ),
        pytest.param(
            {"executable": ["plain.sh"]},
            "executable 'plain.sh' is not executable: set its x permission (chmod +x)",
            id="not executable",
        ),
        pytest.param(
            {"executable": ["../x"]},
            "executable '../x' must lie beside the request or below it: '..' is not allowed",
            id="outside",
        ),
        pytest.param(
            {"executable": ["/bin/sh"], "input_files": ["c.dat"]},
            "input file 'c.dat' was not found in {folder}",
            id="no input file",
        ),
        pytest.param(
            {"executable": ["run.sh"], "input_files": ["{folder}/sub/../sub/run.sh"]},
            "two files of the request would travel under the name 'run.sh'",
            id="two of one name",
        ),
        pytest.param(
            {"executable": ["/bin/sh"], "input_files": ["output/x"]},
            "file 'output/x' cannot travel under its name: 'output' is the job manager's",
            id="reserved name",
        ),
    ],
)
def test_a_fault_is_named_with_its_file(folder: Path, words: dict[str, Any], fault: str) -> None:
    for name in ("output/x", "sub/run.sh"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 10**11)
    words = {key: [word.format(folder=folder) for word in values] for key, values in words.items()}
    assert list(command(folder, **words).checkErrors()) == [fault.format(folder=folder)]


def test_of_a_program_of_the_site_its_whole_path_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = f"executable: a program of the site is named by its whole path, as in (executable = {shutil.which('sh')})"
    assert list(command(folder, executable=["sh"]).checkErrors()) == [
        f"executable 'sh' was not found in {folder}",
        fault,
    ]
    monkeypatch.chdir(folder.parent)
    (other,) = command(folder, executable=["request/run.sh"]).checkErrors()
    assert "was not found" in other, "where the person who submits stands is nothing to the request"


def test_all_faults_are_named_at_once(folder: Path) -> None:
    handler = command(folder, executable=["no.sh"], input_files=["c.dat", "sub"])
    assert len(list(handler.checkErrors())) == 3


def test_it_has_no_size_and_runs_count_times(folder: Path) -> None:
    assert command(folder, executable=["/bin/sh"]).getNumSubmissionTimes() == 1
    handler = command(folder, executable=["/bin/sh"], count=["1000"])
    assert handler.getSize() is None
    assert handler.getNumSubmissionTimes() == 1000


def test_more_local_jobs_than_the_site_takes_are_refused_by_the_attributes_name(folder: Path) -> None:
    """From that name GRAM's error number follows."""
    handler = command(folder, most=10, executable=["/bin/sh"], count=["11"])
    with pytest.raises(TooLarge, match=r"^count asks for 11 local jobs, but this site takes at most 10: ask"):
        handler.getNumSubmissionTimes()
