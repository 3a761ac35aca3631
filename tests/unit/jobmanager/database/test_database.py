"""The XML job database: what is committed, is there; what is not valid, never gets in."""

import errno
import logging
import os
import resource
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from adapters import PlannedJob
from batch_adapters.fork.adapter import FORK
from batch_adapters.naming import Naming
from batch_adapters.states import Cause, Event, State
from jobmanager.database.database import Choice, Database, DatabaseError, LiveJob, UnknownJob
from jobmanager.database.details import PhaseSum
from jobmanager.database.documents import InvalidDocument, read_document
from jobmanager.database.grid_job import GridJob
from jobmanager.database.local_job import LocalJob, Outcome
from jobmanager.database.local_jobs import LocalJobs
from jobmanager.database.sqlite import Store, Values
from jobmanager.database.usage import Usage
from jobmanager.states.registration import apply_events, create_local_jobs, register_local_jobs
from jobmanager.states.transitions import apply_driver_status
from jobmanager.submission.submit import write_intent
from sandbox.status import MAX_PHASES, DriverStatus, PhaseStatus
from tests.unit.grid_jobs import changing, make_grid_job, put, put_local_jobs


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "jobs.db")
    yield database
    database.close()


def add(database: Database, job_id: str, count: int = 2, state: State = State.UNSUBMITTED) -> None:
    job = make_grid_job(job_id, count, request=[("executable", ("/bin/true",)), ("arguments", ("a", ("b", "c")))])
    job.state = state
    put(database, job, [LocalJob.new(index, "fork", None) for index in range(1, count + 1)])


def submit(database: Database, job_id: str, count: int) -> None:
    with database.transaction():
        jobs = database.local_jobs.all_of(job_id)
        for job in jobs:
            job.intend(f"{job_id}-1", 1000)
        database.local_jobs.put(job_id, jobs)
    ids = {index: f"{job_id}-1.{index}" for index in range(1, count + 1)}
    register_local_jobs(database, job_id, ids, FORK.naming)


def test_the_file_is_for_its_owner_alone(database: Database, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "jobs.db").stat().st_mode) == 0o600


def test_a_file_system_that_takes_nothing_after_a_fault_is_read_without_saying_that_it_is_read_only(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "aaaaaaaa")

    def refuse(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    with closing(Database(tmp_path / "jobs.db")) as read:
        assert [job.id for job in read.grid_jobs.list_open()] == ["aaaaaaaa"]
        with pytest.raises(DatabaseError, match=r"jobs\.db: attempt to write a readonly database"):
            read.check_room()


def test_what_another_host_writes_is_read_from_a_copy_and_never_written(database: Database, tmp_path: Path) -> None:
    add(database, "aaaaaaaa")
    before = sorted(path.name for path in tmp_path.iterdir())
    with closing(Database(tmp_path / "jobs.db", "host alpha works here")) as copy:
        add(database, "bbbbbbbb")
        assert [job.id for job in copy.grid_jobs.list_open()] == ["aaaaaaaa"]
        with pytest.raises(DatabaseError, match=r"^host alpha works here$"), copy.transaction():
            pass
        with pytest.raises(DatabaseError, match="readonly"):
            copy.check_room()
    database.close()
    with closing(Database(tmp_path / "jobs.db", "host alpha works here")) as copy:
        assert [job.id for job in copy.grid_jobs.list_open()] == ["aaaaaaaa", "bbbbbbbb"]
    assert before == ["jobs.db", "jobs.db-shm", "jobs.db-wal"]
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"]


@pytest.mark.parametrize("is_followed", [False, True], ids=["removed", "and made anew"])
def test_what_a_removed_log_held_is_written_back(database: Database, tmp_path: Path, is_followed: bool) -> None:
    log = tmp_path / "jobs.db-wal"
    add(database, "aaaaaaaa")
    assert not database.find_lost_file()
    log.unlink()
    if is_followed:
        log.touch()
    assert database.find_lost_file() == "jobs.db-wal"
    with pytest.raises(DatabaseError, match=r"somebody has removed or replaced jobs\.db-wal"):
        add(database, "bbbbbbbb")
    database.write_back()
    # What it says of the lost log's pages must not hold for the next log.
    assert not (tmp_path / "jobs.db-shm").exists()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "jobs.db", tmp_path / "copy")
    with closing(Database(tmp_path / "copy" / "jobs.db")) as copy:
        assert [job.id for job in copy.grid_jobs.list_open()] == ["aaaaaaaa"]


def test_nothing_is_written_over_what_others_commit_who_no_longer_share_the_memory(
    database: Database, tmp_path: Path
) -> None:
    add(database, "aaaaaaaa")
    assert not database.find_lost_file()
    (tmp_path / "jobs.db-shm").unlink()
    with closing(Database(tmp_path / "jobs.db")) as other:
        add(other, "bbbbbbbb")
    assert database.find_lost_file() == "jobs.db-shm"
    with pytest.raises(DatabaseError, match=r"somebody has removed or replaced jobs\.db-shm"):
        add(database, "cccccccc")
    with closing(Database(tmp_path / "jobs.db")) as other:
        assert [job.id for job in other.grid_jobs.list_open()] == ["aaaaaaaa", "bbbbbbbb"]


def test_a_state_folder_that_was_moved_has_lost_nothing_until_there_is_another(tmp_path: Path) -> None:
    """Nobody would write back there, where another account's log may be by now."""
    folder = tmp_path / "state"
    folder.mkdir()
    with closing(Database(folder / "jobs.db")) as database:
        add(database, "aaaaaaaa")
        folder.rename(tmp_path / "elsewhere")
        assert not database.find_lost_file()
        add(database, "bbbbbbbb")
        folder.mkdir()
        with closing(Database(folder / "jobs.db")) as other:
            add(other, "cccccccc")
            assert database.find_lost_file() == "jobs.db"
            with pytest.raises(DatabaseError, match=r"has removed or replaced jobs\.db$"):
                add(database, "dddddddd")


def test_a_copy_that_is_made_while_the_log_is_begun_anew_is_of_one_moment(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "aaaaaaaa")
    copyfile = shutil.copyfile

    def copy_in_between(source: Path, target: Path) -> None:
        """The other host writes its log into the file that was just copied, and begins the next one."""
        copyfile(source, target)
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        add(database, "bbbbbbbb", 50)

    monkeypatch.setattr(shutil, "copyfile", copy_in_between)
    with closing(Database(tmp_path / "jobs.db", "host alpha works here")) as copy:
        assert [job.id for job in copy.grid_jobs.list_open()] == ["aaaaaaaa", "bbbbbbbb"]
        assert not copy.checking.list_file_faults()
        assert [job.index for job in copy.local_jobs.all_of("bbbbbbbb")] == list(range(1, 51))


def test_an_index_that_is_missing_is_made_anew(database: Database, tmp_path: Path) -> None:
    indexes = (
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name <> 'waiting_event'"
    )
    add(database, "aaaaaaaa", 2)
    submit(database, "aaaaaaaa", 2)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        before = sorted(connection.execute(indexes))
        for name, _ in before:
            connection.execute(f"DROP INDEX {name}")
        with closing(Database(tmp_path / "jobs.db")) as again:
            assert [job.index for job in again.local_jobs.list_open("fork")] == [1, 2]
        assert sorted(connection.execute(indexes)) == before


def test_a_request_reads_back_as_it_was(database: Database) -> None:
    values = (
        "plain",
        'quo"te',
        " blank ",
        "",
        "line\nbreak",
        "tab\t",
        "ü€",
        "\udcff\udc80",
        "\x01\x7f",
        ("a", ("b",), ()),
    )
    put(database, make_grid_job("aaaaaaaa", request=[("arguments", values)]))
    assert database.grid_jobs.get("aaaaaaaa").request() == [("arguments", values)]


def test_a_document_that_the_schema_forbids_is_not_written(database: Database) -> None:
    add(database, "aaaaaaaa")
    with pytest.raises(InvalidDocument, match="grid-job"):
        database.grid_jobs.change("aaaaaaaa", lambda job: job.element.set("colour", "green"))
    assert database.grid_jobs.get("aaaaaaaa").element.get("colour") is None


def test_other_namespaces_are_welcome(database: Database) -> None:
    add(database, "aaaaaaaa")

    def annotate(job: GridJob) -> None:
        job.element.set("{urn:d0}release", "p14.07.00")
        etree.SubElement(etree.SubElement(job.element, "{urn:d0}card"), "{urn:d0}line").text = "x"

    database.grid_jobs.change("aaaaaaaa", annotate)
    assert database.to_xml().xpath("string(//*[local-name()='line'])") == "x"


def test_an_exception_in_a_transaction_leaves_nothing(database: Database) -> None:
    def fail_half_way() -> None:
        with database.transaction():
            database.events.put_generator_time("fork", 77)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert database.events.generator_time("fork") is None


@pytest.fixture
def named(database: Database) -> Database:
    """Grid jobs with names, two of them the same, others that look like ids."""
    names = {"abcd1111": "tune 7", "abcd2222": "tune 8", "bbbbbbbb": "abcd1111", "cccccccc": "b", "dddddddd": "tune 7"}
    names["ffffffff"] = "[b] 1"
    for job_id, name in names.items():
        add(database, job_id)
        database.grid_jobs.change(job_id, lambda job, name=name: setattr(job, "name", name))  # type: ignore[misc]
    return database


@pytest.mark.parametrize(
    ("word", "found"),
    [("tune 8", "abcd2222"), ("abcd1111", "abcd1111"), ("abcd1", "abcd1111"), ("b", "cccccccc"), ("bb", "bbbbbbbb")],
    ids=str,
)
def test_a_grid_job_is_found_by_its_name_but_a_whole_id_comes_first(named: Database, word: str, found: str) -> None:
    assert named.grid_jobs.find(word) == found


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tune 7", r"more than one grid job \(abcd1111, dddddddd\): use an id$"),
        ("abcd", r"more than one grid job \(abcd1111, abcd2222\): give more of the id$"),
        ("tune", "no grid job has the name"),
        ("zzz", "no grid job has the name"),
        ("", "no grid job has the name"),
        ("tune*", "no grid job has the name"),
        ("tune 8\n", "no grid job"),
        ("abcd1111/3", "an id that begins with it: samgrid explain and samgrid log take local jobs$"),
    ],
)
def test_a_name_that_fits_none_or_several_is_an_error(named: Database, word: str, message: str) -> None:
    with pytest.raises(UnknownJob, match=message):
        named.grid_jobs.find(word)


@pytest.mark.parametrize(
    ("words", "pattern", "chosen"),
    [
        ([], "tune*", ["abcd1111", "abcd2222", "dddddddd"]),
        ([], "[b] *", ["ffffffff"]),
        ([], "tune ?", ["abcd1111", "abcd2222", "dddddddd"]),
        (["d", "tune 8", "d"], None, ["dddddddd", "abcd2222"]),
        (["d", "cccc"], "tune*", ["dddddddd"]),
    ],
)
def test_grid_jobs_are_chosen_by_words_in_their_order_and_by_options(
    named: Database, words: list[str], pattern: str | None, chosen: list[str]
) -> None:
    assert named.grid_jobs.choose(words, Choice(name=pattern)) == chosen


@pytest.mark.parametrize(
    ("words", "choice", "message"),
    [
        ([], Choice(name="nobody"), "no grid job fits"),
        ([], Choice(name="\udcff"), "no grid job fits"),
        (["c"], Choice(name="tune*"), "none of these: cccccccc"),
        (["c", "e"], Choice(), 'the name "e"'),
    ],
    ids=ascii,
)
def test_where_nothing_is_chosen_that_is_an_error(
    named: Database, words: list[str], choice: Choice, message: str
) -> None:
    with pytest.raises(UnknownJob, match=message):
        named.grid_jobs.choose(words, choice)


def test_a_step_is_chosen_with_its_whole_unless_it_is_named(database: Database) -> None:
    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        add(database, job_id)
    database._store.write("INSERT INTO step VALUES ('aaaaaaaa', 1, 'merge', 'bbbbbbbb')")
    assert database.grid_jobs.choose([], Choice(type="command")) == ["aaaaaaaa"]
    assert database.grid_jobs.choose(["a", "b"], Choice()) == ["aaaaaaaa", "bbbbbbbb"]


def test_an_overview_shows_no_local_job_under_way_of_a_grid_job_that_has_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "aaaaaaaa", state=State.ACTIVE)
    query = database._store.query

    def end_after_the_first_query(sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        rows = list(query(sql, values))
        monkeypatch.setattr(database._store, "query", query)
        with database.transaction():
            jobs = database.local_jobs.all_of("aaaaaaaa")
            for job in jobs:
                job.state = State.DONE
            database.local_jobs.put("aaaaaaaa", jobs)
        database.grid_jobs.change("aaaaaaaa", lambda job: job.end(State.DONE, 0))
        return iter(rows)

    monkeypatch.setattr(database._store, "query", end_after_the_first_query)
    (row,) = database.grid_jobs.overview()
    assert not (row.state == "done" and row.counts.get("unsubmitted"))


def test_an_event_before_its_id_is_known_waits_for_it(database: Database) -> None:
    add(database, "aaaaaaaa")
    apply_events(database, "fork", [Event(50, "aaaaaaaa-1.2", State.ACTIVE), Event(51, "aaaaaaaa-1.2", State.DONE, 4)])
    submit(database, "aaaaaaaa", 2)
    second = database.local_jobs.get("aaaaaaaa", 2)
    assert (second.state, second.exit_code) == (State.DONE, 4)
    assert database.events.take("fork", ["aaaaaaaa-1.2"]) == {}


SLURM = Naming(r"(?P<id>\d+)", single="{id}", element="{id}_{n}", array="{id}")


def add_array(database: Database, job_id: str, count: int = 3) -> None:
    """A grid job that goes as one array, which is submitted and not yet registered."""
    add(database, job_id, count)
    with database.transaction():
        jobs = database.local_jobs.all_of(job_id)
        for job in jobs:
            job.intend(f"{job_id}-1", 1000)
        database.local_jobs.put(job_id, jobs)


def states_of(database: Database, job_id: str) -> list[State]:
    return [job.state for job in database.local_jobs.all_of(job_id)]


def test_the_end_of_a_whole_array_ends_what_waits_in_it(database: Database) -> None:
    add_array(database, "aaaaaaaa")
    register_local_jobs(database, "aaaaaaaa", {1: "17_1", 2: "17_2", 3: "17_3"}, SLURM)
    apply_events(database, "fork", [Event(50, "17_1", State.ACTIVE), Event(60, "17", State.FAILED)])
    assert states_of(database, "aaaaaaaa") == [State.ACTIVE, State.FAILED, State.FAILED]
    assert apply_events(database, "fork", [Event(60, "17", State.FAILED)]) == {}


def test_what_is_queued_again_after_the_end_of_its_grid_job_changes_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    add(database, "aaaaaaaa", 1)
    submit(database, "aaaaaaaa", 1)
    events = [Event(40, "aaaaaaaa-1.1", State.PENDING), Event(50, "aaaaaaaa-1.1", State.DONE)]
    apply_events(database, "fork", events)
    database.grid_jobs.change("aaaaaaaa", lambda job: job.put_final_state(State.DONE))
    caplog.set_level(logging.INFO)
    # Read once more, as after each start of a generator, they are no news.
    assert apply_events(database, "fork", events) == {}
    assert "queued again" not in caplog.text
    assert apply_events(database, "fork", [Event(60, "aaaaaaaa-1.1", State.PENDING)]) == {}
    assert "aaaaaaaa is over, but aaaaaaaa-1.1 was queued again" in caplog.text
    assert states_of(database, "aaaaaaaa") == [State.DONE]


def test_an_event_of_an_array_before_its_id_is_known_waits_for_it(database: Database) -> None:
    add_array(database, "aaaaaaaa")
    early = [Event(50, "17_1", State.ACTIVE), Event(60, "17", State.FAILED)]
    apply_events(database, "fork", early)
    register_local_jobs(database, "aaaaaaaa", {1: "17_1", 2: "17_2"}, SLURM)
    assert states_of(database, "aaaaaaaa") == [State.ACTIVE, State.FAILED, State.UNSUBMITTED]
    assert database.events.take("fork", ["17"]) == {}
    assert {job.array for job in database.local_jobs.all_of("aaaaaaaa")} == {"17", None}


def test_a_job_that_was_submitted_alone_is_in_no_array(database: Database) -> None:
    add_array(database, "aaaaaaaa", 1)
    apply_events(database, "fork", [Event(60, "17", State.DONE, 3)])
    register_local_jobs(database, "aaaaaaaa", {1: "17"}, SLURM)
    job = database.local_jobs.get("aaaaaaaa", 1)
    assert (job.array, job.state, job.exit_code) == (None, State.DONE, 3)


def test_only_what_is_in_doubt_gets_an_id(database: Database) -> None:
    add_array(database, "aaaaaaaa")
    register_local_jobs(database, "aaaaaaaa", {1: "17_1"}, SLURM)
    register_local_jobs(database, "aaaaaaaa", {1: "18_1", 2: "18_2"}, SLURM)
    assert [job.local_id for job in database.local_jobs.all_of("aaaaaaaa")] == ["17_1", "18_2", None]
    known = database.local_jobs.is_registered
    assert [known("fork", "aaaaaaaa-1", array) for array in ("17", "18", "19")] == [True, True, False]
    assert database.local_jobs.tokens_in_doubt() == {"aaaaaaaa-1"}


def test_a_new_token_is_higher_than_all_before(database: Database) -> None:
    add(database, "aaaaaaaa", 40)
    for _ in range(38):
        write_intent(database, "aaaaaaaa", 1)
    assert database.local_jobs.last_token("aaaaaaaa") == "aaaaaaaa-12"
    with changing(database, "aaaaaaaa", 2) as forgotten:
        forgotten.forget_intent()
    intent = write_intent(database, "aaaaaaaa", 1)
    assert intent is not None
    assert (intent.token, intent.indexes) == ("aaaaaaaa-13", [2])


def test_an_intent_passes_over_gaps(database: Database) -> None:
    add(database, "aaaaaaaa", 6)
    with changing(database, "aaaaaaaa", 3) as third:
        third.intend("aaaaaaaa-1", 1000)
    intents = [write_intent(database, "aaaaaaaa", 4) for _ in range(3)]
    assert [intent and (intent.token, intent.indexes) for intent in intents] == [
        ("aaaaaaaa-2", [1, 2, 4, 5]), ("aaaaaaaa-3", [6]), None,
    ]  # fmt: skip


def test_what_was_missing_is_replaced_as_a_whole(database: Database) -> None:
    with database.transaction():
        database.events.put_missing("fork", {"a.1": (1, 50), "a.2": (3, 20)})
        database.events.put_missing("slurm", {"17": (1, 60)})
        database.events.put_missing("fork", {"a.2": (4, 20)})
    assert (database.events.missing("fork"), database.events.missing("slurm")) == ({"a.2": (4, 20)}, {"17": (1, 60)})


def test_the_open_local_jobs_are_those_with_an_id_and_without_an_end(database: Database) -> None:
    add_array(database, "aaaaaaaa", 4)
    register_local_jobs(database, "aaaaaaaa", {1: "17_1", 2: "17_2", 3: "17_3"}, SLURM)
    apply_events(database, "fork", [Event(50, "17_2", State.ACTIVE), Event(50, "17_3", State.DONE)])
    token = "aaaaaaaa-1"
    assert database.local_jobs.list_open("fork") == [
        LiveJob(1, "aaaaaaaa", "17_1", "17", token, State.PENDING, "", ""),
        LiveJob(2, "aaaaaaaa", "17_2", "17", token, State.ACTIVE, "", ""),
    ]
    assert database.local_jobs.list_open("slurm") == []


def test_events_that_nobody_claims_are_dropped_when_they_are_old(database: Database) -> None:
    with database.transaction():
        database.events.keep("fork", [Event(1, "other.1", State.DONE)], now=100)
        database.events.keep("fork", [Event(2, "other.2", State.DONE)], now=300)
        database.events.drop(200)
    assert database.events.take("fork", ["other.1"]) == {}
    assert len(database.events.take("fork", ["other.2"])["other.2"]) == 1


def test_events_and_the_generators_time_are_committed_together(database: Database) -> None:
    add(database, "aaaaaaaa")
    submit(database, "aaaaaaaa", 2)
    events = [Event(50, "aaaaaaaa-1.1", State.ACTIVE), Event(60, "aaaaaaaa-1.1", State.DONE)]
    assert {job: len(jobs) for job, jobs in apply_events(database, "fork", events).items()} == {"aaaaaaaa": 1}
    assert database.events.generator_time("fork") == 60
    assert apply_events(database, "fork", events) == {}, "a replay changes nothing"
    apply_events(database, "fork", [Event(40, "aaaaaaaa-1.2", State.ACTIVE)])
    assert database.events.generator_time("fork") == 60, "the time never goes back"


def test_an_id_that_comes_again_means_the_job_submitted_last(database: Database) -> None:
    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        add(database, job_id, 1)
        with changing(database, job_id) as job:
            job.intend(f"{job_id}-1", 1000)
            job.register("77", "", 1000 if job_id == "aaaaaaaa" else 2000)
    apply_events(database, "fork", [Event(2001, "77", State.ACTIVE)])
    assert database.local_jobs.get("aaaaaaaa", 1).state is State.PENDING
    assert database.local_jobs.get("bbbbbbbb", 1).state is State.ACTIVE


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "jobs.db")
    add(database, "aaaaaaaa")
    pid = os.fork()
    if pid == 0:  # a file size limit is for ever, so only in a child
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            add(Database(tmp_path / "jobs.db"), "bbbbbbbb", 5000)
        except DatabaseError as error:
            os._exit(0 if "jobs.db" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [row.id for row in database.grid_jobs.overview()] == ["aaaaaaaa"]
    add(database, "cccccccc", 5)
    assert len(database.grid_jobs.overview()) == 2
    database.close()


def test_the_file_of_another_layout_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other" / "old.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as old:
        old.executescript("CREATE TABLE grid_job (id TEXT); PRAGMA user_version = 1")
    with pytest.raises(DatabaseError, match=r"old\.db has layout 1, .* move the state folder away"):
        Database(path)
    with closing(sqlite3.connect(path)) as old:
        assert old.execute("SELECT name FROM sqlite_schema").fetchall() == [("grid_job",)]


def test_the_lines_of_local_jobs_are_what_their_documents_say(database: Database) -> None:
    add(database, "aaaaaaaa", 2)
    submit(database, "aaaaaaaa", 2)
    events = [Event(2000, "aaaaaaaa-1.2", State.ACTIVE), Event(2060, "aaaaaaaa-1.2", State.DONE, 3)]
    apply_events(database, "fork", events)
    waiting, ended = database.local_jobs.lines("aaaaaaaa")
    assert (waiting.index, waiting.state, waiting.started, waiting.ended) == (1, State.PENDING, None, None)
    assert (ended.index, ended.state, ended.outcome, ended.started, ended.ended) == (
        *(2, State.DONE, "failed"),
        *(2000, 2060),
    )
    assert (ended.local_id, ended.reason) == ("aaaaaaaa-1.2", "the program ended with exit code 3")


def test_a_large_grid_job_is_made_some_local_jobs_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, write = [], LocalJobs.put

    def note(self: LocalJobs, identity: str, jobs: Sequence[LocalJob]) -> None:
        sizes.append(len(jobs))
        write(self, identity, jobs)

    job = make_grid_job("aaaaaaaa", 5)
    put(database, job)
    monkeypatch.setattr("jobmanager.states.changes.AT_ONCE", 2)
    monkeypatch.setattr(LocalJobs, "put", note)
    create_local_jobs(database, job, (PlannedJob(number, 5) for number in range(1, 6)))
    assert sizes == [2, 2, 1]
    assert database.local_jobs.count("aaaaaaaa") == {State.UNSUBMITTED: 5}


def test_all_lines_come_though_few_are_read_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmanager.database.local_jobs.AT_ONCE", 2)
    add(database, "aaaaaaaa", 5)
    add(database, "bbbbbbbb", 1)
    submit(database, "aaaaaaaa", 4)
    apply_events(database, "fork", [Event(2060, "aaaaaaaa-1.2", State.DONE, 3)])
    with changing(database, "aaaaaaaa", 3) as third:
        third.put_lost(["output/a: Permission denied"])
    local_jobs = database.local_jobs
    assert [line.index for line in local_jobs.lines("aaaaaaaa")] == [1, 2, 3, 4, 5]
    assert [lost for _, lost in local_jobs.ends("aaaaaaaa")] == [(), (), ("output/a: Permission denied",), (), ()]
    assert [line for line, _ in local_jobs.ends("aaaaaaaa")] == list(local_jobs.lines("aaaaaaaa"))
    assert [(job.index, job.local_id, job.state) for job in local_jobs.live("aaaaaaaa")] == [
        (number, f"aaaaaaaa-1.{number}", State.PENDING) for number in (1, 3, 4)
    ]
    assert local_jobs.count_ends("aaaaaaaa") == {"": 4, "failed": 1}
    assert [job.index for job in local_jobs.of_token("aaaaaaaa", "aaaaaaaa-1")] == [1, 2, 3, 4, 5]
    assert local_jobs.of_token("bbbbbbbb", "aaaaaaaa-1") == []


def tell(
    database: Database, job_id: str, number: int, phases: list[PhaseStatus], now: int, state: State | None = None
) -> None:
    with changing(database, job_id, number) as job:
        job.state = state or State.ACTIVE
        job.put_phases(phases, now)


def test_phases_are_summed_over_the_local_jobs_that_have_told_them(database: Database) -> None:
    add(database, "aaaaaaaa", 4)
    add(database, "bbbbbbbb", 1)
    tell(database, "aaaaaaaa", 1, [PhaseStatus("generate", 10, 10, "events"), PhaseStatus("d0reco", 1, 4)], 1000)
    tell(database, "aaaaaaaa", 2, [PhaseStatus("generate", 7, 20, "events")], 1005)
    tell(database, "bbbbbbbb", 1, [PhaseStatus("generate", 1, 1)], 1)
    assert database.phases.sums("aaaaaaaa") == [
        PhaseSum("generate", "events", 17, 30, 2, 1000, 1005),
        PhaseSum("d0reco", "", 1, 4, 1, 1000, 1000),
    ]
    assert database.phases.sums("cccccccc") == []


def test_only_the_parts_of_local_jobs_that_have_not_ended_are_counted(database: Database) -> None:
    add(database, "aaaaaaaa", 3)
    tell(database, "aaaaaaaa", 1, [PhaseStatus("generate", 10, 10), PhaseStatus("d0reco", 1, 4)], 1000)
    tell(database, "aaaaaaaa", 2, [PhaseStatus("generate", 3, 4)], 1000, State.DONE)
    tell(database, "aaaaaaaa", 3, [PhaseStatus("generate", 0, 0), PhaseStatus("d0reco", 9, 4)], 1000, State.SUSPENDED)
    assert database.phases.open_parts("aaaaaaaa") == 1 + 0.25 + 1 + 1
    assert database.phases.open_parts("bbbbbbbb") == 0


def test_no_number_that_a_program_makes_up_is_too_much_for_the_sums(database: Database) -> None:
    huge = 10**15 - 1
    rows = (("aaaaaaaa", number, 0, "generate", huge, huge, "", 1, 2) for number in range(20_000))
    with database.transaction():
        database._store.write("INSERT INTO phase VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    (phase,) = database.phases.sums("aaaaaaaa")
    assert phase.total == pytest.approx(20_000 * huge)


def test_a_phase_begins_when_the_local_job_had_last_anything_else_to_tell(database: Database) -> None:
    add(database, "aaaaaaaa", 1)
    generate, reco = PhaseStatus("generate", 10, 10), PhaseStatus("d0reco", 1, 4)
    tell(database, "aaaaaaaa", 1, [PhaseStatus("generate", 9, 10)], 1000)
    tell(database, "aaaaaaaa", 1, [generate], 1010)
    tell(database, "aaaaaaaa", 1, [generate, reco], 1020)
    told = {phase.name: (phase.begun, phase.changed) for phase in database.local_jobs.get("aaaaaaaa", 1).phases()}
    assert told == {"generate": (1000, 1010), "d0reco": (1010, 1020)}


def test_what_is_told_again_is_merged_by_name_and_keeps_its_time(database: Database) -> None:
    add(database, "aaaaaaaa", 1)
    generate, reco = PhaseStatus("generate", 10, 10), PhaseStatus("d0reco", 1, 4)
    tell(database, "aaaaaaaa", 1, [generate, reco], 1000)
    tell(database, "aaaaaaaa", 1, [generate], 2000)
    job = database.local_jobs.get("aaaaaaaa", 1)
    assert job.phases() == [generate, reco]
    assert [phase.changed for phase in job.phases()] == [1000, 1000]


def test_a_phase_keeps_the_files_that_it_has_named(database: Database) -> None:
    add(database, "aaaaaaaa", 1)
    (job,) = database.local_jobs.all_of("aaaaaaaa")
    job.put_phases([PhaseStatus("reco", 1, 2, "events", ("a.root", "b.root"))], 1000)
    # As a line on stdout tells it.
    job.put_phases([PhaseStatus("reco", 2, 2, "events")], 1001)
    put_local_jobs(database, "aaaaaaaa", job)
    (kept,) = database.local_jobs.all_of("aaaaaaaa")
    assert kept.phases() == [PhaseStatus("reco", 2, 2, "events", ("a.root", "b.root"))]


def test_a_local_job_keeps_only_so_many_phases(database: Database) -> None:
    add(database, "aaaaaaaa", 1)
    tell(database, "aaaaaaaa", 1, [PhaseStatus(f"p{number}", 1, 2) for number in range(MAX_PHASES)], 1000)
    tell(database, "aaaaaaaa", 1, [PhaseStatus("more", 1, 2), PhaseStatus("p0", 2, 2)], 1000)
    assert len(database.local_jobs.get("aaaaaaaa", 1).phases()) == MAX_PHASES == len(database.phases.sums("aaaaaaaa"))
    assert database.local_jobs.get("aaaaaaaa", 1).phases()[0] == PhaseStatus("p0", 2, 2)


def test_a_new_run_of_the_driver_has_told_nothing_yet(database: Database) -> None:
    add(database, "aaaaaaaa", 1)
    job = database.local_jobs.get("aaaaaaaa", 1)
    first = DriverStatus(start=5, phases=(PhaseStatus("generate", 9, 10),))
    apply_driver_status(job, first, 9)
    apply_driver_status(job, first, 10)
    assert job.phases() == [PhaseStatus("generate", 9, 10)]
    apply_driver_status(job, DriverStatus(start=6), 11)
    assert job.phases() == []


def test_silent_are_running_local_jobs_whose_phases_all_stand_still(database: Database) -> None:
    add(database, "aaaaaaaa", 5)
    generate, reco = PhaseStatus("generate", 9, 10), PhaseStatus("d0reco", 1, 4)
    for number in (1, 2, 3):
        tell(database, "aaaaaaaa", number, [generate, reco], 1000)
    tell(database, "aaaaaaaa", 2, [PhaseStatus("d0reco", 2, 4)], 1500)
    tell(database, "aaaaaaaa", 4, [generate], 1000, State.DONE)
    tell(database, "aaaaaaaa", 5, [], 1000)
    assert database.phases.silent("aaaaaaaa", 1400) == [1, 3]
    assert database.phases.silent("aaaaaaaa", 999) == []


def steps_of(database: Database, ask: Callable[[], object]) -> int:
    """How many steps SQLite takes for what is asked."""
    steps = []
    connection = database._store._connection
    connection.set_progress_handler(lambda: steps.append(1), 1)
    try:
        ask()
    finally:
        connection.set_progress_handler(None, 1)
    return len(steps)


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda database: database.grid_jobs.list_open(), id="open grid jobs"),
        pytest.param(lambda database: database.local_jobs.list_open("fork"), id="open local jobs"),
        pytest.param(lambda database: database.local_jobs.tokens_in_doubt(), id="tokens in doubt"),
        pytest.param(lambda database: database.local_jobs.in_doubt("zzzzzzzz"), id="local jobs in doubt"),
        pytest.param(lambda database: database.local_jobs.is_in_doubt("zzzzzzzz"), id="whether some are"),
        pytest.param(lambda database: database.local_jobs.to_submit("zzzzzzzz", 2), id="local jobs to submit"),
        pytest.param(lambda database: database.local_jobs.is_registered("fork", "zzzzzzzz-1", "7"), id="registered"),
    ],
)
def test_what_is_asked_again_and_again_costs_by_what_is_open_not_by_what_was(ask: Callable[[Database], object]) -> None:
    def take_steps(ended: int) -> int:
        database = Database(None)
        add(database, "zzzzzzzz", ended + 4)
        submit(database, "zzzzzzzz", ended + 2)
        end(database, "zzzzzzzz", ended)
        for number in range(ended):
            add(database, f"aaaaa{number:03}", 1, State.DONE)
        return steps_of(database, lambda: ask(database))

    assert take_steps(60) <= take_steps(3) + 5


def end(database: Database, job_id: str, count: int) -> None:
    """Let the last of those that were submitted end."""
    events = [Event(2000, f"{job_id}-1.{number}", State.DONE, 0) for number in range(3, count + 3)]
    assert len(apply_events(database, "fork", events).get(job_id, [])) == count


def test_what_was_used_of_late_costs_by_what_ended_of_late() -> None:
    def take_steps(ended: int) -> int:
        database = Database(None)
        add(database, "aaaaaaaa", ended + 2)
        submit(database, "aaaaaaaa", ended + 2)
        end(database, "aaaaaaaa", ended)
        apply_events(database, "fork", [Event(9000, "aaaaaaaa-1.1", State.FAILED, 0)])
        return steps_of(database, lambda: used.append(database.usage.sums(("user",), 8000, 9001)))

    used: list[list[Usage]] = []
    assert take_steps(60) <= take_steps(3) + 5
    assert [usage.local_jobs for (usage,) in used] == [1, 1]


def test_an_event_costs_the_same_however_many_local_jobs_its_grid_job_has() -> None:
    def take_steps(others: int) -> int:
        database = Database(None)
        add(database, "aaaaaaaa", others + 1)
        submit(database, "aaaaaaaa", others + 1)
        return steps_of(
            database, lambda: apply_events(database, "fork", [Event(2000, "aaaaaaaa-1.1", State.ACTIVE, 0)])
        )

    assert take_steps(60) <= take_steps(3) + 5


def test_counts_are_what_there_is_whatever_is_done(database: Database) -> None:
    def check() -> dict[State, int]:
        assert list(database.checking.list_document_faults()) == []
        return database.local_jobs.count("aaaaaaaa")

    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        add(database, job_id, 5)
    assert check() == {State.UNSUBMITTED: 5}
    submit(database, "aaaaaaaa", 4)
    assert check() == {State.UNSUBMITTED: 1, State.PENDING: 4}
    end(database, "aaaaaaaa", 2)
    with suppress(InterruptedError), database.transaction():
        database.local_jobs.put("aaaaaaaa", [LocalJob.new(1, "fork", None)])
        raise InterruptedError
    assert check() == {State.UNSUBMITTED: 1, State.PENDING: 2, State.DONE: 2}
    assert [row.counts for row in database.grid_jobs.overview()] == [
        {"unsubmitted": 1, "pending": 2, "done": 2},
        {"unsubmitted": 5},
    ]
    with changing(database, "aaaaaaaa", 3) as job:
        job.outcome, job.cause = Outcome.CANCELLED, Cause.CANCELLED_OUTSIDE
    assert check() == {State.UNSUBMITTED: 1, State.PENDING: 2, State.DONE: 2}
    (row,) = database.grid_jobs.overview("aaaaaaaa")
    assert row.counts == {"unsubmitted": 1, "pending": 2, "done": 1, "cancelled": 1}
    with database.transaction():
        database.grid_jobs.delete("aaaaaaaa")
    assert check() == {}


def test_a_local_job_that_is_written_twice_at_once_counts_once(database: Database) -> None:
    add(database, "aaaaaaaa", 3)
    first, last = LocalJob.new(1, "fork", None), LocalJob.new(1, "fork", None)
    first.put_phases([PhaseStatus("generate", 1, 5), PhaseStatus("simulate", 1, 5)], 1000)
    last.state = State.ACTIVE
    put_local_jobs(database, "aaaaaaaa", first, last)
    assert list(database.checking.list_document_faults()) == []
    assert database.local_jobs.count("aaaaaaaa") == {State.ACTIVE: 1, State.UNSUBMITTED: 2}
    assert database.local_jobs.get("aaaaaaaa", 1).state is State.ACTIVE


def test_counts_are_compared_with_local_jobs_of_the_same_moment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "aaaaaaaa")
    query = Store.query

    def query_beside_a_monitor(store: Store, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        rows = list(query(store, sql, values))
        if store is database._store and "local_job_count" in sql:
            with closing(Database(database.path)) as other, other.transaction():
                job = other.local_jobs.get("aaaaaaaa", 1)
                job.state = State.ACTIVE
                other.local_jobs.put("aaaaaaaa", [job])
        return iter(rows)

    monkeypatch.setattr(Store, "query", query_beside_a_monitor)
    assert list(database.checking.list_document_faults()) == []
    assert database.local_jobs.count("aaaaaaaa") == {State.ACTIVE: 1, State.UNSUBMITTED: 1}


def test_counts_are_derived_anew(database: Database) -> None:
    add(database, "aaaaaaaa")
    with database.transaction():
        database._store.write("UPDATE local_job_count SET number = 7")
    assert list(database.checking.list_document_faults()) == [
        "the counts of the local jobs of grid job aaaaaaaa are not what there are"
    ]
    with database.transaction():
        database.checking.derive_anew()
    assert (list(database.checking.list_document_faults()), database.local_jobs.count("aaaaaaaa")) == (
        [],
        {State.UNSUBMITTED: 2},
    )


def test_ids_of_earlier_attempts_are_known_without_their_documents(database: Database) -> None:
    add(database, "aaaaaaaa")
    submit(database, "aaaaaaaa", 2)
    job = database.local_jobs.get("aaaaaaaa", 2)
    job.state = State.FAILED
    job.begin_attempt()
    with database.transaction():
        database.local_jobs.put("aaaaaaaa", [job])
        database._store.write("UPDATE local_job SET document = x'00'")
    assert database.attempts.ids("aaaaaaaa") == {"aaaaaaaa-1.2"}


def test_a_document_is_read_once_for_all_its_events_of_a_batch(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "aaaaaaaa")
    submit(database, "aaaaaaaa", 2)
    read: list[int] = []

    def reading(tag: str, data: bytes, grid_job: str, number: int = 0) -> etree._Element:
        read.append(number)
        return read_document(tag, data, grid_job, number)

    monkeypatch.setattr("jobmanager.states.registration.read_document", reading)
    events = [Event(2000 + state, "aaaaaaaa-1.1", state, 0) for state in (State.ACTIVE, State.SUSPENDED)]
    events.append(Event(3000, "aaaaaaaa-1.1", State.DONE, 0))
    apply_events(database, "fork", events)
    assert (read, database.local_jobs.get("aaaaaaaa", 1).state) == ([1], State.DONE)
