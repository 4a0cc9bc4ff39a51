"""Measures bandwidth on request: between two hosts, between NUMA nodes, of a folder. Bounded in size and time.

Nothing of it runs by itself. The listening side accepts one connection, from a client that knows its key, and ends.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.decode import mapping
from agents.devices.vendors.cpu import core_list

MOST_S = 10.0
MOST_BYTES = 4 << 30
WAIT_S = 60.0
BLOCK = 1 << 20
NUMA_BYTES = 64 << 20
KEY_BYTES = 32


def listen(host: str, port: int, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Receive the bytes of one ``send`` and return how many came and how fast. Raises OSError if no client connects."""
    key = secrets.token_hex(KEY_BYTES // 2)
    with socket.create_server((host, port)) as server:
        server.settimeout(WAIT_S)
        say({"listening": server.getsockname()[1], "key": key})
        while True:
            connection, address = server.accept()
            with connection:
                connection.settimeout(MOST_S)
                if not _has_key(connection, key):
                    continue
                told = _sink(connection)
                connection.sendall(json.dumps(told).encode())
                return {"from": address[0], **told}


def _has_key(connection: socket.socket, key: str) -> bool:
    """Whether the client begins with the key; one that does not is ignored."""
    try:
        return hmac.compare_digest(_exactly(connection, KEY_BYTES), key.encode())
    except OSError:
        return False


def _sink(connection: socket.socket) -> dict[str, Any]:
    received, began, buffer = 0, time.monotonic(), bytearray(BLOCK)
    while received < 2 * MOST_BYTES and time.monotonic() - began < 2 * MOST_S:
        count = connection.recv_into(buffer)
        if not count:
            break
        received += count
    return _rate(received, time.monotonic() - began)


def _exactly(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = connection.recv(count - len(got))
        if not piece:
            break
        got += piece
    return got


def send(host: str, port: int, key: str, most_bytes: int = 1 << 30, most_s: float = 5.0) -> dict[str, Any]:
    """Send to a ``listen`` until a bound is reached; return what the other side measured. Raises OSError."""
    most_bytes, most_s = min(most_bytes, MOST_BYTES), min(most_s, MOST_S)
    with socket.create_connection((host, port), timeout=MOST_S) as connection:
        try:
            answer = _pour(connection, key, most_bytes, most_s)
        except TimeoutError:
            raise
        except OSError:  # the kind depends on when the other side closed the connection
            answer = b""
    if not answer:
        raise OSError("the other side closed the line: is the key right?")
    return {"to": host, **mapping(answer)}


def _pour(connection: socket.socket, key: str, most_bytes: int, most_s: float) -> bytes:
    block = os.urandom(BLOCK)
    connection.sendall(key.encode()[:KEY_BYTES].ljust(KEY_BYTES))
    sent, began = 0, time.monotonic()
    while sent < most_bytes and time.monotonic() - began < most_s:
        connection.sendall(block)
        sent += len(block)
    connection.shutdown(socket.SHUT_WR)
    return connection.recv(4096)


def between_numa_nodes(root: Path = Path("/"), most_s: float = 0.3) -> list[dict[str, Any]]:
    """Measure copies from the memory of each NUMA node by a core of each; uses one core at a time, briefly per pair."""
    allowed = os.sched_getaffinity(0)
    nodes: dict[int, int] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        cores = [core for core in core_list((folder / "cpulist").read_text().strip()) if core in allowed]
        if cores:
            nodes[int(folder.name[4:])] = cores[0]
    found = []
    try:
        for source, near in nodes.items():
            os.sched_setaffinity(0, {near})
            memory = bytearray(b"\1") * NUMA_BYTES  # the kernel puts it where it is first written
            for target, core in nodes.items():
                os.sched_setaffinity(0, {core})
                copy = bytearray(b"\2") * NUMA_BYTES
                copied, began = 0, time.monotonic()
                while time.monotonic() - began < min(most_s, MOST_S):
                    copy[:] = memory
                    copied += NUMA_BYTES
                found.append({"from_node": source, "to_node": target, **_rate(copied, time.monotonic() - began)})
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def of_folder(folder: Path, most_bytes: int = 256 << 20, most_s: float = 5.0) -> dict[str, Any]:
    """Write a file there to the disk itself, and read it back past the cache; the file is removed. Raises OSError."""
    most_bytes, most_s = min(most_bytes, MOST_BYTES), min(most_s, MOST_S)
    path = folder / f".switchyard-bandwidth-{secrets.token_hex(8)}"
    block = os.urandom(BLOCK)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        written, began = 0, time.monotonic()
        while written < most_bytes and time.monotonic() - began < most_s:
            written += os.write(file, block)
        os.fsync(file)
        write = _rate(written, time.monotonic() - began)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
        read, began = 0, time.monotonic()
        while time.monotonic() - began < most_s and (piece := os.read(file, BLOCK)):
            read += len(piece)
        return {"folder": str(folder), "write": write, "read": _rate(read, time.monotonic() - began)}
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _rate(count: int, span_s: float) -> dict[str, Any]:
    return {"bytes": count, "s": round(span_s, 4), "bytes_per_s": round(count / span_s) if span_s > 0 else None}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m agents bandwidth", description=__doc__)
    what = top.add_mutually_exclusive_group(required=True)
    what.add_argument("--listen", metavar="ADDRESS", help="wait here for one measurement from another host")
    what.add_argument("--to", metavar="HOST:PORT", help="measure the line to a host that listens; needs --key")
    what.add_argument("--numa", action="store_true", help="copy between the memories of this host's NUMA nodes")
    what.add_argument("--folder", type=Path, help="write a file into a folder and read it back")
    top.add_argument("--port", type=int, default=0, help="where to listen (default: any)")
    top.add_argument("--key", default="", help="what the listening side printed")
    top.add_argument("--seconds", type=float, default=5.0, help=f"at most so long, up to {MOST_S:g}")
    top.add_argument("--mib", type=int, default=256, help=f"at most so much, up to {MOST_BYTES >> 20}")
    return top


def main(arguments: list[str]) -> int:
    """Print the measurements as JSON. Exit codes: 0 measured, 1 not possible, 2 wrong usage."""
    options = parser().parse_args(arguments)

    def say(found: Any) -> None:
        print(json.dumps(found), flush=True)

    try:
        if options.listen is not None:
            say(listen(options.listen, options.port, say))
        elif options.to is not None:
            host, _, port = options.to.rpartition(":")
            if not host or not port.isdigit():
                raise OSError(f'"{options.to}" is no HOST:PORT')
            say(send(host, int(port), options.key, options.mib << 20, options.seconds))
        elif options.numa:
            say(between_numa_nodes(most_s=min(options.seconds, 1.0)))
        else:
            say(of_folder(options.folder, options.mib << 20, options.seconds))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
