"""Fetches inputs of stages to this node: from nodes that have them, else from their source, each byte checked.

The control plane tells which nodes have an input, and appoints one node at a time to load a source that no node has
yet. The others wait and fetch from it, so that each source is loaded once.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agents.decode import BoundedDecoder, Undecodable, digits
from agents.ends import clause
from agents.isolation.beneath import OWN, FileRights, Folder
from agents.link.server import Channel, Server, ServerRefused, is_loopback
from agents.protocol import (
    MEASURED,
    MEASURED_BYTES,
    MEASURED_S,
    SOURCES_PATH,
    AskSources,
    Fetched,
    Input,
    Source,
    Sources,
)
from agents.runtimes import Unlaunchable
from agents.storage import manifest
from agents.storage.certificate import PIN, PinnedConnection
from agents.storage.content_store import ContentStore, Full
from agents.storage.manifest import PIECE, UnfitFile

log = logging.getLogger("switchyard.agent")
PATIENCE_S: Final = 3600.0
RENEW_S: Final = 15.0
_TRIES: Final = 3
# Smaller transfers measure latency more than bandwidth.
TELLING_BYTES: Final = 16 << 20
MOST_TOLD: Final = 256
_sources = BoundedDecoder[Sources](Sources)


class Unfetched(Unlaunchable):
    """An input could not be fetched."""


class Fetcher:
    """Fetches for one node. ``readable`` are the folders from which inputs by path may be read.

    They are read with ``rights``, those of the stages' user: what it may not read cannot be an input either. ``plain``
    allows other hosts to send without encryption.
    """

    def __init__(
        self, server: Server, store: ContentStore, readable: list[Path], rights: FileRights = OWN, plain: bool = False
    ) -> None:
        self.server, self.store, self.readable, self.rights = server, store, readable, rights
        self.plain = plain
        self.changed: Callable[[], None] = lambda: None
        # Transfers from other nodes since they were last reported.
        self.transfers: deque[Fetched] = deque(maxlen=MOST_TOLD)
        self._locks: dict[str, threading.Lock] = {}

    def fetch(self, wanted: Input, rank: int = 0, size: int = 1, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Return when all that a rank needs of an input is here. Blocks. Raises Unfetched."""
        with self._locks.setdefault(wanted.digest, threading.Lock()), self.store.hold(wanted.digest):
            if wanted.digest in self.store.roots():
                self.store.touch(wanted.digest)
                return
            try:
                self._fetch(wanted, rank, size, cancelled)
            except (UnfitFile, Full, OSError, http.client.HTTPException, ValueError) as error:
                raise Unfetched(clause("InputNotFetched", name=wanted.name, error=str(error))) from error
            self.changed()

    def take_transfers(self) -> list[Fetched]:
        """Return the transfers from other nodes since the last call."""
        return [self.transfers.popleft() for _ in range(len(self.transfers))]

    def _fetch(self, wanted: Input, rank: int, size: int, cancelled: Callable[[], bool]) -> None:
        failed: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if cancelled():
                raise UnfitFile("it is not wanted any more")
            found = self._sources(wanted.digest, failed)
            if found.refused:
                raise UnfitFile(found.refused)
            for peer in found.peers:
                try:
                    self._from_peer(wanted, peer, rank, size)
                    return
                except (OSError, http.client.HTTPException, UnfitFile) as error:
                    log.info("input %s did not come from node %s: %s", wanted.name, peer.node, error)
                    failed.append(peer.node)
            if found.is_appointed:
                self._from_source(wanted)
                return
            if not found.peers:
                time.sleep(found.wait_s)
        raise UnfitFile("no node had it, and none could load its source, for an hour")

    def _sources(self, digest: str, failed: list[str]) -> Sources:
        channel = Channel(self.server)
        try:
            body = msgspec.json.encode(AskSources(digest=digest, failed=failed))
            return _sources.read(channel.call("POST", SOURCES_PATH, body))
        except ServerRefused as error:
            if error.status < 500:
                raise UnfitFile(f"the control plane does not let this node have it ({error.status})") from error
            return Sources(wait_s=2.0)
        except (OSError, http.client.HTTPException, Undecodable):
            return Sources(wait_s=2.0)
        finally:
            channel.close()

    # -- from another node

    def _from_peer(self, wanted: Input, peer: Source, rank: int, size: int) -> None:
        if wanted.kind == "file":
            self._piece(peer, wanted.digest, wanted.digest, None)
            self.store.complete(wanted.digest, "file")
            return
        self._piece(peer, wanted.digest, wanted.digest, None)
        whole = manifest.read(self.store.path(wanted.digest))
        entries = manifest.share(whole, rank, size) if wanted.shard else whole.files
        missing = [entry for entry in entries if not self.store.has(entry.sha256)]
        self.store.make_room(sum(entry.size for entry in missing))
        for entry in missing:
            self._piece(peer, wanted.digest, entry.sha256, entry.size)
        is_whole = all(self.store.has(entry.sha256) for entry in whole.files)
        self.store.complete(wanted.digest, "tree" if is_whole else "part")

    def _piece(self, peer: Source, root: str, sha256: str, size: int | None) -> None:
        """Fetch one file, resumed after a lost connection."""
        if self.store.has(sha256):
            return
        draft = self.store.draft()
        try:
            for last in range(_TRIES):
                try:
                    self.download(peer, root, sha256, draft, size)
                    break
                except (OSError, http.client.HTTPException):
                    if last == _TRIES - 1:
                        raise
                    time.sleep(0.2)
            self.store.take(draft, sha256)
        finally:
            draft.unlink(missing_ok=True)

    def download(self, peer: Source, root: str, sha256: str, draft: Path, size: int | None) -> None:
        """Fetch the rest of a file after the end of its draft. Raises OSError, HTTPException, UnfitFile or Full."""
        start = draft.stat().st_size if draft.exists() else 0
        connection = self._to(peer)
        path = f"{urlsplit(peer.url).path.rstrip('/')}/files/{sha256}?root={root}&ticket={peer.ticket}"
        try:
            connection.request("GET", path, headers={"Range": f"bytes={start}-"} if start else {})
            answer = connection.getresponse()
            if answer.status not in (200, 206):
                raise UnfitFile(f"it answered {answer.status}")
            before = start if answer.status == 206 else 0
            promised = digits(answer.headers.get("Content-Length") or "")
            if promised is None or answer.chunked or (size is not None and before + promised != size):
                raise UnfitFile("it does not say how long its answer is, or another length than there should be")
            if size is None:
                self.store.make_room(promised)
            began = time.monotonic()
            with draft.open("ab" if before else "wb") as file:
                shutil.copyfileobj(answer, file, PIECE)
                received = file.tell() - before
            if received >= TELLING_BYTES:
                self.transfers.append(Fetched(received, round(time.monotonic() - began, 6), peer.node))
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
        finally:
            connection.close()

    def measure(self, peer: Source) -> None:
        """Measure the bandwidth from another node by receiving bytes that mean nothing. Raises OSError, HTTPException
        or UnfitFile."""
        connection = self._to(peer)
        try:
            connection.request("GET", f"{urlsplit(peer.url).path.rstrip('/')}/files/{MEASURED}?ticket={peer.ticket}")
            answer = connection.getresponse()
            if answer.status != 200:
                raise UnfitFile(f"it answered {answer.status}")
            began = time.monotonic()
            received = 0
            while received < MEASURED_BYTES and time.monotonic() - began < MEASURED_S:
                piece = answer.read(PIECE // 4)
                if not piece:
                    break
                received += len(piece)
            took_s = round(time.monotonic() - began, 6)
            if received and took_s > 0:
                self.transfers.append(Fetched(received, took_s, peer.node))
        finally:
            connection.close()

    def _to(self, peer: Source) -> http.client.HTTPConnection:
        """Return a connection to another node: encrypted and pinned to that node, or local to this host."""
        parts = urlsplit(peer.url)
        if parts.scheme == "https" and parts.fragment.startswith(PIN):
            return PinnedConnection(peer.url)
        if parts.scheme == "http" and (self.plain or is_loopback(parts.hostname or "")):
            return _connection(peer.url)
        raise UnfitFile("it serves without encryption, which --peers-plain would allow")

    # -- from its source

    def _from_source(self, wanted: Input) -> None:
        renewed = time.monotonic()

        def renew_appointment() -> None:
            nonlocal renewed
            if time.monotonic() - renewed > RENEW_S:
                renewed = time.monotonic()
                self._sources(wanted.digest, [])

        if wanted.source.startswith(("https://", "http://")):
            self._from_url(wanted, renew_appointment)
        else:
            self._from_path(wanted, renew_appointment)

    def _from_url(self, wanted: Input, renew_appointment: Callable[[], None]) -> None:
        parts = urlsplit(wanted.source)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise UnfitFile("its source is plain HTTP on another host; use https://")
        connection = _connection(wanted.source)
        draft = self.store.draft()
        try:
            connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else "") or "/")
            answer = connection.getresponse()
            if answer.status != 200:
                raise UnfitFile(f"its source answered {answer.status}; redirects are not followed")
            self.store.make_room(digits(answer.headers.get("Content-Length") or "0") or 0)
            with draft.open("wb") as file:
                while piece := answer.read(PIECE):
                    file.write(piece)
                    if file.tell() > self.store.cap_bytes:
                        raise UnfitFile(
                            f"its source sends more than the {self.store.cap_bytes} bytes that this node keeps"
                        )
                    renew_appointment()
            self.store.take(draft, wanted.digest)
        except UnfitFile as error:
            raise UnfitFile(f"{wanted.source}: {error}") from error
        finally:
            draft.unlink(missing_ok=True)
            connection.close()
        self.store.complete(wanted.digest, "file")

    def _from_path(self, wanted: Input, renew_appointment: Callable[[], None]) -> None:
        path = Path(wanted.source).resolve()
        above = next((folder for folder in self.readable if path == folder or folder in path.parents), None)
        if above is None:
            allowed = ", ".join(str(folder) for folder in self.readable) or "none"
            raise UnfitFile(f"{wanted.source} lies in no folder that this node may read inputs from (there: {allowed})")
        name = path.relative_to(above).as_posix() if path != above else ""
        with Folder(str(above), self.rights) as folder:
            if wanted.kind == "file":
                size = folder.status(name).st_size
                self.store.make_room(size)
                try:
                    self.store.put_file(folder, name, wanted.digest, size)
                except UnfitFile as error:
                    raise UnfitFile(f"{wanted.source} has changed: {error}") from error
                self.store.complete(wanted.digest, "file")
                return
            found = manifest.of(folder, name)
            renew_appointment()
            if found.digest != wanted.digest:
                raise UnfitFile(f"{wanted.source} has changed: it has the digest {found.digest}, not {wanted.digest}")
            self.store.put(folder, name, found)


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=30, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
