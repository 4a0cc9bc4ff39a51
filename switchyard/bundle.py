"""Packs a folder reproducibly: the same files give the same bytes, and thus the same name.

A bundle is a ``tar.gz`` with sorted names and neither times nor owners. Its name is the SHA-256 of its bytes, so
unchanged code is not sent again.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from switchyard.ignore import FILES, Pattern, parse, verdict
from switchyard.problem import BundleError

CAP_BYTES = 64 << 20
"""The largest bundle that is accepted, packed."""

SOURCE_CAP_BYTES = 512 << 20
"""Where packing gives up before it compresses a data set for minutes, unpacked."""

NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", ".DS_Store", ".yard.toml"})
"""Left out always: history, caches, and the file that may hold a token."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed folder. ``left_out`` names what was not packed, with the reason, for people."""

    content: bytes
    sha256: str
    files: int
    left_out: tuple[str, ...] = field(default=())

    @property
    def size_bytes(self) -> int:
        return len(self.content)


def pack(folder: str | os.PathLike[str], *, cap_bytes: int = CAP_BYTES) -> Bundle:
    """Pack a folder. Raises :class:`BundleError` if it is no folder, too large or has files that cannot be sent.

    Ignore files are respected (see :mod:`switchyard.ignore`); a virtual environment is left out by its ``pyvenv.cfg``.
    A link that leads out of the folder is left out and named.
    """
    root = Path(folder)
    if not root.is_dir():
        raise BundleError(f"{root} is not a folder; workdir must name the folder that holds the job's code")
    left_out: list[str] = []
    paths = sorted(_walk(root, left_out), key=lambda found: found[0].split("/"))
    _check_source(root, paths, cap_bytes)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in paths:
            _add(tar, name, path)
            if packed.tell() > cap_bytes:
                break
    content = packed.getvalue()
    if len(content) > cap_bytes:
        raise BundleError(_too_large(root, paths, cap_bytes))
    return Bundle(content, hashlib.sha256(content).hexdigest(), len(paths), tuple(left_out))


def _walk(root: Path, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield every file and inner link to pack, as (name in the bundle, path)."""
    inside = root.resolve()
    waiting: list[tuple[str, list[tuple[str, list[Pattern]]]]] = [("", [])]
    while waiting:
        prefix, rules = waiting.pop()
        here = root / prefix
        rules = [*rules, (prefix, own)] if (own := _patterns(here)) else rules
        for entry in sorted(os.scandir(here), key=lambda e: e.name):
            name = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in NEVER or _ignored(rules, name, is_folder):
                continue
            if entry.is_symlink():
                target = Path(entry.path).resolve()
                if target.is_relative_to(inside) and not os.path.isabs(os.readlink(entry.path)):
                    yield name, Path(entry.path)
                else:
                    left_out.append(f"{name}: a link that leads out of the folder")
            elif is_folder:
                if os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                    left_out.append(f"{name}/: a virtual environment")
                else:
                    waiting.append((name + "/", rules))
            elif entry.is_file(follow_symlinks=False):
                yield name, Path(entry.path)
            else:
                left_out.append(f"{name}: neither a file, a folder nor a link")


def _patterns(folder: Path) -> list[Pattern]:
    found: list[Pattern] = []
    for name in FILES:
        try:
            found += parse((folder / name).read_text(encoding="utf-8", errors="replace").splitlines())
        except (FileNotFoundError, IsADirectoryError):
            continue
    return found


def _ignored(rules: list[tuple[str, list[Pattern]]], name: str, is_folder: bool) -> bool:
    """Whether the ignore files from the root down to the folder of ``name`` leave it out; the deepest one decides."""
    for prefix, patterns in reversed(rules):
        answer = verdict(patterns, name[len(prefix) :], is_folder)
        if answer is not None:
            return answer
    return False


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    try:
        if path.is_symlink():
            entry.type, entry.linkname, entry.mode = (
                tarfile.SYMTYPE,
                os.readlink(path),
                0o777,
            )
            tar.addfile(entry)
            return
        with path.open("rb") as source:
            about = os.fstat(source.fileno())
            entry.size = about.st_size
            entry.mode = 0o755 if about.st_mode & stat.S_IXUSR else 0o644
            tar.addfile(entry, source)
    except OSError as error:
        raise BundleError(f"{path} cannot be packed: {error.strerror or error}; is it still being written?") from None


def _check_source(root: Path, paths: list[tuple[str, Path]], cap_bytes: int) -> None:
    total = sum(path.lstat().st_size for _, path in paths)
    if total > max(SOURCE_CAP_BYTES, cap_bytes):
        raise BundleError(_too_large(root, paths, cap_bytes))


def _too_large(root: Path, paths: list[tuple[str, Path]], cap_bytes: int) -> str:
    by_size = sorted(((path.lstat().st_size, name) for name, path in paths), reverse=True)[:3]
    biggest = ", ".join(f"{name} ({size / 2**20:.1f} MiB)" for size, name in by_size)
    return (
        f"{root} packs to more than {cap_bytes / 2**20:.0f} MiB; its largest files are {biggest}. Leave data out "
        "with a .yardignore file (same patterns as .gitignore) and read it from shared storage instead"
    )
