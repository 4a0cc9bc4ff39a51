"""A folder as one look found it: files by relative path, with the few bytes of them that a reader asks for.

Standard library only. Links are not followed and not listed: a job that writes the folder cannot lead the look astray.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agents.decode import Undecodable, parse
from agents.isolation.beneath import OWN, FileRights, Folder

MAX_DEPTH: Final = 12
MAX_FILES: Final = 50_000
MAX_TEXT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Leaf:
    """One file. ``modified_ns`` is by the clock of whoever keeps the file, and is only compared with its neighbours."""

    size: int
    modified_ns: int = 0


class Tree:
    """Files by path relative to the folder, with ``/`` between the steps; ``""`` is the folder itself.

    ``is_cut`` tells that there is more than was looked at.

    ``read(path, offset, length)`` answers bytes of a file, fewer at its end; it raises OSError when the file is gone.
    """

    def __init__(
        self, leaves: Mapping[str, Leaf], read: Callable[[str, int, int], bytes], is_cut: bool = False
    ) -> None:
        self.leaves = leaves
        self.is_cut = is_cut
        self._read = read
        self._folders: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
        for path in leaves:
            folder, name = _split(path)
            self._folder(folder)[1].add(name)

    def _folder(self, path: str) -> tuple[set[str], set[str]]:
        if path not in self._folders:
            self._folders[path] = (set(), set())
            above, name = _split(path)
            self._folder(above)[0].add(name)
        return self._folders[path]

    def folders(self, path: str = "") -> list[str]:
        """Names of the folders in a folder that hold at least one file somewhere below."""
        return sorted(self._folders.get(path, (set(), set()))[0])

    def files(self, path: str = "") -> list[str]:
        return sorted(self._folders.get(path, (set(), set()))[1])

    def has_folder(self, path: str) -> bool:
        return path in self._folders

    def below(self, path: str) -> list[str]:
        """Every file of a folder and of the folders in it, by its path from the top."""
        if not path:
            return list(self.leaves)
        found: list[str] = []
        rest = [path]
        while rest:
            here = rest.pop()
            folders, files = self._folders.get(here, ((), ()))
            found += [join(here, name) for name in sorted(files)]
            rest += [join(here, name) for name in sorted(folders, reverse=True)]
        return found

    def every_folder(self) -> list[str]:
        """All folders, each before what is in it."""
        return sorted(self._folders, key=lambda path: (path.count("/") + bool(path), path))

    def bytes(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file; none where it is gone or cannot be read."""
        try:
            return self._read(path, offset, length)
        except OSError:
            return b""

    def text(self, path: str) -> str:
        return self.bytes(path, 0, 4096).decode(errors="replace").strip()

    def json(self, path: str) -> Any:
        """The content of a JSON file; None where it is missing, torn or too long."""
        leaf = self.leaves.get(path)
        if leaf is None or leaf.size > MAX_TEXT:
            return None
        try:
            return parse(self.bytes(path, 0, leaf.size))
        except Undecodable:
            return None


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def look(root: str, rights: FileRights = OWN) -> Tree:
    """The folder as it is now; an empty one where there is none. At most MAX_FILES files, MAX_DEPTH folders deep."""

    def read(path: str, offset: int, length: int) -> bytes:
        with Folder(root, rights) as folder:
            descriptor = folder.open(path)
            try:
                return os.pread(descriptor, length, offset)
            finally:
                os.close(descriptor)

    leaves: dict[str, Leaf] = {}
    is_cut = False
    with contextlib.suppress(OSError), Folder(root, rights) as folder:
        for path, status in folder.walk(depth=MAX_DEPTH, most=MAX_FILES, careful=False):
            leaves[path] = Leaf(status.st_size, status.st_mtime_ns)
            if len(leaves) >= MAX_FILES:
                is_cut = True
                break
    return Tree(leaves, read, is_cut)
