"""Limits connections to the page: for each account, in total, and in the time for a request's head."""

import asyncio
import logging
import os
import socket
import struct
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

Address = tuple[str, int]
_log = logging.getLogger(__name__)

_DIAGNOSIS = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST = 1  # NLM_F_REQUEST
_ESTABLISHED = 1
_NO_COOKIE = bytes(4) + 8 * b"\xff"  # any interface, INET_DIAG_NOCOOKIE
_ANSWER = struct.Struct("=IHHII BBBB 48x 5I")
"""The header of a netlink message and a ``struct inet_diag_msg`` (sock_diag(7)): we read state, uid and inode."""


def find_peer_uid(client: Address, server: Address) -> int | None:
    """The user who owns the client's end of this connection; None if that is nobody on this host.

    A socket that its owner has closed has no inode and seems to belong to root: it is nobody's.
    """
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    ports = struct.pack("!HH", client[1], server[1])
    try:
        ends = b"".join(
            socket.inet_pton(family, address[0].partition("%")[0]).ljust(16, b"\0") for address in (client, server)
        )
        question = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, 0xFFFFFFFF) + ports + ends + _NO_COOKIE
        header = struct.pack("=IHHII", 16 + len(question), _BY_FAMILY, _REQUEST, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _DIAGNOSIS) as kernel:
            kernel.send(header + question)
            answer = kernel.recv(4096)
    except OSError:  # no address, or a kernel without this interface
        return None
    if len(answer) < _ANSWER.size:
        return None
    _, kind, _, _, _, _, state, _, _, *_, uid, inode = _ANSWER.unpack_from(answer)
    return uid if kind == _BY_FAMILY and state == _ESTABLISHED and inode else None


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
