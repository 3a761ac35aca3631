"""The program that GRAM's Perl module asks."""

import io
import os
from pathlib import Path

import pytest

from gram_shims import program


def test_after_an_upgrade_it_ends_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = tmp_path / "launch.py"
    launch.touch()
    os.utime(launch, (1, 1))
    monkeypatch.setattr("batch_adapters.launch.LAUNCH", launch)
    monkeypatch.setattr("batch_adapters.launch.UPGRADE", -1.0)
    answered: list[str] = []

    def answer(command: str, state_dir: str, text: bytes, answers: io.BytesIO) -> None:
        raise AssertionError("it was asked")

    def upgrade() -> int:
        answered.append("the first")
        newer = tmp_path / "newer"
        newer.touch()
        os.utime(newer, (1, 1))
        newer.replace(launch)
        return os.getpid()

    monkeypatch.setattr(program, "_answer_question", answer)
    monkeypatch.setattr("os.fork", upgrade)
    monkeypatch.setattr("os.waitpid", lambda pid, options: (pid, 0))
    assert program._serve(str(tmp_path), io.BytesIO(b"poll x\npoll y\n"), io.BytesIO()) == 0
    assert answered == ["the first"]
