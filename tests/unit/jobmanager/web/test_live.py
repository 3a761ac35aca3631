"""Open pages are told of changes: at once, only of changes, and not without end."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial

import pytest

from jobmanager.database.database import Database
from jobmanager.site.account import Account
from jobmanager.web import live
from jobmanager.web.live import MOST_LISTENERS, Changes, Mark
from jobmanager.web.reading import open_read_only, read_version
from tests.production import add_production
from tests.waiting import SECONDS

CHANGE, ALIVE = b"event: change\ndata:\n\n", b": still here\n\n"


async def take(stream: AsyncIterator[bytes]) -> bytes:
    """The next text of a stream."""
    async with asyncio.timeout(SECONDS):
        return await anext(stream)


def run(
    account: Account, mark: Callable[[], Mark], check: Callable[[Changes, AsyncIterator[bytes]], Awaitable[None]]
) -> None:
    """Check a stream of the changes to an account's database."""

    async def main() -> None:
        changes = Changes(partial(read_version, account))
        watch = asyncio.create_task(changes.watch())
        stream = changes.stream(mark)
        assert (await take(stream)).startswith(b"retry:")
        assert await take(stream) == CHANGE
        await check(changes, stream)
        await stream.aclose()  # type: ignore[attr-defined]
        watch.cancel()

    asyncio.run(main())


def mark_of(account: Account, job_id: str) -> Callable[[], Mark]:
    def read() -> Mark:
        with open_read_only(account) as database:
            return database.mark_of_grid_job(job_id)

    return read


def test_a_commit_of_anybody_is_told(account: Account) -> None:
    add_production(account.database, "aaaaaaaa", 3, time.time())

    async def check(_: Changes, stream: AsyncIterator[bytes]) -> None:
        account.database.grid_jobs.change("aaaaaaaa", lambda job: job.put_problem("disk full", 1000))
        assert await take(stream) == CHANGE

    run(account, mark_of(account, "aaaaaaaa"), check)


def test_a_change_to_another_grid_job_is_no_change(account: Account) -> None:
    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        add_production(account.database, job_id, 3, time.time())

    async def check(_: Changes, stream: AsyncIterator[bytes]) -> None:
        account.database.grid_jobs.change("bbbbbbbb", lambda job: job.put_problem("disk full", 1000))
        assert await take(stream) == ALIVE

    run(account, mark_of(account, "aaaaaaaa"), check)


def test_what_is_committed_nowhere_is_looked_for_now_and_then(account: Account) -> None:
    looks = iter(range(60))

    async def main() -> None:
        stream = Changes(partial(read_version, account)).stream(lambda: (next(looks) // 3,), interval=0.01)
        told = [await take(stream) for _ in range(8)]
        assert told[1:] == [CHANGE, ALIVE, ALIVE, CHANGE, ALIVE, ALIVE, CHANGE]
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_database_that_comes_into_being_is_told(account: Account) -> None:
    def mark() -> Mark:
        with open_read_only(account) as database:
            return database.mark_of_all()

    async def check(_: Changes, stream: AsyncIterator[bytes]) -> None:
        add_production(account.database, "aaaaaaaa", 3, time.time())
        assert await take(stream) == CHANGE

    run(account, mark, check)


def test_the_watch_keeps_no_file_open_that_somebody_may_replace(account: Account) -> None:
    def look() -> tuple[object, ...]:
        return read_version(account)[:-1]

    versions = [look()]
    for job_id in ("aaaaaaaa", "bbbbbbbb"):
        with closing(Database(account.places.database)) as database:
            add_production(database, job_id, 3, time.time())
            versions.append(look())
            assert look() == versions[-1]
            database.grid_jobs.change(job_id, lambda job: job.put_problem("disk full", 1000))
            versions.append(look())
    assert len({*versions}) == len(versions)
    # The last connection has removed what lay beside it.
    assert [*account.places.root.glob("jobs.db*")] == [account.places.database]


def test_a_sign_of_life_comes_while_nothing_changes(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT", 0.1)

    async def check(_: Changes, stream: AsyncIterator[bytes]) -> None:
        assert await take(stream) == ALIVE
        assert await take(stream) == ALIVE

    run(account, lambda: (), check)


def test_streams_end_when_the_server_does(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT", 1000)

    async def check(changes: Changes, stream: AsyncIterator[bytes]) -> None:
        waiting = asyncio.create_task(take(stream))
        await asyncio.sleep(0)
        changes.end()
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(ended, StopAsyncIteration)

    run(account, lambda: (), check)


def test_so_many_pages_are_told_and_no_more(account: Account) -> None:
    async def main() -> None:
        changes = Changes(partial(read_version, account))
        streams = [changes.stream(lambda: ()) for _ in range(MOST_LISTENERS)]
        for stream in streams:
            await take(stream)
        assert not changes.has_room
        late = changes.stream(lambda: ())
        assert await take(late) == b"retry: 30000\n\n"
        with pytest.raises(StopAsyncIteration):
            await take(late)
        await streams[0].aclose()  # type: ignore[attr-defined]
        assert changes.has_room

    asyncio.run(main())
