"""Whose process is at the other end of a connection on this host, as Linux tells in /proc/net/tcp (see proc(5))."""

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

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
