"""One batch system as the job manager uses it: small real programs play its commands."""

import logging
import os
import pwd
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from batch_adapters.adapter import (
    OK,
    Answer,
    BatchError,
    Command,
    Garbled,
    Job,
    Lines,
    Listing,
    LocalStatus,
    Meaning,
    Refused,
    Submission,
    Unreachable,
)
from batch_adapters.fork.adapter import FORK
from batch_adapters.launch import LAUNCH
from batch_adapters.naming import Naming
from batch_adapters.running.batch_system import BatchSystem, _mentions
from batch_adapters.running.commands import TimedOut
from batch_adapters.running.rate_limiter import RateLimited, RateLimiter
from batch_adapters.states import State
from tests.hanging import give_up_what_hangs

HANG = ': >"${0%/*}/hangs.$$"; exec sleep 3600'
SUBMISSION = Submission("k3f9zq2m-1", 3, "/driver", "/results")
OUTCOMES = (
    OK,
    Meaning(1, "", Answer.TRANSIENT),
    Meaning(2, "", Answer.PERMANENT),
    Meaning(4, "", Answer.ABSENT),
    Meaning(5, "", Answer.LATER),
)


class Toy:
    """A batch system of one program, whose calls are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "program"
        self._log = folder / "log"
        self.limiter = RateLimiter(folder / "limiter.json", 1000)
        command = Command((str(self.program), "{{ ids* }}"), OUTCOMES)
        about_token, about_site = (
            replace(command, argv=(str(self.program), f"{{{{ {name} }}}}")) for name in ("token", "site")
        )
        self.adapter = replace(
            FORK,
            name="toy",
            cancel=command,
            submit=about_token,
            find=about_token,
            queue=about_site,
            leaving=frozenset({"leaving"}),
        )

    def says(self, script: str) -> BatchSystem:
        """The batch system, whose program is that script."""
        self.program.write_text(f"#!/bin/sh\necho $# >>{self._log}\n{script}\n")
        self.program.chmod(0o700)
        return BatchSystem(self.adapter, {"site": "here"}, self.limiter)

    @property
    def calls(self) -> list[int]:
        """With how many arguments each call came."""
        return [int(number) for number in self._log.read_text().split()] if self._log.exists() else []


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are asked again at once."""
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda seconds: None))


# --- submitting


def test_a_submission_gives_the_id_of_each_position(toy: Toy) -> None:
    ids = toy.says('echo "$1 1-3"').submit(SUBMISSION)
    assert ids == {1: "k3f9zq2m-1.1", 2: "k3f9zq2m-1.2", 3: "k3f9zq2m-1.3"}


@pytest.mark.parametrize(
    "printed", ["k3f9zq2m-1 1-2", "k3f9zq2m-1 3-5", "k3f9zq2m-1 1-5", ""], ids=["half", "other", "more", "nothing"]
)
def test_ids_of_other_jobs_than_were_submitted_are_garbled(toy: Toy, printed: str) -> None:
    with pytest.raises(Garbled, match="toy: the answer to k3f9zq2m-1 is"):
        toy.says(f"echo {printed}").submit(SUBMISSION)


def test_one_id_for_several_local_jobs_is_garbled(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, naming=Naming(r"(?P<id>\d+)", single="{id}", element="{id}"))
    with pytest.raises(Garbled, match="toy: one id for several local jobs of k3f9zq2m-1: '7"):
        toy.says("echo 7").submit(SUBMISSION)


@pytest.mark.parametrize("code", [1, 2, 5, 9], ids=["transient", "permanent", "later", "unknown"])
def test_a_submission_is_asked_once_whatever_the_answer(toy: Toy, code: int) -> None:
    toy.adapter = replace(toy.adapter, submit=replace(toy.adapter.submit, attempts=3))
    with pytest.raises(BatchError):
        toy.says(f"exit {code}").submit(SUBMISSION)
    assert len(toy.calls) == 1


# --- asking again


@pytest.fixture(autouse=True)
def _give_up_what_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    give_up_what_hangs(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("script", "error", "calls"),
    [
        pytest.param("exit 1", Unreachable, 3, id="transient"),
        pytest.param("kill -9 $$", Unreachable, 3, id="killed"),
        pytest.param("exit 2", Refused, 1, id="permanent"),
        pytest.param("exit 9", Garbled, 1, id="unknown"),
        pytest.param("echo what", Garbled, 1, id="garbled"),
        pytest.param(HANG, TimedOut, 1, id="hanging"),
    ],
)
def test_only_an_answer_that_may_be_another_soon_is_asked_for_again(
    toy: Toy, script: str, error: type[BatchError], calls: int
) -> None:
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.queue, attempts=3))
    with pytest.raises(BatchError) as caught:
        toy.says(script).query()
    assert caught.type is error
    assert len(toy.calls) == calls


def test_a_question_that_is_answered_in_the_end_is_answered(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.queue, attempts=3))
    counted = f"[ $(wc -l <{toy.folder}/log) -gt 2 ] || exit 1; echo a-1.1 running -"
    assert [status.local_id for status in toy.says(counted).query()] == ["a-1.1"]
    assert len(toy.calls) == 3


def test_a_question_that_is_held_back_is_not_asked_and_not_tried_again(toy: Toy) -> None:
    system = toy.says("exit 1")
    for _ in range(3):
        toy.limiter.note_outage("down for ever")
    with pytest.raises(RateLimited, match="down for ever"):
        system.query()
    assert toy.calls == []


@pytest.mark.parametrize(
    ("script", "is_silent"),
    [
        pytest.param("true", False, id="nothing there"),
        pytest.param("exit 4", False, id="absent"),
        pytest.param("exit 2", False, id="a refusal"),
        pytest.param("exit 5", False, id="not now"),
        pytest.param("exit 9", False, id="other words"),
        pytest.param("exit 1", True, id="nobody"),
        pytest.param(HANG, True, id="hanging"),
    ],
)
def test_whoever_says_anything_is_not_silent(toy: Toy, script: str, is_silent: bool) -> None:
    toy.limiter.note_outage("down")
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.queue, attempts=1))
    with suppress(BatchError):
        toy.says(script).query()
    assert (toy.limiter.outage() is not None) is is_silent


# --- local jobs


@pytest.mark.parametrize("script", ["true", "echo none of that; exit 4"], ids=["nothing", "absent"])
def test_finding_nothing_is_an_answer(toy: Toy, script: str) -> None:
    assert toy.says(script).find("k3f9zq2m-1") == []


def test_found_jobs_have_states_and_an_unknown_word_is_none(toy: Toy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = toy.says('echo "$1.3 running -"; echo "$1.4 ended 7"; echo "$1.5 levitating -"').find("a-1")
    assert found == [
        LocalStatus("a-1.3", "running", State.ACTIVE, token="a-1"),
        LocalStatus("a-1.4", "ended", State.DONE, 7, token="a-1"),
        LocalStatus("a-1.5", "levitating", None, token="a-1"),
    ]
    assert "toy a-1.5: unknown native state 'levitating'" in caplog.text


def test_jobs_of_another_token_are_not_found(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, history=toy.adapter.find, read_history=toy.adapter.read_jobs)
    system = toy.says("echo a-1.1 ended 0; echo a-12.1 ended 0")
    assert [status.local_id for status in system.find("a-1")] == ["a-1.1"]
    assert [status.local_id for status in system.find_ended("a-12")] == ["a-12.1"]


def test_other_users_jobs_are_none_of_ours(toy: Toy) -> None:
    us = pwd.getpwuid(os.geteuid()).pw_name
    toy.adapter = replace(toy.adapter, read_jobs=Lines(r"(?P<id>\S+) (?P<state>\S+)(?: (?P<owner>\S+))?"))
    found = toy.says(f"echo 1 running {us}; echo 2 running {us}x; echo 3 running").query()
    assert [status.local_id for status in found] == ["1", "3"]


def test_a_batch_system_without_history_knows_no_ended_jobs(toy: Toy) -> None:
    assert toy.says("echo a-1.1 ended 0").find_ended("a-1") == []
    assert toy.calls == []


def test_what_waits_outside_the_queue_is_found_and_the_queue_knows_it_better(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.queue, waiting=(str(toy.program), "outside")))
    found = toy.says(
        f'[ "$1" = outside ] && cat "$0.outside" || echo "a-1.2 running -"; exit $(cat "{toy.folder}/code")'
    )
    (toy.folder / "program.outside").write_text("a-1.2 queued -\na-1.3 queued -\n")
    (toy.folder / "code").write_text("0")
    assert {status.local_id: status.state for status in found.query()} == {
        "a-1.2": State.ACTIVE,
        "a-1.3": State.PENDING,
    }
    (toy.folder / "code").write_text("1")
    with pytest.raises(Unreachable):
        found.query()


def test_a_query_gets_the_sites_variables(toy: Toy) -> None:
    assert toy.says('echo "a-1.1 $1 -"').query() == [LocalStatus("a-1.1", "here", None, token="a-1")]


def test_a_job_on_its_way_out_is_known_as_such(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, states={**FORK.states, "leaving": State.ACTIVE})
    leaving, running = toy.says("echo a-1.1 leaving -; echo a-1.2 running -").query()
    assert (leaving.state, leaving.is_leaving, running.is_leaving) == (State.ACTIVE, True, False)


def test_one_job_has_a_status_or_there_is_none(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, status=replace(toy.adapter.queue, argv=(str(toy.program), "{{ id }}")))
    found = toy.says('echo "$1 running -"').status("a-1.1")
    assert found is not None
    assert found.state is State.ACTIVE
    assert toy.says("exit 4").status("a-1.1") is None
    assert toy.says("echo a-1.2 running -").status("a-1.1") is None


@pytest.mark.parametrize(
    ("number", "calls"), [(0, []), (1, [1]), (500, [500]), (501, [500, 1]), (1200, [500, 500, 200])]
)
def test_ids_are_cancelled_in_portions(toy: Toy, number: int, calls: list[int]) -> None:
    toy.says("true").cancel((f"a-1.{index}" for index in range(number)), "a-1")
    assert toy.calls == calls


def test_a_batch_system_may_take_fewer_ids_at_once(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, cancel_at_once=2)
    toy.says("true").cancel(["a-1.1", "a-1.2", "a-1.3"], "a-1")
    assert toy.calls == [2, 1]


def test_a_prefix_of_many_local_jobs_is_named_once(toy: Toy) -> None:
    """A command line could not hold it for each of twenty thousand orphans."""
    command = replace(toy.adapter.cancel, argv=(str(toy.program), "{{ prefixes* }}"))
    toy.adapter = replace(toy.adapter, cancel=command)
    toy.says("true").cancel(["a-1.1", "a-1.2", "b-1.1"], "a-1", "a-1", "b-1")
    assert toy.calls == [2]


@pytest.mark.parametrize(("exit_code", "calls"), [(9, [1, 1]), (1, [1])])
def test_what_is_said_of_some_ids_keeps_no_others_from_being_cancelled(
    toy: Toy, exit_code: int, calls: list[int]
) -> None:
    cancel = replace(toy.adapter.cancel, attempts=1)
    toy.adapter = replace(toy.adapter, cancel_at_once=1, cancel=cancel)
    with pytest.raises(Garbled if exit_code == 9 else Unreachable, match="lost a"):
        toy.says(f'echo "lost $1"; [ "$1" != a ] || exit {exit_code}').cancel(["a", "b"], "a", "b")
    assert toy.calls == calls


@pytest.mark.parametrize(("answer", "calls"), [("exit 1", [1, 2]), ("echo 8.1 running -; echo 7.1 running -", [1, 1])])
def test_a_job_that_has_one_of_our_ids_is_left_alone_and_no_answer_keeps_nothing_from_being_cancelled(
    toy: Toy, answer: str, calls: list[int]
) -> None:
    queue = replace(toy.adapter.queue, argv=(str(toy.program), "queue"), attempts=1)
    naming = Naming(r"(?P<id>\d+)", single="{id}", element="{id}.{n}", array="{id}")
    read = Lines(r"(?P<id>(?P<token>8?).*) (?P<state>\w+) -")
    toy.adapter = replace(toy.adapter, queue=queue, naming=naming, read_jobs=read)
    toy.says(f'[ "$1" != queue ] || {{ {answer}; }}').cancel(["7.1", "8.1"], "k3f9zq2m")
    assert toy.calls == calls


# --- questions about the ids that another one lists


@pytest.fixture
def lists(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Its queue is asked about the ids that the file ``ids`` has."""
    monkeypatch.setattr("batch_adapters.running.batch_system._MOST_LISTED", 5)
    listing = Listing(("/bin/cat", str(toy.folder / "ids")), (OK, *OUTCOMES[1:]), pattern=r"\w+-1\.\d+")
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.cancel, listing=listing, attempts=1))
    return toy


ANSWER = 'for id; do echo "$id running -"; done'


def list_ids(toy: Toy, number: int) -> list[str]:
    ids = [f"a-1.{index}" for index in range(1, number + 1)]
    (toy.folder / "ids").write_text("".join(f"{one}\n" for one in ids))
    return ids


@pytest.mark.parametrize(("number", "calls"), [(1, [1]), (2, [2]), (3, [2, 1]), (20, [2, 4, 5, 5, 4])])
def test_all_ids_are_asked_about_some_at_a_time(lists: Toy, number: int, calls: list[int]) -> None:
    ids = list_ids(lists, number)
    assert [status.local_id for status in lists.says(ANSWER).query()] == ids
    assert lists.calls == calls


def test_no_ids_are_an_empty_answer_and_nothing_more_is_asked(lists: Toy) -> None:
    list_ids(lists, 0)
    assert lists.says("exit 9").query() == []
    assert lists.calls == []


def test_where_nobody_lists_ids_there_is_no_answer(lists: Toy) -> None:
    with pytest.raises(Unreachable):
        lists.says(ANSWER).query()
    assert lists.calls == []


@pytest.mark.parametrize("text", ["Welcome!\na-1.1\n", "a-1.1\na-1.2", "a-1.1\n\n", "a-1.1 a-1.2\n"])
def test_a_list_with_anything_but_ids_is_garbled(lists: Toy, text: str) -> None:
    (lists.folder / "ids").write_text(text)
    with pytest.raises(Garbled, match="/bin/cat: no id: "):
        lists.says(ANSWER).query()
    assert lists.calls == []


def test_ids_that_have_gone_since_they_were_listed_are_no_error(lists: Toy) -> None:
    list_ids(lists, 2)
    answer = '[ "$*" = a-1.1 ] && exit 4; for id; do [ $id = a-1.1 ] || echo "$id running -"; done'
    assert [status.local_id for status in lists.says(answer).query()] == ["a-1.2"]


def test_a_command_that_tells_of_the_first_id_only_is_asked_about_each(lists: Toy) -> None:
    ids = list_ids(lists, 12)
    assert [status.local_id for status in lists.says('echo "$1 running -"').query()] == ids


@pytest.mark.parametrize(
    ("wanted", "printed", "is_told"),
    [
        ("12.vm", '"12.vm":{', True),
        ("12[].vm", '"12[3].vm":{', True),
        ("12.vm", '"112.vm":{', False),
        ("12.vm", '"12.vm.org":{', False),
        ("12.vm", '"12.vm-2":{', False),
        ("a-1.1", "b-a-1.1 running", False),
    ],
)
def test_an_id_is_no_part_of_another(wanted: str, printed: str, is_told: bool) -> None:
    assert _mentions(printed, wanted) is is_told


@pytest.mark.parametrize(
    ("second", "error"), [("exit 1", Unreachable), ("exit 9", Garbled), ("echo what", Garbled), ("exit 2", Refused)]
)
def test_a_part_that_is_not_answered_leaves_no_answer(lists: Toy, second: str, error: type[BatchError]) -> None:
    list_ids(lists, 5)
    with pytest.raises(BatchError) as caught:
        lists.says(f'[ "$1" = a-1.1 ] || {{ {second}; exit; }}; {ANSWER}').query()
    assert caught.type is error


def test_an_answer_that_is_too_long_is_asked_for_in_smaller_parts(lists: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list_ids(lists, 9)
    monkeypatch.setattr("batch_adapters.running.commands.MAX_OUTPUT", 60)
    assert [status.local_id for status in lists.says(ANSWER).query()] == ids
    assert lists.calls == [2, 4, 2, 4, 2, 3]
    list_ids(lists, 1)
    monkeypatch.setattr("batch_adapters.running.commands.MAX_OUTPUT", 10)
    with pytest.raises(Garbled, match="program printed more than 10 bytes"):
        lists.says(ANSWER).query()


def test_long_answers_are_asked_for_one_after_the_other(lists: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list_ids(lists, 4)
    monkeypatch.setattr("batch_adapters.running.batch_system._COMFORTABLE", 20)
    assert [status.local_id for status in lists.says(ANSWER).query()] == ids
    assert lists.calls == [2, 1, 1]


def test_the_account_is_a_variable_of_every_command(toy: Toy) -> None:
    toy.adapter = replace(toy.adapter, queue=replace(toy.adapter.queue, argv=(str(toy.program), "{{ user }}")))
    us = pwd.getpwuid(os.geteuid()).pw_name
    assert toy.says('echo "a-1.1 $1 -"').query() == [LocalStatus("a-1.1", us, None, token="a-1")]


# --- what it says of itself


@pytest.mark.parametrize(
    ("printed", "most"),
    [
        pytest.param("MaxArraySize = 501", 501, id="its own limit"),
        pytest.param("MaxArraySize = 100001", 1000, id="the configured one is lower"),
        pytest.param("MaxArraySize = 0", 1, id="no arrays"),
    ],
)
def test_the_lower_limit_of_arrays_counts(toy: Toy, printed: str, most: int) -> None:
    limit = Command((str(toy.program),))
    toy.adapter = replace(toy.adapter, max_array=1000, array_limit=limit, read_array_limit=r"MaxArraySize\s*= (\d+)")
    assert toy.says(f"echo '{printed}'").max_array() == most


def test_a_limit_that_is_not_told_is_garbled_and_one_that_nobody_asks_for_is_the_configured(toy: Toy) -> None:
    assert toy.says("exit 9").max_array() == FORK.max_array
    toy.adapter = replace(toy.adapter, array_limit=Command((str(toy.program),)))
    with pytest.raises(Garbled, match="toy: no array limit in 'what"):
        toy.says("echo what").max_array()
    toy.adapter = replace(toy.adapter, read_array_limit="(.+)")
    with pytest.raises(Garbled, match="toy: an array limit that is no number: 'what'"):
        toy.says("echo what").max_array()


def test_slots_are_told_or_not_known(toy: Toy) -> None:
    assert toy.says("exit 9").slots() is None
    toy.adapter = replace(toy.adapter, slots=Command((str(toy.program),)))
    assert toy.says("echo 80 79; echo 20 0").slots() == (100, 79)
    with pytest.raises(Garbled, match="toy: no slots in 'many"):
        toy.says("echo many").slots()


def test_a_version_is_one_line(toy: Toy) -> None:
    assert toy.says("exit 9").version() == ""
    toy.adapter = replace(toy.adapter, version=Command((str(toy.program),)))
    assert toy.says("printf '\\n toy 1.0\\ncopyright\\n'").version() == "toy 1.0"


# --- what the commands of fork print


def test_the_answer_to_a_fork_query_is_read() -> None:
    printed = "a-1.1 queued -\na-1.2 running -\na-1.12 ended 0\nb.1 killed 137\nb.2 lost -\n"
    assert list(FORK.read_jobs(printed)) == [
        Job("a-1.1", "queued", token="a-1"),
        Job("a-1.2", "running", token="a-1"),
        Job("a-1.12", "ended", 0, token="a-1"),
        Job("b.1", "killed", 137, token="b"),
        Job("b.2", "lost", token="b"),
    ]
    assert list(FORK.read_jobs("")) == []


def test_a_wrong_argument_of_a_fork_command_is_a_refusal(tmp_path: Path) -> None:
    site = {"python": sys.executable, "launch": str(LAUNCH), "fork_slots": "1", "fork_grace": "1"}
    site["fork_spool"] = str(tmp_path / "fork")
    wrong = Submission("NoToken", 2, "/bin/true", str(tmp_path))
    with pytest.raises(Refused, match="NoToken"):
        BatchSystem(FORK, site, RateLimiter(tmp_path / "limiter.json", 0)).submit(wrong)
