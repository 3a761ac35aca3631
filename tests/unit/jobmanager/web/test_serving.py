"""Whose connections are taken, how many, and how long they may say nothing."""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from jobmanager.web import serving
from jobmanager.web.access import Address
from jobmanager.web.serving import Connection, ConnectionErrors
from tests.waiting import SECONDS

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
OWN, OTHER, THIRD = os.geteuid(), 4711, 4712
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def serve(state: ServerState) -> AsyncIterator[Address]:
    """A page that says whether the head of a request is still waited for on any connection."""

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        open_ones: list[Any] = [*state.connections]
        waited = any(connection._deadline for connection in open_ones if connection.cycle)
        await PlainTextResponse(f"{waited=}")(scope, receive, send)

    config = uvicorn.Config(show, log_level="error", ws="none", lifespan="off", timeout_keep_alive=600)
    config.load()
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Connection(config, state, {}, loop), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


def run(ask: Callable[[Address], Awaitable[None]]) -> None:
    """What a client does, with a page to do it to."""

    async def both() -> None:
        async with serve(ServerState()) as address, asyncio.timeout(SECONDS):
            await ask(address)

    asyncio.run(both())


async def ask(streams: Streams) -> bytes:
    """A whole request's answer."""
    streams[1].write(HEAD + b"\r\n")
    head = await streams[0].readuntil(b"\r\n\r\n")
    return head + (await streams[0].read(100))


# --- how long


def test_a_request_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "HEAD_SECONDS", 0.05)

    async def client(address: Address) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEAD)
        assert await reader.read() == b""

    run(client)


def test_a_silent_connection_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "HEAD_SECONDS", 0.05)

    async def client(address: Address) -> None:
        reader, _ = await asyncio.open_connection(*address)
        assert await reader.read() == b""

    run(client)


def test_a_byte_now_and_then_gives_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "HEAD_SECONDS", 0.05)

    async def client(address: Address) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEAD)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x: y\r\n")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.005)

    run(client)


def test_the_second_request_has_no_more_time_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(address: Address) -> None:
        streams = await asyncio.open_connection(*address)
        assert b"200 OK" in await ask(streams)
        monkeypatch.setattr(Connection, "HEAD_SECONDS", 0.05)
        streams[1].write(HEAD)
        assert await streams[0].read() == b""

    run(client)


def test_an_answer_may_take_its_time() -> None:
    async def client(address: Address) -> None:
        streams = await asyncio.open_connection(*address)
        for _ in range(2):
            assert b"waited=False" in await ask(streams)

    run(client)


# --- how many


@pytest.mark.parametrize(
    ("who", "refused"),
    [
        pytest.param([OTHER] * 5, [3, 4], id="one account has three places"),
        pytest.param([OTHER] * 4 + [OWN] * 4, [3, 7], id="so have we"),
        pytest.param([OTHER] * 3 + [THIRD] * 3, [5], id="all others have five"),
        pytest.param([OTHER] * 3 + [THIRD] * 2 + [OWN] * 3, [], id="and none of ours"),
        pytest.param([None] * 4 + [OTHER], [3], id="unknown accounts of one address are one"),
    ],
)
def test_no_account_takes_another_s_place(
    who: Sequence[int | None], refused: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "MOST_OF_ONE", 3)
    monkeypatch.setattr(Connection, "MOST", 5)
    uids = iter(who)
    monkeypatch.setattr(serving, "find_peer_uid", lambda client, server: next(uids))

    async def client(address: Address) -> None:
        answers, kept = [], []
        for _ in who:
            kept.append(await asyncio.open_connection(*address))
            answers.append(await ask(kept[-1]))
        assert [number for number, answer in enumerate(answers) if b" 503 " in answer] == refused
        assert [number for number, answer in enumerate(answers) if b" 200 " not in answer] == refused

    run(client)


def test_a_place_is_free_again_when_its_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "MOST_OF_ONE", 1)

    async def client(address: Address) -> None:
        first = await asyncio.open_connection(*address)
        assert b" 200 " in await ask(first)
        first[1].close()
        while b" 200 " not in await ask(await asyncio.open_connection(*address)):
            pass

    run(client)


def test_what_cannot_be_accepted_is_a_line_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    errors = ConnectionErrors()
    with contextlib.closing(asyncio.new_event_loop()) as loop, caplog.at_level(logging.WARNING):
        for _ in range(100):
            error = OSError(errno.EMFILE, "Too many open files")
            errors.log(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert caplog.messages == ["some connections cannot be served: Too many open files"]
        errors.log(loop, {"message": "a fault of ours", "exception": ValueError("why")})
    assert caplog.messages[1:] == ["a fault of ours"]
