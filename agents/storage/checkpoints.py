"""Checkpoints in a stage's folder: which is the newest to resume from, and which may be deleted."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable

from agents.decode import count, path_text
from agents.isolation.beneath import OWN, FileRights, Folder
from agents.storage import layouts
from agents.storage.layouts import Found
from agents.storage.tree import look


def discover(folder: str, rights: FileRights = OWN) -> list[Found]:
    """Return every checkpoint in a folder, complete or not; empty if there is no folder."""
    return discovered(folder, rights)[0]


def discovered(folder: str, rights: FileRights = OWN) -> tuple[list[Found], bool]:
    """Return the same as :func:`discover`, and whether there are more files than are scanned."""
    tree = look(folder, rights)
    return [each for each in layouts.recognise(tree) if is_sendable(each)], tree.is_cut


def is_sendable(found: Found) -> bool:
    """Whether step and paths, which a job chose, can be sent to the server."""
    names = (found.path or ".", found.resume or ".")
    return count(found.step) == found.step and all(path_text(name) for name in names)


def ordered(found: Iterable[Found]) -> list[Found]:
    """Return the complete ones, the one to resume from first."""
    complete = [each for each in found if each.is_complete]
    return sorted(complete, key=lambda each: (each.wins, each.step, each.modified_ns), reverse=True)


def newest(found: Iterable[Found]) -> Found | None:
    """Return the one to resume from: the complete one of the highest step, or the one that its framework prefers."""
    return next((each for each in ordered(found) if each.resume is not None), None)


def resume_path(folder: str, reported: str, reported_step: int | None = None, rights: FileRights = OWN) -> str:
    """Return where an attempt resumes: the newest complete checkpoint of the folder, or the reported one if that is
    newer; empty for the start.

    ``reported`` is absolute or relative to the folder. A job wrote it, so it is used only if it lies below the folder,
    exists, is complete, and is reached without a link.
    """
    found = discover(folder, rights) if folder else []
    best = newest(found)
    place = _place_beneath(folder, reported) if reported else None
    if place is not None and _is_seen(folder, place, rights):
        known = next((each for each in found if place in (each.path, each.resume)), None)
        is_sound = known is None or known.is_complete
        if is_sound and (best is None or (reported_step is not None and reported_step > best.step)):
            return os.path.join(folder, place) if place else folder
    if best is None or best.resume is None:
        return ""
    return os.path.join(folder, best.resume) if best.resume else folder


def _place_beneath(folder: str, reported: str) -> str | None:
    """Return the path relative to the folder, empty for the folder itself; None if it is outside or there is no
    folder."""
    if not folder or "\0" in reported:
        return None
    place = os.path.relpath(os.path.join(folder, reported), folder)
    if place == ".." or place.startswith("../"):
        return None
    return "" if place == "." else place


def _is_seen(folder: str, place: str, rights: FileRights) -> bool:
    """Whether a file or folder exists, with no link on the path from the folder to it, itself included."""
    try:
        with Folder(folder, rights) as opened:
            mode = opened.status(place).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def superseded(found: Iterable[Found], keep: int, in_use: Collection[str] = ()) -> list[Found]:
    """Return the complete checkpoints beyond the newest ``keep``; never one in use, and never an incomplete one.

    ``in_use`` are paths in the same folder from which an attempt resumes. The target of the marker is kept too.
    """
    spared = set(in_use)
    older = ordered(found)[max(1, keep) :]
    return [
        each
        for each in older
        if each.path
        and each.layout != "switchyard"
        and not any(path == each.path or path.startswith(each.path + "/") for path in spared)
    ]


def remove(folder: str, path: str, rights: FileRights = OWN) -> bool:
    """Delete a checkpoint without following links; return whether it is gone."""
    try:
        with Folder(folder, rights) as opened:
            return opened.remove(path)
    except OSError:
        return False
