"""The monitor's child processes: what they say arrives whole, how they end is seen, and nothing of them is left."""

import os
import selectors
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_adapters.running.backoff import Backoff
from jobmanager.monitor.child import Child
from tests.descriptors import open_descriptors
from tests.waiting import SECONDS, is_gone, turn_until, wait_until


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def start(selector: selectors.BaseSelector, script: str, *words: str) -> tuple[Child, list[bytes]]:
    """A shell that runs the script, and where its output will be."""
    blocks: list[bytes] = []
    return Child(selector, ["/bin/sh", "-c", script, "sh", *words], blocks.append), blocks


def wait_for_end(selector: selectors.BaseSelector, child: Child) -> int:
    """The exit status of a child, as the loop sees it."""
    statuses: list[int | None] = []

    def has_ended() -> bool:
        statuses.append(child.exit_status())
        return statuses[-1] is not None

    turn_until(selector, has_ended)
    assert statuses[-1] is not None
    return statuses[-1]


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", -signal.SIGKILL)])
def test_a_childs_exit_status_is_seen_and_nothing_of_it_stays(
    selector: selectors.BaseSelector, script: str, status: int
) -> None:
    before = open_descriptors()
    child, _ = start(selector, script)
    assert wait_for_end(selector, child) == status
    assert not selector.get_map()
    assert open_descriptors() <= before


def test_a_child_that_runs_has_no_exit_status(selector: selectors.BaseSelector) -> None:
    child, _ = start(selector, "sleep 3600")
    assert child.exit_status() is None
    child.kill()


def test_the_end_of_a_child_wakes_the_loop(selector: selectors.BaseSelector) -> None:
    child, _ = start(selector, "exec >/dev/null 2>&1; exit 3")
    ready: list[object] = []
    deadline = time.monotonic() + SECONDS
    while child.exit_status() is None:
        assert time.monotonic() < deadline
        ready = [key.data() for key, _ in selector.select(SECONDS)]
        assert ready, "the loop slept although the child had ended"


def test_what_a_child_prints_arrives_whole_before_its_exit_status(selector: selectors.BaseSelector) -> None:
    child, blocks = start(selector, "seq 100000; echo end")
    wait_for_end(selector, child)
    assert b"".join(blocks).split() == [*(b"%d" % number for number in range(1, 100_001)), b"end"]


def test_output_is_not_read_before_the_loop_turns_and_is_not_lost_when_it_does_late(
    selector: selectors.BaseSelector,
) -> None:
    child, blocks = start(selector, "echo early; exec sleep 3600")
    assert blocks == []
    turn_until(selector, lambda: bool(blocks))
    assert b"".join(blocks) == b"early\n"
    child.kill()


def test_last_words_are_the_end_of_stderr(selector: selectors.BaseSelector) -> None:
    child, blocks = start(selector, "seq 100000 >&2; echo ' the disk is full ' >&2; exit 75")
    wait_for_end(selector, child)
    assert child.last_output.splitlines()[-2:] == ["100000", " the disk is full"]
    assert len(child.last_output) <= 2000
    assert b"".join(blocks) == b""


def test_last_words_that_are_no_text_do_no_harm(selector: selectors.BaseSelector) -> None:
    child, _ = start(selector, r"printf 'caf\351\n' >&2")
    wait_for_end(selector, child)
    assert child.last_output == "caf\ufffd"


def test_a_grandchild_that_holds_the_pipes_does_not_hide_the_childs_end(
    selector: selectors.BaseSelector, tmp_path: Path
) -> None:
    child, blocks = start(
        selector, 'sleep 3600 & echo $! >"$1"; echo last words >&2; echo output', str(tmp_path / "pid")
    )
    assert wait_for_end(selector, child) == 0
    assert (b"".join(blocks), child.last_output) == (b"output\n", "last words")
    assert not selector.get_map()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_killing_a_child_ends_what_it_has_started(selector: selectors.BaseSelector, tmp_path: Path) -> None:
    script = 'trap "" TERM; sleep 3600 & echo $! >"$1.new"; mv "$1.new" "$1"; wait; sleep 3600'
    child, _ = start(selector, script, str(tmp_path / "pid"))
    turn_until(selector, (tmp_path / "pid").exists)
    child.kill()
    wait_until(lambda: is_gone(int((tmp_path / "pid").read_text())))
    assert not selector.get_map()


def test_a_child_that_has_ended_can_be_killed(selector: selectors.BaseSelector) -> None:
    child, blocks = start(selector, "echo $$; exit 3")
    turn_until(selector, lambda: b"".join(blocks).endswith(b"\n"))
    os.waitid(os.P_PID, int(b"".join(blocks)), os.WEXITED | os.WNOWAIT)
    child.kill()
    assert not selector.get_map()


def test_a_child_runs_in_the_root_folder_in_a_session_of_its_own(selector: selectors.BaseSelector) -> None:
    child, blocks = start(selector, "pwd; echo $$; cut -d' ' -f6 /proc/self/stat")
    wait_for_end(selector, child)
    folder, pid, session = b"".join(blocks).split()
    assert (folder, pid) == (b"/", session)


def test_a_child_inherits_no_descriptor(selector: selectors.BaseSelector, tmp_path: Path) -> None:
    other, _ = start(selector, "sleep 3600")
    child, blocks = start(selector, "echo /proc/$$/fd/*")
    wait_for_end(selector, child)
    names = {word.rpartition(b"/")[2] for word in b"".join(blocks).split()}
    assert names - {b"3"} == {b"0", b"1", b"2"}, "3 is the shell's own, while it looks"
    other.kill()


def test_a_childs_stdin_ends_when_we_are_killed(tmp_path: Path) -> None:
    script = f"cat; echo over >{tmp_path}/over.new; mv {tmp_path}/over.new {tmp_path}/over"
    parent = os.fork()
    if parent == 0:
        Child(selectors.DefaultSelector(), ["/bin/sh", "-c", script], lambda block: None)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until((tmp_path / "over").exists)


def test_a_program_that_is_not_there_leaves_nothing(selector: selectors.BaseSelector) -> None:
    with pytest.raises(FileNotFoundError):
        Child(selector, ["/no/such/program"], lambda block: None)
    assert not selector.get_map()


# --- backing off


def test_each_wait_is_twice_as_long_up_to_ten_seconds() -> None:
    backoff = Backoff()
    assert backoff.allows(0)
    waits = []
    for _ in range(9):
        backoff.wait(1000)
        waits.append(next(second for second in range(100) if backoff.allows(1000 + second)))
    assert waits == [1, 2, 4, 8, 10, 10, 10, 10, 10]


def test_a_child_of_another_account_ends_with_its_input(
    selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError(group, number)

    child, _ = start(selector, "cat; touch $1", str(tmp_path / "ended"))
    monkeypatch.setattr(os, "killpg", refuse)
    child.kill()
    wait_until((tmp_path / "ended").exists)
    assert not selector.get_map()
