"""The files through which shim and agent communicate in a part's folder, and the lock that decides who starts the part.

Small JSON files are replaced atomically (:func:`write_whole`). The order is claimed by renaming it to ``taken``, which
succeeds for exactly one process. That process appends lines to ``taken``; the last complete line has all that it
reported. So a part needs one file for order, lock and record.

Standard library only: the shim imports it.
"""

import os

from agents.notes import clauses
from agents.supervisor import procfs
from agents.supervisor.lean import dumps, loads
from agents.supervisor.small_file import content

# The agent's request to a part's shim to start another program beside its command.
GUEST = "guest.json"


def write_whole(path: str, told: dict, mode: int = 0o600, sync: bool = False) -> None:  # type: ignore[type-arg]
    """Replace a JSON file atomically: a reader sees the old content or the new one.

    With ``sync`` the new content is on disk before it replaces the old one. Raises OSError, for instance on a full
    disk; the old content is kept then.
    """
    draft = f"{path}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        if mode & 0o077:
            # Independent of this process's umask, because others may read files that are meant for them.
            os.fchmod(descriptor, mode)
        write_all(descriptor, dumps(told).encode())
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)


def sync_folder(path: str) -> None:
    """Bring the names in a folder to disk, such as one that was given to a file just now. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes. Raises OSError if the disk takes only a part."""
    wrote = 0
    while wrote < len(content):
        wrote += os.write(descriptor, content[wrote:])


def read_whole(path: str) -> dict | None:  # type: ignore[type-arg]
    """Return the content of a JSON file; None if it does not exist or is not valid JSON."""
    return _object(content(path) or b"")


def _object(text: bytes) -> dict | None:  # type: ignore[type-arg]
    try:
        told = loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def tell_stop(folder: str, grace_s: float, why: str, save: bool) -> None:
    """Tell the shim of a part to stop it. Works on a full disk, because a short symbolic link needs no block.

    Raises OSError if even that fails.
    """
    try:
        write_whole(f"{folder}/stop.json", {"grace_s": grace_s, "why": why, "save": save})
    except FileNotFoundError:
        raise
    except OSError:
        draft = f"{folder}/stop.draft"
        try:
            os.unlink(draft)
        except FileNotFoundError:
            pass
        os.symlink(f"{grace_s:.6g} {int(save)} {why}"[:59], draft)
        os.rename(draft, f"{folder}/stop")


def stop_order(folder: str) -> dict | None:  # type: ignore[type-arg]
    """Return what :func:`tell_stop` wrote last; None if it wrote nothing."""
    if told := read_whole(f"{folder}/stop.json"):
        return told
    try:
        grace_s, save, why = os.readlink(f"{folder}/stop").split(" ", 2)
        return {"grace_s": float(grace_s), "why": why, "save": save == "1"}
    except (OSError, ValueError):
        return None


def claim(folder: str, who: dict) -> tuple[int, dict] | None:  # type: ignore[type-arg]
    """Claim the right to decide whether the part's command runs, which exactly one caller ever gets.

    Returns the descriptor of the record, for :func:`tell`, and the order; None if it was claimed before.
    """
    try:
        os.rename(f"{folder}/order.json", f"{folder}/taken")
    except FileNotFoundError:
        return None
    record = os.open(f"{folder}/taken", os.O_RDWR | os.O_APPEND)
    order = b""
    while piece := os.read(record, 65536):
        order += piece
    tell(record, who)
    return record, _object(order) or {}


def ordered(folder: str) -> dict:  # type: ignore[type-arg]
    """Return the order of a part, claimed or not; empty if there is none."""
    text = content(f"{folder}/taken") or content(f"{folder}/order.json") or b""
    return _object(text.split(b"\n", 1)[0]) or {}


def take(folder: str) -> bool:
    """Claim a part so that nobody runs it."""
    claimed = claim(folder, {"pid": os.getpid(), "born": procfs.start_time(os.getpid())})
    if claimed is None:
        return False
    os.close(claimed[0])
    return True


def tell(record: int, told: dict) -> None:  # type: ignore[type-arg]
    """Append a line that replaces all lines before. On a full disk it is not written, and the part continues."""
    try:
        # The line break comes first: so a line that a full disk cut off spoils none but itself.
        write_all(record, b"\n" + dumps(told).encode())
    except OSError:
        pass


def substate(note: str) -> "dict[str, str]":
    """Return what a state file tells of what a part does now."""
    return {"substate": str(note), "substate_said": dumps(clauses(note)) if note else ""}


def shim_record(folder: str) -> dict | None:  # type: ignore[type-arg]
    """Return what the claiming process reported last: empty before its first line, None if nobody claimed the part."""
    text = content(f"{folder}/taken")
    if text is None:
        return None
    for line in reversed(text.split(b"\n")[1:]):
        # A part of an object is no object: a line that is being written is passed over.
        if told := _known(_object(line)):
            return told
    return {}


def _known(told: dict | None) -> dict | None:  # type: ignore[type-arg]
    """Return the line of a record with its valid fields; None without the process that wrote it.

    Where agent and job are the same user, a job may have written it.
    """
    if not told or not (_is_pid(told.get("pid")) and _is_count(told.get("born"))):
        return None
    if not _is_pid(told.get("main")):
        told.pop("main", None)
    if not _is_count(told.get("main_born")):
        told["main_born"] = None  # it had ended before anybody looked
    for name in ("substate", "substate_said", "stopping"):
        if name in told:
            told[name] = str(told[name])[:1000].encode("ascii", "replace").decode().replace("\0", "")
    left = told.get("left", ())
    told["left"] = [pid for pid in left[:20] if _is_pid(pid)] if isinstance(left, list) else []
    return told


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 1 << 53


def _is_pid(value: object) -> bool:
    return type(value) is int and 0 < value <= 1 << 22  # the kernel's PID_MAX_LIMIT


def family(folder: str) -> list[int]:
    """Return every process of a part under its shim; none before it has a shim, and none once it has ended."""
    record = shim_record(folder)
    if not record or not procfs.is_alive(record["pid"], record["born"]):
        return []
    found = procfs.descendants(record["pid"])
    # Looked at last: a shim writes how a part ended before it cares for another, whose processes these may be.
    return [] if os.path.exists(f"{folder}/exit.json") else found
