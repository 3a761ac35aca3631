"""Credentials that a request hands to its local jobs: a proxy (RFC 3820) or a bearer token (WLCG profile) in a file."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobmanager.database.times import render_time
from sandbox.files import open_regular

_MOST_BYTES = 1 << 20
_MOST_CERTIFICATES = 20
_OPENSSL_PATIENCE = 10.0
_LAST_SECOND = 253_402_300_799.0
"""The end of the year 9999, after which nobody can write a time."""
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\n.*?\n-----END \1-----", re.DOTALL)


class BadCredential(Exception):
    """A file cannot be used as a credential; the message names the file, without its content."""


@dataclass(frozen=True)
class CredentialKind:
    """A kind of credential: the attribute that names its file, and the variable for programs."""

    attribute: str
    variable: str
    read_expiry: Callable[[bytes], float | None]
    """Raises ValueError with a description of what is wrong."""


def read_proxy_expiry(content: bytes) -> float | None:
    """When the first certificate of the chain expires, according to openssl; None if there is no openssl.

    :raises ValueError: it is no proxy, or one that is still being written.
    """
    blocks = [(found[1], found[0]) for found in _PEM.finditer(content.replace(b"\r\n", b"\n"))]
    certificates = [block for label, block in blocks if label == b"CERTIFICATE"]
    has_key = any(label.endswith(b"PRIVATE KEY") for label, _ in blocks)
    if not certificates or not has_key or len(blocks) < content.count(b"-----BEGIN "):
        raise ValueError("is no whole proxy: that has a certificate and its private key in PEM")
    if len(certificates) > _MOST_CERTIFICATES:
        raise ValueError(f"has more than {_MOST_CERTIFICATES} certificates")
    try:
        return min(map(_find_not_after, certificates))
    except FileNotFoundError:
        return None


def _find_not_after(certificate: bytes) -> float:
    import ssl  # this and below are slow to load, and most requests have no proxy
    import subprocess

    command = ["openssl", "x509", "-noout", "-enddate"]
    try:
        done = subprocess.run(command, input=certificate, capture_output=True, timeout=_OPENSSL_PATIENCE, check=True)
        return float(ssl.cert_time_to_seconds(done.stdout.decode("ascii").strip().removeprefix("notAfter=")))
    except (subprocess.SubprocessError, ValueError) as error:
        raise ValueError("has a certificate that openssl cannot read") from error


def read_token_expiry(content: bytes) -> float | None:
    """The claim ``exp`` of a JSON Web Token (RFC 7519); None if there is none, or the token is opaque.

    :raises ValueError: it is no token.
    """
    import base64
    import json

    token = content.strip()
    if not re.fullmatch(rb"[\x21-\x7e]+", token):
        raise ValueError("is no token: that is one word of printable ASCII")
    parts = token.split(b".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
        expires = float(claims["exp"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
    return expires if 0 <= expires <= _LAST_SECOND else None


PROXY = CredentialKind("x509_user_proxy", "X509_USER_PROXY", read_proxy_expiry)
TOKEN = CredentialKind("bearer_token_file", "BEARER_TOKEN_FILE", read_token_expiry)
KINDS: Mapping[str, CredentialKind] = {kind.attribute: kind for kind in (PROXY, TOKEN)}
"""By their attributes."""


def read_content(path: Path) -> bytes:
    """The content of a credential's file, which must be a regular file that only this account can open.

    :raises BadCredential: it is not, or it cannot be read.
    """
    try:
        with open_regular(path) as stream:
            status = os.fstat(stream.fileno())
            fault = _find_fault(status)
            content = b"" if fault else stream.read(_MOST_BYTES + 1)
    except OSError as error:
        why = "it is a symbolic link: name the file itself" if error.errno == errno.ELOOP else error.strerror
        raise BadCredential(f"{path} cannot be read: {why}") from error
    if fault:
        raise BadCredential(f"{path} {fault}")
    if len(content) > _MOST_BYTES:
        raise BadCredential(f"{path} has more than {_MOST_BYTES} bytes")
    return content


def _find_fault(status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        return "belongs to another account"
    return "can be opened by others: chmod 600 it" if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) else ""


def read_expiry(kind: CredentialKind, path: Path, content: bytes) -> float | None:
    """When a file's content expires (seconds since 1970; None if not known); raises BadCredential: it is none."""
    try:
        return kind.read_expiry(content)
    except ValueError as error:
        raise BadCredential(f"{path} {error}") from error


def find_credential_faults(sources: Mapping[str, Path], now: float) -> Iterable[str]:
    """What is wrong with files of credentials; ``sources`` are by attribute."""
    for name, path in sources.items():
        try:
            expires = read_expiry(KINDS[name], path, read_content(path))
        except BadCredential as error:
            yield f"{name}: {error}"
            continue
        if expires is not None and expires <= now:
            yield f"{name}: {path} has expired at {render_time(expires)}: renew it first"
