"""Decides who may see the pages, and tells browsers what they must not do with them; finds out who has connected."""

import hashlib
import hmac
import os
import re
import secrets
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobmanager import UserError

COOKIE = "samgrid-web"
_SHORTEST_TOKEN = 16
_LONGEST_PATH = 1000
_OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
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


def make_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(24)


def read_token(file: Path) -> str:
    """The token in a file that only its owner can read.

    :raises UserError, OSError: the file is missing, others can read it, or the token is too weak.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise UserError(f"the token file {file} must be a regular file of your own")
        if status.st_mode & 0o077:
            raise UserError(f"others can read the token file {file}: chmod 600 it, and put a new token into it")
        token = stream.read(1000).decode("ascii", "replace").strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"the token in {file} must be one ASCII word of at least {_SHORTEST_TOKEN} characters: "
            f"openssl rand -hex 32 >{file}"
        )
    return token


@dataclass(frozen=True)
class Guard:
    """In front of all pages: checks access, and adds the headers that every answer has.

    The token gives access. On a loopback address, only loopback names are accepted as Host.
    """

    app: ASGIApp
    token: str
    on_loopback: bool

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
        """The answer instead of the page; None if the page may be shown."""
        return self._check_host(request) or _check_origin(request) or self._check_token(request) or _check_path(request)

    def _check_host(self, request: HTTPConnection) -> Response | None:
        # With DNS rebinding, a foreign page's own name resolves to 127.0.0.1: then that name is in Host.
        host = request.headers.get("Host", "")
        if self.on_loopback and not _OWN_HOST.fullmatch(host):
            return _refuse(403, f"This page answers to http://localhost only, not to {host!r}.")
        return None

    def _check_token(self, request: HTTPConnection) -> Response | None:
        given = request.query_params.get("token")
        if given is not None and _is_same(given, self.token):
            return _remember(request, self._render_cookie(request))
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(bearer.strip(), self.token):
            return None
        if _is_same(request.cookies.get(_name_cookie(request), ""), self._render_cookie(request)):
            return None
        return _refuse(401, "This page needs a token: open it once as http://…/?token=TOKEN, the address that samgrid"
                       " web has printed, or with the token that is in its token file.")  # fmt: skip

    def _render_cookie(self, request: HTTPConnection) -> str:
        # Browsers send cookies to all ports of a host. Another account's service there must not learn the token, and
        # what it learns must be useless to that account.
        client, server = request.scope.get("client"), request.scope.get("server")
        who = find_peer_uid(tuple(client), tuple(server)) if self.on_loopback and client and server else None
        return hashlib.sha256(f"samgrid web {who} {self.token}".encode()).hexdigest()


def _check_origin(request: HTTPConnection) -> Response | None:
    """Refuse requests that another site's page causes; "same-site" may be another account's port of this host."""
    sites, origins = request.headers.getlist("Sec-Fetch-Site"), request.headers.getlist("Origin")
    if {*sites} <= {"none", "same-origin"} and all(
        origin.partition("://")[2] == request.headers.get("Host") for origin in origins
    ):
        return None
    return _refuse(403, "Another site's page has asked for this: put the address into your browser's address line.")


def _check_path(request: HTTPConnection) -> Response | None:
    # The path may contain a number, of which Python would read 4300 digits.
    return _refuse(414, "No page has so long an address.") if len(request.scope["path"]) > _LONGEST_PATH else None


def _remember(request: HTTPConnection, cookie: str) -> Response:
    """Redirect to the address without the token, which would otherwise get into histories and logs."""
    # After a second slash at the beginning, the rest would be a host name.
    path = "/" + quote(request.scope["path"].lstrip("/\\"))
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
    answer = RedirectResponse(path + (f"?{query}" if query else ""), 303)
    answer.set_cookie(_name_cookie(request), cookie, httponly=True, samesite="strict")
    return answer


def _name_cookie(request: HTTPConnection) -> str:
    # Browsers have one set of cookies for all ports of a host, where several accounts may have pages.
    port = request.headers.get("Host", "").rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isascii() and port.isdigit() else COOKIE


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _refuse(status: int, sentence: str) -> Response:
    # A refused client does not keep its connection.
    headers = {"Connection": "close"} | ({"WWW-Authenticate": 'Bearer realm="samgrid"'} if status == 401 else {})
    return PlainTextResponse(f"{sentence}\n", status, headers)


Address = tuple[str, int]
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
