"""Small JSON files that shim and agent leave for each other, and the lock that decides who starts a part.

Standard library only: the shim imports it.
"""

import json
import os

from agents import procfs


def write_whole(path: str, content: dict, mode: int = 0o600, sync: bool = False) -> None:  # type: ignore[type-arg]
    """Replace a JSON file in one step: a reader sees the old content or the new, never a piece."""
    draft = f"{path}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, json.dumps(content).encode())
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    if sync:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_whole(path: str) -> dict | None:  # type: ignore[type-arg]
    """The content of a JSON file; None when it is not there or not readable as JSON."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def take(folder: str) -> bool:
    """Claim the right to decide whether the part's command runs; true for exactly one caller, ever."""
    try:
        lock = os.open(os.path.join(folder, "taken"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(lock, f"{os.getpid()} {procfs.start_time(os.getpid())}".encode())
    finally:
        os.close(lock)
    return True
