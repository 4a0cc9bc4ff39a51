"""Processes that use a device but belong to no stage: reported, never touched."""

from __future__ import annotations

import pwd

from agents.devices.card import Condition, Process
from agents.ends import clause
from agents.notes import NoteText, joined
from agents.supervisor import procfs

_MOST_NAMED = 3


def foreign_processes(processes: tuple[Process, ...] | None) -> tuple[Condition, ...]:
    """Return the condition that names them; empty if all belong to parts, or if processes are not reported."""
    if not processes:
        return ()
    foreign = [pid for pid in sorted({process.pid for process in processes}) if is_foreign(pid)]
    if not foreign:
        return ()
    more = [clause("AndMore", more=len(foreign) - _MOST_NAMED)] if len(foreign) > _MOST_NAMED else []
    note = NoteText(clause("UsedByOthers"), *joined(_named(pid) for pid in foreign[:_MOST_NAMED]).said, *more)
    return (Condition("FOREIGN_PROCESS", "DEGRADED", note),)


def is_foreign(pid: int) -> bool:
    """Whether a process on this host belongs to no part of any agent.

    Parts have a mark in their environment, which their children may drop: a marked ancestor counts. A process that this
    user may not read was not started by this agent. An unknown pid (of another pid namespace) is not foreign.
    """
    if procfs.start_time(pid) is None:
        return False
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        if procfs.carries_mark(pid):
            return False
        pid = procfs.parent(pid) or 0
    return True


def _named(pid: int) -> NoteText:
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.rstrip("\n").partition(":")[::2] for line in file)
    except OSError:
        return NoteText(clause("ProcessPid", pid=pid))
    uid = int(fields.get("Uid", "0").split()[0])
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return NoteText(clause("ProcessOf", name=fields.get("Name", "?").strip(), pid=pid, user=user))
