"""The user of a stage's processes: the agent's own, or another user that a root agent switches to."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from agents.isolation.beneath import NOBODY as NOBODY
from agents.isolation.beneath import FileRights, anchor


@dataclass(frozen=True, slots=True)
class RunAs:
    """``uid`` is None if processes keep the agent's own user."""

    name: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    home: str | None = None

    def order(self) -> dict[str, object]:
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups)}

    def rights(self) -> FileRights:
        """Return this user's rights to files, for what the agent does in folders that stages can write to."""
        return FileRights(self.uid, self.gid, self.groups)

    def take_groups(self) -> None:
        """Set the agent's own groups to this user's and no others.

        Root does not need its own, and its threads could not change them when they take this user's rights to files.
        Call it before there are other processes and threads.
        """
        if self.uid is not None:
            os.setgroups(self.groups)

    def check(self, folder: Path) -> None:
        """Raise ValueError with advice if this user could not enter ``folder``, or could replace it."""
        if self.uid is None or self.uid == os.geteuid():
            return
        here, rest = anchor(str(folder), self.rights())
        if rest or self.rights().may_change(os.lstat(here)):
            raise ValueError(
                f'stages run as {self.name}, who may rename or remove what is in "{here}"; give --state a folder '
                f"whose parents belong to root (for example below /var/lib), or use --run-as self"
            )
        for step in [folder, *folder.parents]:
            status = step.stat()
            if status.st_uid == self.uid:
                shift = 6
            elif status.st_gid in (self.gid, *self.groups):
                shift = 3
            else:
                shift = 0
            if not status.st_mode >> shift & 1:
                raise ValueError(
                    f'stages run as {self.name}, who cannot enter "{step}"; give --state a folder that others may '
                    f"enter (for example below /var/lib), run `chmod o+x {step}`, or name a user of --run-as who can"
                )


def parse(text: str | None) -> RunAs:
    """Parse ``--run-as``. By default a root agent runs stages as nobody, and any other agent as itself.

    To run stages as root, root must be named; "self", which is harmless for other users, does not do.
    """
    own = _name(os.geteuid())
    if text is None:
        text = "nobody" if os.geteuid() == 0 else "self"
    if text == "self" and os.geteuid() == 0:
        raise ValueError(
            "this agent runs as root, so --run-as self would let every job do anything to this machine: leave it "
            "out or name a user; if you trust every job like yourself, say --run-as root"
        )
    if text == "self" or text in (own, str(os.geteuid())):
        return RunAs(name=own, home=os.environ.get("HOME") or None)
    if os.geteuid() != 0:
        raise ValueError(f'--run-as {text} needs an agent that runs as root; this one runs as {own}: use "self"')
    if text == "nobody":
        return RunAs(name="nobody", uid=NOBODY, gid=NOBODY)
    try:
        entry = pwd.getpwuid(int(text)) if text.isdigit() else pwd.getpwnam(text)
    except KeyError:
        if text.isdigit():
            return RunAs(name=text, uid=int(text), gid=int(text))
        raise ValueError(f'--run-as {text}: no such user; accepted are "self", "nobody", a name or a uid') from None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    home = entry.pw_dir if os.path.isdir(entry.pw_dir) else None
    return RunAs(name=_name(entry.pw_uid), uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=home)


def _name(uid: int) -> str:
    if uid == 0:
        return "root"  # whatever else it is called: pages warn of it by this name
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
