"""Whose proxy a job came with: the subject of the certificate behind it, for the audit record."""

import logging
import re

from gram_shims.description import JobDescription

logger = logging.getLogger(__name__)

_PROXY = "X509_USER_PROXY"
_TIMEOUT = 5.0
_OF_PROXIES = re.compile(r"(/CN=(\d+|proxy|limited proxy))+$")
"""What each delegation adds to the subject (RFC 3820, and the older proxies of Globus)."""


def find_subject(description: JobDescription) -> str:
    """The subject in Globus' form, ``/O=Grid/CN=A. Physicist``; empty where it cannot be found out."""
    proxy = description.environment.get(_PROXY, "")
    if not proxy.startswith("/") or "\0" in proxy:
        return ""
    import subprocess  # slow to load, and only an audited site needs it

    command = ["openssl", "x509", "-in", proxy, "-noout", "-subject", "-nameopt", "compat"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the subject of the proxy %s cannot be read: %s", proxy, error)
        return ""
    return read_subject(done.stdout.decode(errors="replace"))


def read_subject(line: str) -> str:
    """The subject in what ``openssl x509 -subject -nameopt compat`` prints, without what proxies add."""
    return _OF_PROXIES.sub("", line.strip().removeprefix("subject=").strip())
