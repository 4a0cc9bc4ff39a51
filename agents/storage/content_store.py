"""Content-addressed store of a node: files and folders by digest, up to a size limit, evicted by last use.

A *root* is what is requested: one file, or a folder by its manifest. Files are shared between roots. A root that a live
part uses is pinned and never evicted; a pin is a file of the part's run folder, so it survives the agent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from agents.isolation.beneath import Folder, regular
from agents.storage import manifest
from agents.storage.last_use import age_s, used_now
from agents.storage.manifest import DIGEST, PIECE, FolderManifest, ManifestEntry, UnfitFile
from agents.supervisor.small_file import content

# The modification time of stored files; another one shows that the file was written to.
UNTOUCHED_NS: Final = 1_000_000_000
KINDS: Final = {b"file": "file", b"tree": "tree", b"part": "part"}


class Full(Exception):
    """There is no room: all content is in use."""


class ContentStore:
    """The store of one node in one folder. Thread-safe. ``pinned`` returns the roots in use."""

    def __init__(self, folder: Path, cap_bytes: int, pinned: Callable[[], set[str]] = set) -> None:
        self.folder = folder
        self.cap_bytes = cap_bytes
        self.pinned = pinned
        self._lock = threading.RLock()
        self._held: dict[str, int] = {}
        for name in ("files", "roots", "drafts"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for draft in (folder / "drafts").iterdir():
            draft.unlink()

    # -- lookup

    def path(self, sha256: str) -> Path:
        if not DIGEST.fullmatch(sha256):
            raise UnfitFile(f'"{sha256}" is no sha256 in hexadecimal')
        return self.folder / "files" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether a file is here unchanged. A stage with our user could write through its link, so that is checked."""
        try:
            return self.path(sha256).stat().st_mtime_ns == UNTOUCHED_NS
        except FileNotFoundError:
            return False

    def roots(self) -> list[str]:
        """Return digests of the complete roots, most recently used first."""
        return [root for root in self._noted() if self._kind(root) != "part"]

    def _noted(self) -> list[str]:
        found = [(entry.stat().st_mtime_ns, entry.name) for entry in (self.folder / "roots").iterdir()]
        return [name for _, name in sorted(found, reverse=True)]

    def manifest(self, root: str) -> FolderManifest | None:
        """Return the manifest of a root that is a folder; None if it is a file, or not here."""
        if self._kind(root) not in ("tree", "part") or not self.has(root):
            return None
        return manifest.read(self.path(root))

    def _kind(self, root: str) -> str:
        stored = content(str(self.folder / "roots" / root)) if DIGEST.fullmatch(root) else None
        return KINDS.get(stored or b"", "")

    def members(self, root: str) -> set[str]:
        """Return every file of a root, its manifest included; empty if the root is not here."""
        kind = self._kind(root)
        if not kind:
            return set()
        found = self.manifest(root)
        return {root, *(entry.sha256 for entry in found.files)} if found else {root}

    # -- storing

    def draft(self) -> Path:
        return self.folder / "drafts" / uuid.uuid4().hex

    def take(self, draft: Path, sha256: str) -> None:
        """Store a file that was written to a draft. Raises UnfitFile, and deletes it, if its content does not match."""
        found = manifest.digest_of(regular(str(draft)))
        if found != sha256:
            draft.unlink(missing_ok=True)
            raise UnfitFile(f"it has the digest {found}, not {sha256}")
        draft.chmod(0o444)
        os.utime(draft, ns=(UNTOUCHED_NS, UNTOUCHED_NS))
        target = self.path(sha256)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        draft.rename(target)

    def put_bytes(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.has(sha256):
            draft = self.draft()
            draft.write_bytes(content)
            self.take(draft, sha256)
        return sha256

    def put_file(self, folder: Folder, path: str, sha256: str, size: int) -> None:
        """Copy a file of known digest and size. Raises UnfitFile if it has changed since."""
        if self.has(sha256):
            return
        draft = self.draft()
        try:
            with open(folder.open(path), "rb") as source, draft.open("xb") as copy:
                # Reading one byte more than expected suffices to notice that a file grew.
                left = size + 1
                while left and (piece := source.read(min(left, PIECE))):
                    copy.write(piece)
                    left -= len(piece)
            self.take(draft, sha256)
        finally:
            draft.unlink(missing_ok=True)

    def put(self, folder: Folder, name: str, found: FolderManifest) -> str:
        """Store all files of a manifest of a file or folder ``name``; return the root's digest."""
        self.make_room(found.size)
        root = found.digest
        above = name.rpartition("/")[0] if found.is_file else name
        with self.hold(root):
            for entry in found.files:
                self.put_file(folder, f"{above}/{entry.path}" if above else entry.path, entry.sha256, entry.size)
            self.put_bytes(found.encode())
            self.complete(root, "tree")
        return root

    def put_folder(self, path: Path, found: FolderManifest) -> str:
        """Like :meth:`put`, for a path that only we can change."""
        with Folder(str(path.parent)) as folder:
            return self.put(folder, path.name, found)

    def complete(self, root: str, kind: str) -> None:
        """Record that a root is complete: a ``file``, a ``tree``, or (``part``) a rank's share of one."""
        note = self.folder / "roots" / root
        draft = self.draft()
        draft.write_text(kind)
        used_now(draft)
        draft.rename(note)

    def touch(self, root: str) -> None:
        """Record that a root was used now."""
        if DIGEST.fullmatch(root):
            try:
                used_now(self.folder / "roots" / root)
            except OSError:
                pass

    # -- eviction

    def hold(self, root: str) -> _Hold:
        """Return a context in which a root is not evicted, because it is being fetched or served."""
        return _Hold(self, root)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._files())

    def _files(self) -> Iterable[Path]:
        return (path for part in (self.folder / "files").iterdir() for path in part.iterdir())

    def make_room(self, wanted: int) -> None:
        """Evict least recently used roots until ``wanted`` more bytes fit. Raises Full if they do not."""
        if wanted > self.cap_bytes:
            raise Full(f"it has {wanted} bytes, and this node keeps {self.cap_bytes} at most")
        with self._lock:
            in_use = self.pinned() | set(self._held)
            old = [root for root in reversed(self._noted()) if root not in in_use]
            while self.size() + wanted > self.cap_bytes:
                if not old:
                    raise Full(f"{wanted} bytes do not fit: what is kept here is in use")
                self.drop(old.pop(0))

    def expire(self, most_age_s: float) -> list[str]:
        """Remove roots last used longer ago than that, unless in use; return their digests."""
        gone = []
        with self._lock:
            in_use = self.pinned() | set(self._held)
            for entry in sorted((self.folder / "roots").iterdir()):
                if entry.name not in in_use and age_s(entry.stat().st_mtime) > most_age_s:
                    self.drop(entry.name)
                    gone.append(entry.name)
        return gone

    def drop(self, root: str) -> None:
        """Remove a root, and the files that no other root has."""
        with self._lock:
            mine = self.members(root)
            (self.folder / "roots" / root).unlink(missing_ok=True)
            kept = set(self._held).union(*(self.members(other) for other in [*self._noted(), *self._held]))
            for sha256 in mine - kept:
                self.path(sha256).unlink(missing_ok=True)

    # -- use

    def lay_out(self, entries: list[ManifestEntry], folder: Path) -> None:
        """Put files into a folder under their names: hard links to stored files if possible, never to be written to."""
        for entry in entries:
            target = folder / entry.path
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.lay_out_file(entry.sha256, target, entry.executable)

    def lay_out_file(self, sha256: str, target: Path, executable: bool = False) -> None:
        if not executable:
            try:
                os.link(self.path(sha256), target)
                return
            except OSError:
                pass  # another file system, or no links there: copied below
        shutil.copyfile(self.path(sha256), target)
        target.chmod(0o555 if executable else 0o444)


class _Hold:
    def __init__(self, store: ContentStore, root: str) -> None:
        self._store, self._root = store, root

    def __enter__(self) -> None:
        with self._store._lock:
            self._store._held[self._root] = self._store._held.get(self._root, 0) + 1

    def __exit__(self, *_: object) -> None:
        with self._store._lock:
            self._store._held[self._root] -= 1
            if not self._store._held[self._root]:
                del self._store._held[self._root]
