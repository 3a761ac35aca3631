"""Files that tests hand on as credentials."""

import base64
import json
from pathlib import Path


def write_secret(path: Path, content: bytes) -> Path:
    """The file, in the place of the one before, as programs that renew credentials write it."""
    new = path.with_name(f"{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    return new.rename(path)


def make_token(expires: float, subject: str = "anna") -> bytes:
    """A JSON Web Token that expires then, in seconds since 1970; nobody has signed it."""
    claims = json.dumps({"sub": subject, "exp": expires}).encode()
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in (b'{"alg":"none"}', claims, b"-"))
