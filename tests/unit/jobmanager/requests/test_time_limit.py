"""No handler goes on for ever: it is ended, and where it was is written down, even where it does not hear of that."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobmanager.requests import time_limit
from jobmanager.requests.job_types import HandlerUnreachable
from jobmanager.requests.time_limit import RECORDS, Asking, HandlerHung, limited
from tests.unit.toy_system import GRID_JOB, ToySystem
from tests.unit.traps import TRAPS
from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[4]
LIMIT = 1.0
"""Seconds: enough to come to where it hangs."""
DEAF = f"""
import sys
import time
from pathlib import Path
from jobmanager.requests import time_limit
time_limit._GRACE = {LIMIT}

def wait_for_nobody():
    while True:
        try:
            while True:
                time.sleep(60)
        except BaseException:
            pass

with time_limit.Asking(*map(Path, sys.argv[1:]), {LIMIT}, False).limited():
    wait_for_nobody()
"""


def hang_for_ever() -> None:
    while True:
        time.sleep(60)


def compute_for_ever() -> None:
    while True:
        pass


@pytest.mark.parametrize("hang", [hang_for_ever, compute_for_ever])
def test_it_says_where_it_was(hang: Callable[[], None]) -> None:
    words = rf"no end after 1 s: {hang.__name__} \(.*test_time_limit.py, line \d+\)"
    with pytest.raises(HandlerHung, match=words), limited(LIMIT):
        hang()


def test_others_go_first_while_it_computes_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, nice = tmp_path / "autogroup", list[tuple[int, int, int]]()
    group.touch()
    monkeypatch.setattr(time_limit, "_AUTOGROUP", group)
    monkeypatch.setattr(time_limit, "_WHILE", 0.01)
    monkeypatch.setattr(os, "setpriority", lambda *what: nice.append(what))
    asked, hung, died, unreached = (tmp_path / name for name in RECORDS)
    with Asking(asked, hung, died, unreached, SECONDS, may_be_nice=True).limited():
        while not nice:
            pass
        assert group.read_text() == "19"
    assert group.read_text() == "0"
    assert nice == [(os.PRIO_PROCESS, 0, 19)]


def test_what_may_start_the_embedded_batch_system_does_not_become_nice(
    toy: ToySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "autogroup"
    group.touch()
    monkeypatch.setattr(time_limit, "_AUTOGROUP", group)
    toy.add({"1": ()})
    assert time_limit.asking(toy.account, GRID_JOB, "check", "toy").may_be_nice
    with time_limit.asking(toy.account, GRID_JOB, "check", "fork").limited():
        while group.read_text() != "19":
            pass
        # No second signal will come.
        assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.parametrize("seconds", [0, 60])
def test_what_the_handler_forks_does_nothing_of_ours(seconds: int) -> None:
    code = f"""
import os
from jobmanager.requests.time_limit import limited
with limited({seconds}):
    child = os.fork()
if child:
    os.waitpid(child, 0)
os.write(1, b"here")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"here"


def test_it_cannot_take_all_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with pytest.raises(MemoryError), limited(60):
        bytes(half)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_program_that_it_waits_for_is_ended_with_it() -> None:
    started = time.monotonic()
    with pytest.raises(HandlerHung, match="called by"), limited(LIMIT):
        subprocess.run(["/bin/sleep", "3600"], check=False)
    assert time.monotonic() - started < 3600


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    asked, hung, died, unreached = (tmp_path / name for name in RECORDS)
    return Asking(asked, hung, died, unreached, LIMIT, may_be_nice=False)


def command_with(code: str, asking: Asking) -> list[str]:
    return [sys.executable, "-c", code, *map(str, (asking.asked, asking.hung, asking.died, asking.unreached))]


def test_each_time_is_written_down_until_it_comes_to_an_end(asking: Asking) -> None:
    for _ in range(2):
        with pytest.raises(HandlerHung), asking.limited():
            hang_for_ever()
    assert ["hang_for_ever" in hang for hang in asking.find_hangs()] == [True, True]
    with asking.limited():
        assert asking.asked.exists()
    assert asking.find_hangs() == []
    assert not asking.asked.exists()


@pytest.mark.parametrize("make", TRAPS)
@pytest.mark.parametrize("name", RECORDS)
def test_what_is_put_in_place_of_a_record_is_not_read_and_not_waited_for(
    asking: Asking, tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    make(tmp_path / name)
    with pytest.raises(OSError, match=f"symbolic links.*{name}|no regular file.*{name}"):
        print(asking.find_hangs(), asking.count_deaths(), asking.count_unreached())


def test_what_was_not_reached_is_counted_until_it_is(asking: Asking) -> None:
    for number in (1, 2):
        with pytest.raises(HandlerUnreachable), asking.limited():
            raise HandlerUnreachable("no catalogue")
        assert asking.count_unreached() == number
    assert asking.count_deaths() == 0
    with asking.limited():
        pass
    assert asking.count_unreached() == 0


def test_a_failure_is_no_hang(asking: Asking) -> None:
    with pytest.raises(KeyError), asking.limited():
        raise KeyError("mine")
    assert (asking.find_hangs(), asking.asked.exists()) == ([], False)


def test_what_does_not_hear_of_it_ends_with_its_process(asking: Asking) -> None:
    done = subprocess.run(command_with(DEAF, asking), cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 1
    assert asking.asked.read_bytes()
    (hang,) = asking.find_hangs()
    assert "had to be ended: wait_for_nobody (<string>, line " in hang
    assert not asking.asked.exists()


def test_what_it_has_lowered_is_put_back(asking: Asking) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with asking.limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (soft, hard)


@pytest.mark.parametrize(
    "what",
    [
        "os._exit(0)",
        "os.closerange(0, 64)",
        "os.closerange(3, 64); kept = [open(os.devnull) for _ in range(9)]",
        "[os.dup(2) for _ in iter(int, 1)]",
        "os.kill(os.getppid(), 9)",
    ],
    ids=["ended", "its descriptors closed", "others in their place", "its descriptors used up", "its parent killed"],
)
def test_a_process_that_ends_while_it_asks_is_counted_until_one_comes_to_an_end(asking: Asking, what: str) -> None:
    code = "import os, resource, sys; from pathlib import Path; from jobmanager.requests.time_limit import Asking\n"
    code += "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    code += f"with Asking(*map(Path, sys.argv[1:]), {LIMIT}, False).limited():\n    {what}"
    # A parent between us and it; the pipe ends with the last of them.
    command = ["/bin/sh", "-c", '"$@"; :', "sh", *command_with(code, asking)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for number in (1, 2):
        subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, check=False)
        assert asking.count_deaths() == number
    assert asking.find_hangs() == []
    with asking.limited():
        pass
    assert asking.count_deaths() == 0
