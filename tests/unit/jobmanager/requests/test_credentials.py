"""Files that are handed to programs as credentials: which are not, and when they expire."""

import base64
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobmanager.requests.acceptance import accept_grid_job
from jobmanager.requests.attributes import BadRequest
from jobmanager.requests.credentials import BadCredential, read_content, read_proxy_expiry, read_token_expiry
from jobmanager.site.account import Account
from tests.unit.jobmanager.credential_files import make_token, write_secret

PROXY = (Path(__file__).parents[3] / "recorded" / "credentials" / "proxy.pem").read_bytes()
EXPIRES = datetime(2026, 11, 26, 21, 52, 44, tzinfo=UTC).timestamp()
"""Of the first certificate in it; the other one is valid for a century."""
END = b"-----END CERTIFICATE-----\n"


def submit(account: Account, **given: str) -> str:
    request = {"samgrid_type": "command", "executable": "/bin/true", **given}
    return accept_grid_job(account, [(name, (value,)) for name, value in request.items()], Path("/"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl reads certificates, and is not installed")
@pytest.mark.parametrize("content", [PROXY, PROXY.replace(b"\n", b"\r\n")], ids=["as it is", "with CR LF"])
def test_a_proxy_expires_with_the_first_certificate_of_its_chain(content: bytes) -> None:
    head, tail = content.split(b"-----END PRIVATE KEY-----")
    assert read_proxy_expiry(content) == EXPIRES
    assert read_proxy_expiry(tail.lstrip() + head + b"-----END PRIVATE KEY-----\n") == EXPIRES


def test_without_openssl_it_is_not_known_when_a_proxy_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_proxy_expiry(PROXY) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "no whole proxy", id="empty"),
        pytest.param(PROXY[: PROXY.index(b"PRIVATE KEY")], "no whole proxy", id="no key"),
        pytest.param(PROXY[PROXY.index(END) + len(END) : PROXY.rindex(b"-----BEGIN")], "no whole proxy", id="key only"),
        pytest.param(PROXY[:-30], "no whole proxy", id="being written"),
        pytest.param(PROXY + PROXY * 20, "more than 20", id="endless"),
    ],
)
def test_what_is_no_whole_proxy_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_proxy_expiry(content)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl reads certificates, and is not installed")
def test_a_certificate_that_openssl_cannot_read_is_refused() -> None:
    with pytest.raises(ValueError, match="openssl cannot read"):
        read_proxy_expiry(PROXY.replace(b"MIIB", b"AAAA"))


def _jwt(claims: object) -> bytes:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return b".".join((b"e30", part, b"c2ln"))


@pytest.mark.parametrize(
    ("content", "expires"),
    [
        pytest.param(make_token(1_800_000_000), 1_800_000_000, id="a token"),
        pytest.param(make_token(1_800_000_000) + b"\n", 1_800_000_000, id="in a line"),
        pytest.param(_jwt({"sub": "x"}), None, id="without exp"),
        pytest.param(_jwt({"exp": "soon"}), None, id="exp no number"),
        pytest.param(_jwt({"exp": 1e300}), None, id="after the year 9999"),
        pytest.param(_jwt({"exp": float("nan")}), None, id="NaN"),
        pytest.param(_jwt({"exp": -1}), None, id="before 1970"),
        pytest.param(_jwt([1]), None, id="no object"),
        pytest.param(b"a.!!.b", None, id="no base64"),
        pytest.param(b"opaque", None, id="no JSON Web Token"),
    ],
)
def test_a_token_says_itself_when_it_expires(content: bytes, expires: float | None) -> None:
    assert read_token_expiry(content) == expires


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\0b", "ä".encode()])
def test_what_is_no_word_is_no_token(content: bytes) -> None:
    with pytest.raises(ValueError, match="is no token"):
        read_token_expiry(content)


def _link(path: Path) -> None:
    write_secret(path.with_name("real"), b"secret")
    path.symlink_to("real")


def _open_to_others(path: Path) -> None:
    write_secret(path, b"secret")
    path.chmod(0o640)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda path: None, "No such file", id="none"),
        pytest.param(_link, "is a symbolic link", id="link"),
        pytest.param(os.mkfifo, "no regular file", id="pipe"),
        pytest.param(Path.mkdir, "no regular file", id="folder"),
        pytest.param(_open_to_others, "can be opened by others: chmod 600 it", id="open to others"),
        pytest.param(lambda path: write_secret(path, b"secret" * 200_000), "has more than", id="large"),
    ],
)
def test_only_a_file_of_the_account_alone_is_a_credential(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "token")
    with pytest.raises(BadCredential, match=words) as caught:
        read_content(tmp_path / "token")
    assert str(tmp_path / "token") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_of_another_account_is_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secret(tmp_path / "token", b"secret")
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "token").stat().st_uid + 1)
    with pytest.raises(BadCredential, match="belongs to another account"):
        read_content(tmp_path / "token")


def test_a_request_with_a_credential_that_has_expired_or_cannot_be_one_is_refused(
    account: Account, tmp_path: Path
) -> None:
    write_secret(tmp_path / "token", make_token(1_000_000_000))
    with pytest.raises(BadRequest) as caught:
        submit(account, bearer_token_file=str(tmp_path / "token"), x509_user_proxy=str(tmp_path / "proxy"))
    assert caught.value.faults == [
        f"x509_user_proxy: {tmp_path}/proxy cannot be read: No such file or directory",
        f"bearer_token_file: {tmp_path}/token has expired at 2001-09-09T01:46:40Z: renew it first",
    ]
    with pytest.raises(BadRequest, match="bearer_token_file must be an absolute path"):
        submit(account, bearer_token_file="token")


def test_a_request_without_credentials_has_none(account: Account) -> None:
    assert account.database.grid_jobs.get(submit(account, x509_user_proxy="")).credentials == []
