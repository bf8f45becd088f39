"""At which addresses processes listen, as the kernel tells it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from tests.e2e.harness import children

_LISTEN = "0A"


def family(pid: int) -> list[int]:
    """A process, and all below it."""
    return [pid, *(p for child in children(pid) for p in family(child))]


def listening(pids: Iterable[int]) -> set[IPv4Address | IPv6Address]:
    """The addresses at which any of these processes accepts connections over TCP."""
    mine = {inode for pid in pids for inode in _sockets(pid)}
    return {address for inode, address in _listeners() if inode in mine}


def reachable(pids: Iterable[int]) -> set[str]:
    """Those of them that other machines may reach."""
    return {str(address) for address in listening(pids) if not _own(address)}


def _own(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _sockets(pid: int) -> Iterable[str]:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(file)
            if target.startswith("socket:["):
                yield target[8:-1]


def _listeners() -> Iterable[tuple[str, IPv4Address | IPv6Address]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTEN:
                yield inode, _address(local.partition(":")[0])


def _address(text: str) -> IPv4Address | IPv6Address:
    """The kernel prints words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return ip_address(b"".join(words))
