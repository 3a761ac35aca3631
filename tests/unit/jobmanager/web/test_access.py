"""Who may look at the status page, what every answer tells browsers, and whose a connection is."""

import os
import socket
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from jobmanager import UserError
from jobmanager.web import access
from jobmanager.web.access import COOKIE, Guard, find_peer_uid, make_token, read_token
from jobmanager.web.serving import read_listen

TOKEN = "a-token-of-24-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def show(_: Request) -> PlainTextResponse:
    """The page behind the guard."""
    return PlainTextResponse("secret")


def client_of(url: str = "http://localhost:8642", *, on_loopback: bool = True) -> TestClient:
    guard = Middleware(Guard, token=TOKEN, on_loopback=on_loopback)
    app = Starlette(routes=[Route("/{path:path}", show)], middleware=[guard])
    return TestClient(app, base_url=url, follow_redirects=False)


@pytest.mark.parametrize(
    ("url", "status"),
    [
        pytest.param("http://127.0.0.1:8642", 200, id="address"),
        pytest.param("http://localhost:8642", 200, id="name"),
        pytest.param("http://LOCALHOST", 200, id="no port"),
        pytest.param("http://localhost:9000", 200, id="through a tunnel"),
        pytest.param("http://[::1]:8642", 200, id="IPv6"),
        pytest.param("http://[::1]", 200, id="IPv6 without port"),
        pytest.param("http://evil.example:8642", 403, id="a foreign name that means loopback"),
        pytest.param("http://localhost.evil.example", 403, id="a name that begins like ours"),
        pytest.param("http://192.0.2.1:8642", 403, id="another address"),
    ],
)
def test_on_loopback_only_names_of_loopback_are_answered(url: str, status: int) -> None:
    assert client_of(url).get("/", headers=BEARER).status_code == status


@pytest.mark.parametrize(
    "host", ["localhost:8642@evil.example", "localhost:", "localhost:x", "localhost:8642:1", "::1", "[::1]x", "", " "]
)
def test_what_only_begins_like_a_name_of_loopback_is_refused(host: str) -> None:
    assert client_of().get("/", headers=BEARER | {"Host": host}).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"Sec-Fetch-Site": "none"}, 200, id="typed into the address line"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="a page of ours"),
        pytest.param({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8642"}, 200, id="a script of ours"),
        pytest.param({"Origin": "http://localhost:8642"}, 200, id="our origin"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="another site"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403, id="a link on another site"),
        pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="another port"),
        pytest.param({"Sec-Fetch-Site": "odd"}, 403, id="a word to come"),
        pytest.param({"Origin": "http://localhost:9000"}, 403, id="another port's origin"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="another site's origin"),
        pytest.param({"Origin": "null"}, 403, id="an origin that hides"),
    ],
)
def test_what_another_site_s_page_asks_for_is_refused(
    headers: dict[str, str] | list[tuple[str, str]], status: int
) -> None:
    given = [*BEARER.items(), *(headers.items() if isinstance(headers, dict) else headers)]
    assert client_of().get("/query?q=1", headers=given).status_code == status


def test_what_is_longer_than_any_address_of_a_page_is_refused() -> None:
    assert client_of().get(f"/jobs/aaaaaaaa/local/{'9' * 5000}", headers=BEARER).status_code == 414


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        pytest.param("/", {}, 401, id="nothing"),
        pytest.param("/", {"Authorization": f"Bearer {TOKEN}"}, 200, id="bearer"),
        pytest.param("/", {"Authorization": f"bearer  {TOKEN} "}, 200, id="bearer, written otherwise"),
        pytest.param("/", {"Authorization": f"Basic {TOKEN}"}, 401, id="another scheme"),
        pytest.param("/", {"Authorization": f"Bearer {TOKEN}x"}, 401, id="longer"),
        pytest.param("/", {"Authorization": f"Bearer {TOKEN[:-1]}"}, 401, id="shorter"),
        pytest.param("/", {"Authorization": "Bearer \xff\xfe"}, 401, id="no ASCII"),
        pytest.param("/", {"Cookie": f"{COOKIE}-8642={TOKEN}"}, 401, id="the token itself as cookie"),
        pytest.param("/?token=wrong", {}, 401, id="wrong in the address"),
        pytest.param("/?token=", {}, 401, id="empty in the address"),
        pytest.param(f"/?token={TOKEN}", {}, 303, id="in the address"),
    ],
)
def test_a_token_is_asked_for(address: str, headers: dict[str, str], status: int) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = client_of("http://somewhere:8642", on_loopback=False).get(address, headers=raw)
    assert answer.status_code == status
    assert (answer.headers.get("connection") == "close") == (status == 401)
    assert ("secret" in answer.text) == (status == 200)


def test_the_token_leaves_the_address_and_becomes_a_cookie() -> None:
    client = client_of("http://somewhere:8642", on_loopback=False)
    answer = client.get(f"/jobs/k3f9zq2m?state=failed&token={TOKEN}&page=2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/k3f9zq2m?state=failed&page=2")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert client.get(answer.headers["location"]).text == "secret"


def test_a_cookie_is_of_no_use_to_another_account(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of()
    for uid, status in ((1000, 200), (1001, 401)):
        monkeypatch.setattr(access, "find_peer_uid", lambda client, server, uid=uid: uid)
        if uid == 1000:
            client.get(f"/?token={TOKEN}")
        assert client.get("/").status_code == status


def test_pages_of_several_accounts_behind_one_name_keep_a_cookie_each() -> None:
    cookies = [
        client_of(f"http://localhost:{port}").get(f"/?token={TOKEN}").headers["set-cookie"].partition("=")[0]
        for port in (8642, 8643)
    ]
    assert cookies == ["samgrid-web-8642", "samgrid-web-8643"]


@pytest.mark.parametrize("host", ["[", "host:²", "host:8642;x", "", "a:b:c", "[::1]:"])
def test_the_way_in_needs_no_sensible_host(host: str) -> None:
    answer = client_of(on_loopback=False).get(f"/a%20b?token={TOKEN}&q=%26", headers={"Host": host.encode("latin-1")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/a%20b?q=%26")


def test_no_two_tokens_are_the_same() -> None:
    assert len({make_token() for _ in range(9)}) == 9
    assert len(make_token()) >= 32


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_the_way_back_stays_on_this_host(path: str) -> None:
    location = client_of().get(f"http://localhost:8642{path}?token={TOKEN}").headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


def test_every_answer_tells_browsers_what_not_to_do() -> None:
    for answer in (
        client_of().get("/", headers=BEARER),
        client_of().get("/"),
        client_of("http://evil.example").get("/"),
    ):
        headers = answer.headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


# --- token file and address


def test_the_token_is_read_from_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        pytest.param(TOKEN, 0o640, "chmod 600", id="the group can read it"),
        pytest.param(TOKEN, 0o604, "chmod 600", id="all can read it"),
        pytest.param("short", 0o600, "at least 16", id="short"),
        pytest.param("", 0o600, "at least 16", id="empty"),
        pytest.param("two words that are long enough", 0o600, "one ASCII word", id="several words"),
        pytest.param("ünïcode-ünïcode-ünïcode", 0o600, "one ASCII word", id="no ASCII"),
    ],
)
def test_a_bad_token_file_is_refused_with_the_way_out(content: str, mode: int, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(UserError, match=complaint) as refused:
        read_token(file)
    assert str(file) in str(refused.value)


def test_a_token_file_is_no_link_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        read_token(tmp_path / "token")
    with pytest.raises((UserError, OSError)):
        read_token(tmp_path)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        pytest.param("127.0.0.1:8642", "127.0.0.1", 8642, id="IPv4"),
        pytest.param("[::1]:80", "[::1]", 80, id="IPv6"),
        pytest.param("localhost:0", "127.0.0.1", 0, id="name"),
        pytest.param("0.0.0.0:65535", "0.0.0.0", 65535, id="all"),
    ],
)
def test_an_address_and_its_port_are_read(text: str, host: str, port: int) -> None:
    listen = read_listen(text)
    assert (listen.host, listen.port) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "8642", ":8642", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "host:1", "1.2.3.4:x"]
)
def test_anything_else_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="no address with a port"):
        read_listen(text)


# --- whose a connection is


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
def test_the_other_end_of_a_connection_is_known_by_its_user(family: socket.AddressFamily, host: str) -> None:
    listener = socket.socket(socket.AF_INET6 if host == "::1" else socket.AF_INET)
    with listener, socket.socket(family) as client:
        try:
            listener.bind((host.removeprefix("::ffff:"), 0))
            listener.listen()
            client.connect((host, listener.getsockname()[1]))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        server, address = listener.accept()
        with server:
            assert find_peer_uid(address[:2], server.getsockname()[:2]) == os.geteuid()
            assert find_peer_uid((address[0], 1), server.getsockname()[:2]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account for a moment")
def test_a_process_of_another_account_is_known_for_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.seteuid(65534)
        try:
            client = socket.socket()
        finally:
            os.seteuid(0)
        client.connect(listener.getsockname())
        server, address = listener.accept()
        with client, server:
            assert find_peer_uid(address, server.getsockname()) == 65534


def test_a_socket_that_its_owner_has_closed_is_nobody_s() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, address = listener.accept()
        with server:
            assert find_peer_uid(address, server.getsockname()) == os.geteuid()
            # The kernel keeps it, as root's, until the other end closes, too.
            client.close()
            assert find_peer_uid(address, server.getsockname()) is None
