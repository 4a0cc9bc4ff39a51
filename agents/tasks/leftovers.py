"""Devices that an ended stage still holds, because its killed processes have not gone (a wedged driver or disk).

After a minute the device, and not the node, is quarantined; pid, user and age of the processes are shown to people. The
device is free again when the processes are gone; until then the part does not end, and nobody else gets the device.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agents.ends import clause
from agents.notes import NoteText, joined
from agents.protocol import QUARANTINED, DeviceClaim, DeviceError
from agents.supervisor import procfs

PATIENCE_S: Final = 60.0
_MOST_NAMED: Final = 3


@dataclass
class Leftovers:
    """Since when the killed processes of each part have not gone."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, left: Mapping[str, tuple[Sequence[int], Iterable[DeviceClaim]]], now: float) -> list[DeviceError]:
        """Return the devices to quarantine. ``left`` has, per part, the remaining pids and the devices it holds."""
        self.since = {part: self.since.get(part, now) for part in left}
        errors: list[DeviceError] = []
        for part, (pids, claims) in left.items():
            age_s = now - self.since[part]
            if age_s < PATIENCE_S:
                continue
            more = [clause("AndMore", more=len(pids) - _MOST_NAMED)] if len(pids) > _MOST_NAMED else []
            named = joined(_named(pid) for pid in pids[:_MOST_NAMED])
            # Whole minutes: a text that changed with each report would cause a database write with each report.
            note = NoteText(clause("StillHeld", minutes=int(age_s // 60)), *named.said, *more)
            errors += [
                DeviceError(claim.uuid, QUARANTINED, str(note), list(note.said))
                for claim in claims
                if claim.kind != "cpu"
            ]
        return errors


def _named(pid: int) -> NoteText:
    try:
        with open(f"/proc/{pid}/comm") as file:
            name = file.read().strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return NoteText(clause("ProcessPid", pid=pid))
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    born = procfs.start_time(pid)
    if born is None:
        return NoteText(clause("ProcessOf", name=name, pid=pid, user=user))
    minutes = int((procfs.boottime() - born / procfs.TICKS) // 60)
    return NoteText(clause("ProcessOld", name=name, pid=pid, user=user, minutes=minutes))
