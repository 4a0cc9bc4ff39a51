"""One stack per state folder: the lock, and the record of the running stack."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import Self

from deploy.local.home import Home, write_private


@dataclass(frozen=True)
class Running:
    """The record of a running stack for other commands; ``environment`` is that of its parts."""

    pid: int
    url: str
    environment: dict[str, str]

    @classmethod
    def read(cls, home: Home) -> Running | None:
        """Return the record of the last stack; it may be stale: see :func:`is_held`."""
        try:
            return cls(**json.loads((home.path / "stack.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, home: Home) -> None:
        """Write this record, 0600."""
        write_private(home.path / "stack.json", json.dumps(asdict(self)))


class AlreadyRunning(Exception):
    """Another stack holds the state folder."""


class Lock:
    """The lock of a state folder; the kernel releases it when its holder ends in whatever way."""

    def __init__(self, home: Home) -> None:
        self._path = home.path / "lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise AlreadyRunning from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def is_held(home: Home) -> bool:
    """Whether a stack runs on the state folder now."""
    if not (home.path / "lock").exists():
        return False
    try:
        with Lock(home):
            return False
    except AlreadyRunning:
        return True
