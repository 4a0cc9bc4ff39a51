"""Which folders of this host stages may mount; the operator of the host decides, whatever a pool declares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from agents.ends import Refusal, clause
from agents.isolation.allowed import OF_THE_SYSTEM, is_below
from agents.isolation.beneath import FileRights, anchor
from agents.isolation.run_as import RunAs
from agents.isolation.users import Users
from agents.protocol import Mount

_NEVER: Final = (*OF_THE_SYSTEM, "/root")


class MountRefused(Refusal):
    """A folder may not be mounted, or is not there."""


class _AnyStage(FileRights):
    """What some stage of this node might do to files: this one, or one of another project in agreement with it."""

    __slots__ = ("_known", "_uids")

    def __init__(self, rights: FileRights, users: Users) -> None:
        super().__init__(rights.uid, rights.gid, rights.groups)
        self._known = [rights, *(each.rights() for each in (users.default, *users.accounts.values()))]
        self._uids = users.uids

    def may_replace(self, above: os.stat_result, status: os.stat_result) -> bool:
        # Of the many projects only those count that own something here.
        owners = {uid for uid in (above.st_uid, above.st_gid, status.st_uid) if uid in self._uids}
        known = [*self._known, *(FileRights(uid, uid) for uid in owners)]
        return any(FileRights.may_replace(each, above, status) for each in known)


@dataclass(frozen=True, slots=True)
class MountRoots:
    """``roots`` are the folders below which mounts may be, none by default; ``own`` is the agent's folder, and
    ``users`` are those of stages."""

    roots: Sequence[str] = ()
    own: str = ""
    users: Users = field(default_factory=lambda: Users(RunAs("self")))

    def real(self, mount: Mount, rights: FileRights) -> Mount:
        """Return the mount with the real path of its source, on which nobody but the operator can put another folder.

        Links on the way that a stage's user could make, of whatever project, are not followed: engines mount as root,
        and later. May block. Raises MountRefused.
        """
        if ".." in mount.source.split("/") or not any(is_below(mount.source, root) for root in self.roots):
            raise MountRefused(clause("MountNotAllowed", folder=mount.source, allowed=", ".join(self.roots) or "none"))
        try:
            real, rest = anchor(mount.source, _AnyStage(rights, self.users))
        except OSError as error:
            raise MountRefused(clause("MountMissing", folder=mount.source, error=str(error.strerror))) from None
        if rest and os.path.lexists(os.path.join(real, rest[0])):
            raise MountRefused(clause("MountExchangeable", folder=mount.source))
        if rest or not os.path.isdir(real):
            raise MountRefused(clause("MountMissing", folder=mount.source, error="there is no such folder"))
        allowed = any(is_below(real, os.path.realpath(root)) for root in self.roots)
        closed = [*_NEVER, *([os.path.realpath(self.own)] if self.own else [])]
        if not allowed or any(is_below(real, each) for each in closed):
            raise MountRefused(clause("MountLeadsOut", folder=mount.source, real=real))
        if inside := next((each for each in closed if is_below(each, real)), None):
            raise MountRefused(clause("MountHolds", folder=mount.source, inside=inside))
        return Mount(real, mount.path, mount.readonly)
