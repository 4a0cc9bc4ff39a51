"""Finds the TCP ports on which given processes listen, in the network of the agent.

The kernel lists listening sockets with their inodes in /proc/net/tcp and tcp6, and a process's sockets in /proc/PID/fd.
A port counts only if every socket that a connection to it could reach is one of these processes': a port may be shared
(SO_REUSEPORT), and somebody else's is not theirs. Sources: proc_pid_net(5), socket(7).
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_LISTENS: Final = "0A"
# A stage that has more open files than this is not searched further.
MOST_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: the address of this host at which it can be reached, its port and inode."""

    address: str
    port: int
    inode: int


def listeners_of(processes: Iterable[int]) -> dict[int, Listener]:
    """Return by port the sockets of these processes that can be reached from this host alone, if nobody else's can be
    reached there. Reads up to ``MOST_FILES`` links: not for an event loop."""
    ports: dict[int, list[Listener]] = defaultdict(list)
    for each in _listening():
        ports[each.port].append(each)
    own = _own(processes, {each.inode for found in ports.values() for each in found})
    return {port: found[0] for port, found in ports.items() if all(each.inode in own for each in found)}


def listener_at(port: int, processes: Iterable[int]) -> Listener | None:
    """Return what :func:`listeners_of` has for a port; stops where it has seen enough."""
    found = [each for each in _listening() if each.port == port]
    wanted = {each.inode for each in found}
    return found[0] if found and _own(processes, wanted) == wanted else None


def _listening() -> Iterator[Listener]:
    """Yield all sockets that listen on a loopback address or on all addresses."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as table:
                next(table)
                rows = [row for line in table if (row := line.split())[3] == _LISTENS]
        except OSError:  # a kernel without IPv6
            continue
        for row in rows:
            address, _colon, port = row[1].partition(":")
            if host := _reached_at(_address(address)):
                yield Listener(host, int(port, 16), int(row[9]))


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address of the kernel's tables: words of 32 bits in the order of this machine's bytes."""
    packed = bytes.fromhex(digits)
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))


def _reached_at(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return where a socket with this address is reached on this host; empty if only from outside."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address) if address.is_loopback else ""


def _own(processes: Iterable[int], wanted: set[int]) -> set[int]:
    """Return which of these inodes are of sockets of those processes that are in this process's network."""
    found: set[int] = set()
    for link in itertools.islice(_links(processes), MOST_FILES) if wanted else ():
        if link.startswith("socket:[") and (inode := int(link[8:-1])) in wanted:
            found.add(inode)
            if found == wanted:
                break
    return found


def _links(processes: Iterable[int]) -> Iterator[str]:
    """Yield what each open file of those processes is; empty if it is gone."""
    here = os.readlink("/proc/self/ns/net")
    for pid in processes:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") != here:
                continue
            with os.scandir(f"/proc/{pid}/fd") as files:
                for file in files:
                    try:
                        yield os.readlink(file.path)
                    except OSError:
                        yield ""
        except OSError:  # it is gone, or of another user
            continue
