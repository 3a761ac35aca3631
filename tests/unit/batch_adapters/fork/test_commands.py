"""The commands of the embedded batch system answer in words whatever the spool is."""

from pathlib import Path

import pytest

from batch_adapters.fork.commands import main


def test_a_spool_with_a_damaged_schema_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--spool", str(tmp_path), "query"]
    assert main(words) == 0
    path = tmp_path / "spool.db"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE \xff\xff\xff\xff\xff"))
    assert main(words) == 1
    assert f"cannot use {path}" in capsys.readouterr().err
