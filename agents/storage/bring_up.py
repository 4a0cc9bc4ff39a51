"""Starts a node's staging: its content store on disk, its server for other nodes, and the operator's settings."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agents.decode import digits, setting
from agents.isolation.beneath import FileRights
from agents.link.server import Server, is_loopback
from agents.storage import certificate
from agents.storage.content_store import ContentStore
from agents.storage.fetch import Fetcher
from agents.storage.peers import Keys, PeerServer
from agents.storage.staging import Staging

CAP_SHARE: Final = 0.2
CAP_BYTES: Final = 200 << 30
PEER_BYTES_PER_S: Final = 125_000_000  # one gigabit a second and host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the operator's options for inputs and outputs."""
    parser.add_argument(
        "--inputs-from",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder from which stages may name files as inputs; may be repeated",
    )
    parser.add_argument(
        "--serve-peers",
        metavar="ADDRESS[:PORT]",
        help="serve inputs and outputs to other nodes here, over TLS; without it only to nodes on this host",
    )
    parser.add_argument(
        "--peers-plain",
        action="store_true",
        help="serve other nodes, and fetch from them, without encryption: for a network of your own",
    )


def cap(folder: Path) -> int:
    """Return the size limit of the store in bytes: YARD_AGENT_CACHE_BYTES, else a fifth of the disk, at most 200
    GiB."""
    return setting("YARD_AGENT_CACHE_BYTES", min(CAP_BYTES, int(shutil.disk_usage(folder).total * CAP_SHARE)))


def serve_address(asked: str | None, server: Server) -> tuple[str, int] | None:
    """Return the address to serve on: the requested one; else loopback if the control plane is there; else None. Raises
    ValueError."""
    if asked:
        host, _, port = asked.rpartition(":") if asked.count(":") == 1 else (asked, "", "0")
        if (number := digits(port)) is None or number > 65535:
            raise ValueError(
                f'--serve-peers {asked}: give an address, or an address and a port such as "10.0.0.7:8700"'
            )
        return host, number
    return ("127.0.0.1", 0) if is_loopback(urlsplit(server.url).hostname or "") else None


def open_staging(
    state: Path, server: Server, options: argparse.Namespace, rights: FileRights, changed: Callable[[], None]
) -> Staging:
    """Return the staging of a node, with its server if there is one; outputs of stages are read with ``rights``.

    ``changed`` is called on the loop when there is something to report.
    """
    folder = state / "stock"
    folder.mkdir(mode=0o700, exist_ok=True)
    store, keys = ContentStore(folder, cap(state)), Keys()
    address, url = serve_address(options.serve_peers, server), ""
    peers = None
    if address is not None:
        rate = setting("YARD_AGENT_PEER_BYTES_PER_S", PEER_BYTES_PER_S)
        context, pin = (None, "") if options.peers_plain else certificate.serving(folder)
        peers = PeerServer(address, store, keys, rate, context)
        peers.open()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        url = f"http://{host}:{peers.port}" if context is None else f"https://{host}:{peers.port}#{pin}"
    readable = [Path(each).resolve() for each in options.inputs_from]
    fetcher = Fetcher(server, store, readable, rights, options.peers_plain)
    return Staging(state / "parts", store, fetcher, keys, url, peers, changed)
