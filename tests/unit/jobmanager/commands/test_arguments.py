"""What people give on the command line."""

import re
import shlex

import pytest

from jobmanager.commands.arguments import read_name, read_since
from jobmanager.commands.cli import make_whole_parser
from tests.forked_samgrid import ROOT

NOW = 1795340232.0
"""Sun Nov 22 09:37:12 UTC 2026."""


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2026-11-22", 1795305600),
        ("2026-11-22T09:37", 1795340220),
        ("2026-11-22T09:37:12Z", NOW),
        ("2026-11-22T10:37:12+01:00", NOW),
        ("30m", NOW - 1800),
        ("36h", NOW - 36 * 3600),
        ("7d", NOW - 7 * 86400),
        ("2w", NOW - 14 * 86400),
        ("0h", NOW),
    ],
)
def test_a_day_a_time_or_so_long_ago(text: str, second: float) -> None:
    assert read_since(text, NOW) == second


@pytest.mark.parametrize(
    ("typed", "encoding", "name"),
    [
        (b"caf\xe9", "ISO-8859-1", "café"),
        ("café".encode(), "ISO-8859-1", "café"),
        ("café".encode(), "UTF-8", "café"),
        (b"caf\xe9", "UTF-8", "caf\udce9"),
        (b"caf\xe9", "ANSI_X3.4-1968", "caf\udce9"),
    ],
)
def test_a_name_is_in_the_letters_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, typed: bytes, encoding: str, name: str
) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: encoding)
    options = make_whole_parser().parse_args(["submit", "--name", typed.decode(errors="surrogateescape"), "-"])
    assert options.name == read_name(options.name) == name


@pytest.mark.parametrize(
    "text", ["", "yesterday", "7", "-7d", "7 d", "٧d", "2026-13-01", "9999-12-31", "9999999h", "d"]
)
def test_anything_else_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time: say 2026-11-22, 2026-11-22T08:30, 36h or 7d"):
        read_since(text, NOW)


@pytest.mark.parametrize("page", ["README.md", "docs/requests.md"])
def test_commands_on_a_page_are_spelt_as_they_are_understood(page: str) -> None:
    blocks = re.findall(r"(?ms)^```\n(.*?)^```", (ROOT / page).read_text())
    commands = [command for block in blocks for command in re.findall(r"(?m)^samgrid ((?!gram)[^#\n]+)", block)]
    assert len(commands) > 10
    for command in commands:
        make_whole_parser().parse_args(shlex.split(command))
