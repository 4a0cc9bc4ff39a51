"""Finds a vendor's C library by name and calls its functions.

All results are bounded here: counts, texts, and numbers.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# No library lists more devices, sensors or modules on one host.
MOST_HANDLES = 256
_MOST_CHARACTERS = 120
# The status of a function that the library does not have.
MISSING = -(1 << 40)
_FOLDERS = (
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"),
    *("/usr/local/lib", "/usr/local/lib64"),
)


class Absent(Exception):
    """The library is not on this host."""


class LibraryBroken(Exception):
    """The library is installed but does not work; the text is a clause with the reason."""


def find(names: Iterable[str], folders: Iterable[str] = (), root: Path = Path("/")) -> str | None:
    """Return the path of the first of these libraries: in LD_LIBRARY_PATH, its vendor's folders, or the system's."""
    own = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    places = [*map(Path, own), *(root / folder.lstrip("/") for folder in (*folders, *_FOLDERS))]
    return next((str(place / name) for name in names for place in places if (place / name).is_file()), None)


def cards_or_why(name: str, cards: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a reader's answer: the cards, ``absent`` if the library ``name`` is, or what is ``broken`` about it."""
    try:
        return {"cards": cards()}
    except Absent:
        return {"absent": True}
    except LibraryBroken as error:
        return {"broken": f"{name}: {error}"}


class SharedObject:
    """One library. A function that it lacks, or that returns another status than 0, gives no result."""

    def __init__(self, names: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Raises Absent or LibraryBroken."""
        path = find(names, folders)
        if path is None:
            raise Absent
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryBroken(f"{Path(path).name} cannot be loaded: {str(error)[:200]}") from error
        self.status = 0

    def call(self, name: str, *arguments: Any) -> bool:
        """Call a function that returns 0 on success; ``status`` is its result."""
        function = getattr(self._library, name, None)
        if function is None:
            self.status = MISSING
            return False
        function.restype = ctypes.c_int
        self.status = int(function(*arguments))
        return self.status == 0

    def start(self, name: str, *arguments: Any) -> None:
        """Call a required function. Raises LibraryBroken."""
        if not self.call(name, *arguments):
            raise LibraryBroken(f"its function {name} {self.answered}")

    @property
    def answered(self) -> str:
        """Describe the result of the last call."""
        if self.status == MISSING:
            return "is not there: the library is too old"
        return f"answers {self.status}" if -(1 << 16) < self.status < 0 else f"answers {self.status & 0xFFFFFFFF:#x}"

    def handles(self, name: str, *owner: Any) -> list[ctypes.c_void_p]:
        """Return the handles of a function that is called first for their number and then for the handles."""
        count = ctypes.c_uint32(0)
        if not self.call(name, *owner, ctypes.byref(count), None):
            return []
        found = (ctypes.c_void_p * max(1, min(count.value, MOST_HANDLES)))()
        room = ctypes.c_uint32(min(count.value, MOST_HANDLES))
        if not room.value or not self.call(name, *owner, ctypes.byref(room), found):
            return []
        return [ctypes.c_void_p(handle) for handle in found[: min(room.value, len(found))] if handle]


def text(told: bytes) -> str:
    """Return the content of a character field, up to the first NUL, as clean text."""
    clean = told.split(b"\0", 1)[0][:_MOST_CHARACTERS].decode(errors="replace")
    return "".join(character for character in clean if character.isprintable()).strip()


def finite(value: float) -> float | None:
    """Return a finite number; None for infinities and NaN."""
    return value if math.isfinite(value) else None


def rate(before: tuple[int, int] | None, now: tuple[int, int]) -> float | None:
    """Return how fast a counter grew between two readings of it and of time; None if it was reset or no time passed."""
    if before is None or now[1] <= before[1] or now[0] < before[0]:
        return None
    return (now[0] - before[0]) / (now[1] - before[1])
