"""What lies on a node by digest: files and folders, up to a cap, the least recently used dropped first.

A *root* is what somebody asked for: one file, or a folder by its manifest. Files are shared between roots. A root that
a live part uses is pinned and never dropped; a pin is a file of the part's run folder, so it outlives the agent.
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

# The modification time of what is kept; anything else tells that it was written to.
UNTOUCHED_NS: Final = 1_000_000_000
KINDS: Final = {b"file": "file", b"tree": "tree", b"part": "part"}


class Full(Exception):
    """There is no room: what is there is in use."""


class ContentStore:
    """One node's store in one folder. Safe to use from several threads. ``pinned`` names the roots that are in use."""

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

    # -- what is there

    def path(self, sha256: str) -> Path:
        if not DIGEST.fullmatch(sha256):
            raise UnfitFile(f'"{sha256}" is no sha256 in hexadecimal')
        return self.folder / "files" / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether a file is here as it came. A stage with our user could write through its link: then it is not."""
        try:
            return self.path(sha256).stat().st_mtime_ns == UNTOUCHED_NS
        except FileNotFoundError:
            return False

    def roots(self) -> list[str]:
        """Digests of the roots of which everything is here, the most recently used first."""
        return [root for root in self._noted() if self._kind(root) != "part"]

    def _noted(self) -> list[str]:
        found = [(entry.stat().st_mtime_ns, entry.name) for entry in (self.folder / "roots").iterdir()]
        return [name for _, name in sorted(found, reverse=True)]

    def manifest(self, root: str) -> FolderManifest | None:
        """The manifest of a root that is a folder; None where it is a file, or not here."""
        if self._kind(root) not in ("tree", "part") or not self.has(root):
            return None
        return manifest.read(self.path(root))

    def _kind(self, root: str) -> str:
        told = content(str(self.folder / "roots" / root)) if DIGEST.fullmatch(root) else None
        return KINDS.get(told or b"", "")

    def members(self, root: str) -> set[str]:
        """Every file that a root consists of, its manifest included; empty where the root is not here."""
        kind = self._kind(root)
        if not kind:
            return set()
        found = self.manifest(root)
        return {root, *(entry.sha256 for entry in found.files)} if found else {root}

    # -- what comes in

    def draft(self) -> Path:
        return self.folder / "drafts" / uuid.uuid4().hex

    def take(self, draft: Path, sha256: str) -> None:
        """Keep a file that was written to a draft. Raises UnfitFile, and drops it, where its content is another."""
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
        """Copy a file of which digest and size are known. Raises UnfitFile where it has changed since."""
        if self.has(sha256):
            return
        draft = self.draft()
        try:
            with open(folder.open(path), "rb") as source, draft.open("xb") as copy:
                # One byte more than there should be tells as much as all of a file that grew.
                left = size + 1
                while left and (piece := source.read(min(left, PIECE))):
                    copy.write(piece)
                    left -= len(piece)
            self.take(draft, sha256)
        finally:
            draft.unlink(missing_ok=True)

    def put(self, folder: Folder, name: str, found: FolderManifest) -> str:
        """Keep all files of a manifest of what lies under a name in a folder; answers the root's digest."""
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
        """:meth:`put`, for a path that only we can change."""
        with Folder(str(path.parent)) as folder:
            return self.put(folder, path.name, found)

    def complete(self, root: str, kind: str) -> None:
        """Note that all of a root is here: of a ``file``, of a ``tree``, or (``part``) of a rank's share of one."""
        note = self.folder / "roots" / root
        draft = self.draft()
        draft.write_text(kind)
        used_now(draft)
        draft.rename(note)

    def touch(self, root: str) -> None:
        """Note that a root was used just now."""
        if DIGEST.fullmatch(root):
            try:
                used_now(self.folder / "roots" / root)
            except OSError:
                pass

    # -- what goes out

    def hold(self, root: str) -> _Hold:
        """A block in which a root is not dropped: it is being fetched or handed out."""
        return _Hold(self, root)

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._files())

    def _files(self) -> Iterable[Path]:
        return (path for part in (self.folder / "files").iterdir() for path in part.iterdir())

    def make_room(self, wanted: int) -> None:
        """Drop least recently used roots until ``wanted`` bytes more fit. Raises Full where they do not."""
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
        """Drop the roots that were last used longer ago, but none that is in use; answers which."""
        gone = []
        with self._lock:
            in_use = self.pinned() | set(self._held)
            for entry in sorted((self.folder / "roots").iterdir()):
                if entry.name not in in_use and age_s(entry.stat().st_mtime) > most_age_s:
                    self.drop(entry.name)
                    gone.append(entry.name)
        return gone

    def drop(self, root: str) -> None:
        """Forget a root, and the files that no other root has."""
        with self._lock:
            mine = self.members(root)
            (self.folder / "roots" / root).unlink(missing_ok=True)
            kept = set(self._held).union(*(self.members(other) for other in [*self._noted(), *self._held]))
            for sha256 in mine - kept:
                self.path(sha256).unlink(missing_ok=True)

    # -- what is handed out

    def lay_out(self, entries: list[ManifestEntry], folder: Path) -> None:
        """Put files into a folder under their names: links to what is kept where possible, never to be written to."""
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
                pass  # another disk, or no links there: a copy it is
        shutil.copyfile(self.path(sha256), target)
        target.chmod(0o555 if executable else 0o444)


class _Hold:
    def __init__(self, store: ContentStore, root: str) -> None:
        self._stock, self._root = store, root

    def __enter__(self) -> None:
        with self._stock._lock:
            self._stock._held[self._root] = self._stock._held.get(self._root, 0) + 1

    def __exit__(self, *_: object) -> None:
        with self._stock._lock:
            self._stock._held[self._root] -= 1
            if not self._stock._held[self._root]:
                del self._stock._held[self._root]
