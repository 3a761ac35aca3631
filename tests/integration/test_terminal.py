"""What a terminal gets, as wide as it is and as much as it can do; and what a pipe gets."""

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fcntl import ioctl

import pytest

from tests.samgrid import LAUNCH, Samgrid

REQUEST = """&(samgrid_type = command)(executable = /bin/sh)(name = "Z to mumu, tune 7, and more words")
 (arguments = -c "samgrid-report phase d0gstar 2000/2000 events; exit 3")"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_on_terminal(samgrid: Samgrid, columns: int, term: str, *words: str) -> str:
    """All that a command writes to a terminal of that width and kind."""
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", *words]
    return read_terminal(command, {**samgrid.environment(), "TERM": term, "NO_COLOR": "1"}, columns)


def read_terminal(command: Sequence[str], environment: Mapping[str, str], columns: int) -> str:
    """All that a program writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in environment.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        written = b""
        while True:
            try:
                written += (block := os.read(ours, 65536))
            except OSError:  # EIO: nobody has the other end any more
                break
            if not block:
                break
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize("columns", [40, 80])
def test_what_is_shown_fits_the_terminal(columns: int, module_samgrid: Samgrid) -> None:
    samgrid = module_samgrid
    shown = run_on_terminal(samgrid, columns, "xterm", "submit", "--help")
    job_id = samgrid.submit(REQUEST)
    shown += run_on_terminal(samgrid, columns, "xterm", "watch", job_id)
    assert "\x1b[?25l" in shown  # bars, without a cursor meanwhile
    for words in (["status"], ["status", job_id], ["explain", f"{job_id}/1"], ["usage"]):
        shown += run_on_terminal(samgrid, columns, "xterm", *words)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", shown), "a colour, in spite of NO_COLOR"
    lines = re.split(r"[\r\n]+", _CONTROL.sub("", shown))
    # A word that is longer, as a path, is left to the terminal, so that it can be copied.
    assert [line for line in lines if len(line) > columns and " " in line.strip()] == []
    assert "2,000/2,000" in shown
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("term", ["dumb", ""], ids=["dumb", "not-named"])
def test_a_terminal_that_may_move_no_cursor_gets_lines(module_samgrid: Samgrid, term: str) -> None:
    shown = run_on_terminal(module_samgrid, 80, term, "run", write_request(module_samgrid))
    assert "\x1b" not in shown
    assert "failed: 1 failed of 1" in shown


def write_request(samgrid: Samgrid) -> str:
    path = samgrid.state.parent / "request.rsl"
    path.write_text(REQUEST)
    return str(path)


def test_a_pipe_without_our_letters_gets_the_others(module_samgrid: Samgrid) -> None:
    samgrid = module_samgrid
    job_id = samgrid.submit(REQUEST.replace("Z to mumu", "Z → μμ"))
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", "status"]
    environment = {**samgrid.environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"{job_id}  Z ? ??, tune 7, and more words ".encode() in done.stdout


def complete(samgrid: Samgrid, line: str) -> list[str]:
    """What a shell is told about an unfinished line, as argcomplete's script asks."""
    pytest.importorskip("argcomplete")
    told = samgrid.state.parent / "told"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(told), "_ARGCOMPLETE_IFS": "\v"}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    assert replace(samgrid, settings={**samgrid.settings, **asked})().returncode == 0
    return told.read_text().split("\v")


def test_shells_complete_commands_options_and_grid_jobs(samgrid: Samgrid) -> None:
    job_id = samgrid.submit(REQUEST)
    assert complete(samgrid, "samgrid sta") == ["status"]
    assert complete(samgrid, "samgrid status --form") == ["--format"]
    assert complete(samgrid, "samgrid status --format js") == ["json", "json-schema"]
    assert complete(samgrid, f"samgrid watch {job_id[:3]}") == [job_id]
    assert complete(samgrid, "samgrid log 'Z t") == ["Z to mumu, tune 7, and more words"]
    assert complete(samgrid, f"samgrid explain {job_id[:3]}") == [job_id]
    assert complete(samgrid, f"samgrid submit {samgrid.state.parent}/sta") == [f"{samgrid.state}/"]
    assert complete(samgrid, "samgrid query --job ") == [job_id, "Z\\ to\\ mumu,\\ tune\\ 7,\\ and\\ more\\ words"]
    assert complete(samgrid, "samgrid types py") == ["pythia"]
    assert complete(samgrid, "samgrid gr") == ["gram"]
    assert complete(samgrid, "samgrid gram ") == ["-h", "--help", "install", "uninstall", "status"]
    assert complete(samgrid, "samgrid gram install --se") == ["--service", "--seg"]
    assert complete(samgrid, "samgrid config ") == ["-h", "--help", "--state-dir"]
