"""Who may look at the pages, and what browsers are told not to do with them."""

import hashlib
import hmac
import ipaddress
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Address = tuple[str, int]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def find_peer_uid(client: Address, server: Address) -> int | None:
    """The user whose socket is the client's end of this connection; None where this host has no such socket."""
    wanted = {(_render(client, mapped), _render(server, mapped)) for mapped in (False, True)}
    for local, remote, uid in _sockets():
        if (local, remote) in wanted:
            return uid
    return None


def _sockets() -> Iterator[tuple[str, str, int]]:
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except FileNotFoundError:  # a host without IPv6
            continue
        for line in lines:
            fields = line.split()
            yield fields[1], fields[2], int(fields[7])


def _render(address: Address, mapped: bool) -> str:
    """As the tables write it: 32-bit words in the host's byte order, and the port, in hexadecimal."""
    ip = ipaddress.ip_address(address[0])
    packed = ip.packed
    if mapped and ip.version == 4:
        # A program may reach IPv4 through a socket of IPv6.
        packed = bytes(10) + b"\xff\xff" + packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{address[1]:04X}"


COOKIE = "samgrid-web"
_SHORTEST_TOKEN = 16
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class TokenFileError(Exception):
    """The token file must not be used; the sentence says why and the way out."""


def read_token(file: Path) -> str:
    """The token in a file that its owner alone can read.

    :raises TokenFileError, OSError: it is not there, or others know the token, or it is no good one.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TokenFileError(f"the token file {file} must be a regular file of your own")
        if status.st_mode & 0o077:
            raise TokenFileError(f"others can read the token file {file}: chmod 600 it, and put a new token into it")
        token = stream.read(1000).decode("ascii", "replace").strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenFileError(
            f"the token in {file} must be one ASCII word of at least {_SHORTEST_TOKEN} characters: "
            f"openssl rand -hex 32 >{file}"
        )
    return token


@dataclass(frozen=True)
class Guard:
    """In front of all pages: refuses whoever may not look, and adds the headers that every answer has.

    With a token, who has it may look. Without, only processes of this account (and root's) on this host.
    """

    app: ASGIApp
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._answer(HTTPConnection(scope)) if scope["type"] == "http" else _refuse(403, "no websockets here")
        await (answer or self.app)(scope, receive, send_with_headers)

    def _answer(self, request: HTTPConnection) -> Response | None:
        """What to say instead of the page; None where the page may be shown."""
        if self.token is None:
            return _check_loopback(request)
        given = request.query_params.get("token")
        if given is not None and _is_same(given, self.token):
            return _remember(request, self.token)
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(bearer.strip(), self.token):
            return None
        if _is_same(request.cookies.get(COOKIE, ""), _render_cookie(self.token)):
            return None
        return _refuse(401, "This page needs a token: open it once as http://…/?token=TOKEN, with the token that "
                       "is in the token file of samgrid web.")  # fmt: skip


def _check_loopback(request: HTTPConnection) -> Response | None:
    # A foreign web page may have made its own name mean 127.0.0.1 (DNS rebinding): then that name is in Host.
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in _OWN_NAMES:
        return _refuse(403, f"This page answers to http://localhost only, not to {host!r}.")
    client, server = request.scope.get("client"), request.scope.get("server")
    uid = find_peer_uid(tuple(client), tuple(server)) if client and server else None
    if uid not in (0, os.geteuid()):
        return _refuse(403, "This page is for another account of this host; samgrid web --token-file lets others look.")
    return None


def _remember(request: HTTPConnection, token: str) -> Response:
    """Back to the page without the token in its address, from where it would get into histories and logs."""
    url = request.url.remove_query_params("token")
    # A second slash at the beginning would make the rest a host's name.
    path = "/" + url.path.lstrip("/\\")
    answer = RedirectResponse(path + (f"?{url.query}" if url.query else ""), 303)
    answer.set_cookie(COOKIE, _render_cookie(token), httponly=True, samesite="strict")
    return answer


def _render_cookie(token: str) -> str:
    # Browsers send cookies to all ports of a host: another service there shall not learn the token itself.
    return hashlib.sha256(b"samgrid web " + token.encode()).hexdigest()


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _refuse(status: int, sentence: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="samgrid"'} if status == 401 else None
    return PlainTextResponse(f"{sentence}\n", status, headers)
