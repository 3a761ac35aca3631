"""Arrays of a PBS server that keeps a history end though no line of its log says so: it is asked, seldom."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.generator.module import FeedSettings
from batch_adapters.pbs import array_ends
from batch_adapters.pbs.events import PBS
from tests.waiting import wait_until

RECORDED = Path(__file__).parents[2] / "recorded" / "pbs"
ENDED = "001;0;7[].vm;8;0\n"
COMMAND = "-x -E -f -F json 7[].vm"


def line(local_id: str, text: str) -> str:
    return f"11/20/2026 23:26:21;0008;Server@localhost;Job;{local_id};{text}\n"


QUEUED = line("7[].vm", "Job Queued at request of u@h, owner = u@h, job name = n, queue = q")
RUN = [line(f"7[{n}].vm", "Job Run at request of Scheduler@h on exec_vnode (vm:ncpus=1)") for n in (1, 2)]
EXIT = [line(f"7[{n}].vm", "Exit_status=0 resources_used.walltime=00:00:02") for n in (1, 2)]


class Server:
    """A qstat that answers as it is told, what it was asked, and a clock that stands until it is put on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._folder = folder
        self._parser = PBS.new_parser()
        self._parser.ask()
        self.read(QUEUED)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setattr(array_ends, "time", SimpleNamespace(monotonic=lambda: self.now))

    def read(self, *lines: str) -> None:
        self._parser.read_events("".join(lines).encode())

    def answer(self, text: str, status: int = 0) -> None:
        qstat = self._folder / "qstat"
        qstat.write_text(f'#!/bin/sh\necho "$*" >>{self._folder}/asked\ncat <<"E"\n{text}\nE\nexit {status}\n')
        qstat.chmod(0o755)

    def show(self, state: str) -> None:
        self.answer(json.dumps({"timestamp": 1, "Jobs": {"7[].vm": {"job_state": state}}}))

    def asked(self) -> list[str]:
        file = self._folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    def ask_after(self, seconds: float, *meanwhile: str) -> str:
        """What the parser says after a time, when qstat has ended that it may have started; what it reads meanwhile."""
        self.now += seconds
        found = [self._parser.ask()]
        self.read(*meanwhile)
        question = self._parser._array_ends._question  # type: ignore[attr-defined]
        if question is not None:
            wait_until(question.is_over)
            found.append(self._parser.ask())
        return b"".join(found).decode()


@pytest.fixture
def server(room: Path, monkeypatch: pytest.MonkeyPatch, utc: None) -> Server:
    return Server(room, monkeypatch)


def test_an_array_ends_when_none_of_its_subjobs_runs_and_the_server_says_so(server: Server) -> None:
    server.show("F")
    server.read(*RUN, EXIT[0])
    assert server.ask_after(3600) == ""
    server.read(EXIT[1])
    # A server without a history would say it in its log meanwhile.
    assert server.ask_after(4.9) == ""
    assert server.asked() == []
    assert server.ask_after(0.1) == ENDED
    assert server.ask_after(3600) == ""
    assert server.asked() == [COMMAND]


def test_while_subjobs_wait_it_is_asked_after_longer_and_longer_pauses(server: Server) -> None:
    server.show("B")
    server.read(RUN[0], EXIT[0])
    for pause in (5, 10, 20):
        assert server.ask_after(pause - 0.1) == ""
        asked = len(server.asked())
        assert server.ask_after(0.1) == ""
        assert len(server.asked()) == asked + 1
    server.read(RUN[1], EXIT[1])
    server.show("F")
    assert server.ask_after(5) == ENDED


def test_an_array_of_which_more_runs_when_the_answer_comes_has_not_ended(server: Server) -> None:
    server.show("F")
    server.read(RUN[0], EXIT[0])
    assert server.ask_after(5, RUN[1]) == ""
    server.read(EXIT[1])
    assert server.ask_after(5) == ENDED


@pytest.mark.parametrize(
    ("text", "status", "is_asked_again"),
    [
        pytest.param('{"timestamp": 1}', 153, False, id="the server does not know it"),
        pytest.param('{"timestamp": 1}', 255, True, id="the server is down"),
        pytest.param("no JSON", 0, True, id="no answer"),
        pytest.param("[]", 0, True, id="another answer"),
    ],
)
def test_what_is_no_answer_ends_nothing(server: Server, text: str, status: int, is_asked_again: bool) -> None:
    server.answer(text, status)
    server.read(RUN[0], EXIT[0])
    assert server.ask_after(5) == ""
    server.show("F")
    assert server.ask_after(10) == (ENDED if is_asked_again else "")


def test_where_there_is_no_qstat_nothing_ends(server: Server) -> None:
    server.read(RUN[0], EXIT[0])
    assert server.ask_after(5) == ""


def test_a_server_that_logs_the_end_of_an_array_is_not_asked(server: Server) -> None:
    server.show("F")
    server.read(*RUN, *EXIT, line("7[].vm", "dequeuing from workq, state F"))
    assert server.ask_after(3600) == ""
    assert server.asked() == []


def test_on_the_recorded_server_the_one_array_ends_of_which_the_log_does_not_tell(server: Server) -> None:
    server.answer((RECORDED / "pbs-qstat-x-history-on.json").read_text())
    server.read((RECORDED / "pbs-server_log.history-on").read_text())
    assert server.ask_after(5) == "001;0;16[].pbs1;8;0\n"
    assert server.asked() == ["-x -E -f -F json 16[].pbs1"]


@pytest.mark.parametrize("may_ask", [True, False], ids=["one generator for all", "one for each account"])
def test_only_the_one_generator_for_all_asks(server: Server, tmp_path: Path, may_ask: bool) -> None:
    server.show("F")
    log = tmp_path / "server_logs"
    log.mkdir()
    (log / "20261120").write_text("".join([QUEUED, *RUN, *EXIT]))
    feed = PBS.open_feed(FeedSettings(log, 1, {}, may_ask=may_ask))
    found = []
    for _ in range(3):
        found += [*feed.read_events(look_for_files=True)]
        server.now += 5
        ends = feed._parser._array_ends  # type: ignore[attr-defined]
        if ends is not None and ends._question is not None:
            wait_until(ends._question.is_over)
    assert (ENDED.encode() in found) is may_ask


def test_an_array_whose_dependency_is_rejected_fails_under_its_own_id() -> None:
    rejected = line("24[].pbsx@pbsx", "Dependency request for job rejected by 99999.pbsx")
    assert PBS.new_parser().read_events(rejected.encode()).endswith(b";24[].pbsx;4;0\n")
