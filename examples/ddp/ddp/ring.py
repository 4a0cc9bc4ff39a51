"""A group of processes as a ring of sockets: everybody sends to the next and receives from the one before."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

PATIENCE_S = 60.0
_LENGTH = struct.Struct("<Q")


class Ring:
    """See :class:`ddp.group.Group`. Rank 0 listens at the meeting point and tells everybody who is next.

    Whoever loses a neighbour raises ConnectionError, and so the next one, until all have left.
    """

    name = "ring"

    def __init__(self, rank: int, size: int, host: str, port: int) -> None:
        self.rank, self.size = rank, size
        with socket.create_server(("", 0), backlog=size) as door:
            own = door.getsockname()[1]
            addresses = _meet_as_first(port, size, own) if rank == 0 else _meet(host, port, rank, own)
            if rank != 0:
                addresses[0] = (host, addresses[0][1])
            door.settimeout(PATIENCE_S)
            self._next = _dial(*addresses[(rank + 1) % size])
            self._before, _ = door.accept()
        for link in (self._next, self._before):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(PATIENCE_S)

    def gather(self, mine: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        found: list[NDArray[np.float64]] = [mine] * self.size
        passing = mine.tobytes()
        for turn in range(1, self.size):
            # Both at once: with everybody sending first, a vector longer than the sockets' buffers would never arrive.
            failure: list[OSError] = []
            sender = threading.Thread(target=_send, args=(self._next, passing, failure))
            sender.start()
            try:
                passing = _receive(self._before)
            finally:
                sender.join()
            if failure:
                raise failure[0]
            found[(self.rank - turn) % self.size] = np.frombuffer(passing).reshape(mine.shape)
        return found

    def close(self) -> None:
        self.gather(np.zeros(1))
        self._next.close()
        self._before.close()


def _meet_as_first(port: int, size: int, own: int) -> list[tuple[str, int]]:
    with socket.create_server(("", port), backlog=size) as door:
        door.settimeout(PATIENCE_S)
        addresses: list[tuple[str, int]] = [("127.0.0.1", own)] + [("", 0)] * (size - 1)
        guests = []
        while len(guests) < size - 1:
            guest, (address, *_) = door.accept()
            told = json.loads(_receive(guest))
            addresses[told["rank"]] = (address, told["port"])
            guests.append(guest)
        for guest in guests:
            _send(guest, json.dumps(addresses).encode(), [])
            guest.close()
    return addresses


def _meet(host: str, port: int, rank: int, own: int) -> list[tuple[str, int]]:
    with _dial(host, port) as link:
        _send(link, json.dumps({"rank": rank, "port": own}).encode(), [])
        told: list[Any] = json.loads(_receive(link))
    return [(str(address), int(number)) for address, number in told]


def _dial(host: str, port: int) -> socket.socket:
    """Call until somebody answers: nodes do not start at the same moment."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _send(link: socket.socket, content: bytes, failure: list[OSError]) -> None:
    try:
        link.sendall(_LENGTH.pack(len(content)) + content)
    except OSError as error:
        failure.append(error)


def _receive(link: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = link.recv(min(count - len(content), 1 << 20))
        if not piece:
            raise ConnectionError("a neighbour left the ring")
        content += piece
    return bytes(content)
