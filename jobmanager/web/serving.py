"""Serves the pages on one address until a signal comes; limits connections in number and in time."""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobmanager import UserError
from jobmanager.site.account import Account
from jobmanager.web.access import find_peer_uid, make_token
from jobmanager.web.app import make_app
from jobmanager.web.live import Changes

_log = logging.getLogger(__name__)

_BACKLOG = 64
"""Connections waiting to be accepted; asyncio accepts so many at once before any is refused."""


@dataclass(frozen=True)
class Listen:
    """Where to listen."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    @property
    def host(self) -> str:
        """As addresses of pages write it."""
        return f"[{self.ip}]" if self.ip.version == 6 else str(self.ip)


def read_listen(text: str) -> Listen:
    """What ``127.0.0.1:8642`` or ``[::1]:8642`` says.

    :raises ValueError: with a sentence for the user.
    """
    host, colon, port = text.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    try:
        ip = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        ip = None
    if ip is None or not colon or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"--listen {text!r} is no address with a port, like 127.0.0.1:8642 or [::1]:8642")
    return Listen(ip, int(port))


def serve(account: Account, listen: Listen, token: str | None) -> None:
    """Print where the pages are and serve them until SIGINT or SIGTERM; without a token, with a random one.

    :raises UserError: the address cannot be had.
    """
    with _bind(listen) as bound:
        key = token or make_token()
        app = make_app(account, key, listen.ip.is_loopback)
        # The server's warnings are what strangers can make it say.
        config = uvicorn.Config(
            app, lifespan="on", log_level="error", access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=2, backlog=_BACKLOG, loop="asyncio", http=Connection, ws="none",
        )  # fmt: skip
        shown = "…, with the token from the token file" if token else key
        print(f"http://{listen.host}:{bound.getsockname()[1]}/?token={shown}", flush=True)
        _run(_Server(config, app.state.changes), bound)


def _bind(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if listen.ip.version == 6 else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((str(listen.ip), listen.port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise UserError(
            f"cannot listen on {listen.host}:{listen.port}: {error.strerror}: name another with --listen"
        ) from error
    return bound


class _Server(uvicorn.Server):
    """Ends its event streams, too, when a signal comes."""

    def __init__(self, config: uvicorn.Config, changes: Changes) -> None:
        super().__init__(config)
        self._changes = changes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal, in the thread of the event loop."""
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._changes.end)


def _run(server: _Server, bound: socket.socket) -> None:
    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(ConnectionErrors().log)
        await server.serve([bound])

    # uvicorn raises the signal again at its end, which must not kill us.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(serve())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Connection(H11Protocol):
    """A connection of uvicorn, with additional limits."""

    HEAD_SECONDS = 10.0
    """How long the head of a request may take."""
    MOST_OF_ONE = 96
    """Connections of one account of this host, or of one other address."""
    MOST = 256
    """Connections of all other accounts; our own always gets one."""

    _who: int | str | None = None
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or refuse and close it."""
        super().connection_made(transport)
        self._who = self._find_who()
        if self._has_place():
            self._watch_head()
        else:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nToo many connections.\n")
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watch()
        super().connection_lost(exc)

    def _find_who(self) -> int | str:
        if self.client is None or self.server is None or self.server[1] is None:
            return ""
        uid = find_peer_uid(self.client, (self.server[0], self.server[1]))
        return self.client[0] if uid is None else uid

    def _has_place(self) -> bool:
        others: list[Any] = [one for one in self.connections if one is not self and not one.transport.is_closing()]
        if sum(one._who == self._who for one in others) >= self.MOST_OF_ONE:
            return False
        own = os.geteuid()
        return self._who == own or sum(one._who != own for one in others) < self.MOST

    def _watch_head(self) -> None:
        """Close the connection if the head of its next request is not complete in time."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.HEAD_SECONDS, self.transport.abort)

    def _stop_watch(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None


class ConnectionErrors:
    """Logs at most one error of connections a minute, instead of asyncio's traceback for each."""

    def __init__(self) -> None:
        self._next = 0.0

    def log(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called by the event loop with uncaught exceptions."""
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next:
            self._next = loop.time() + 60
            _log.warning("some connections cannot be served: %s", error.strerror or error)
