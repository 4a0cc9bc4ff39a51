"""Which folders of this host stages may mount; the operator of the host decides, whatever a pool declares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agents.ends import Refusal, clause
from agents.isolation.allowed import OF_THE_SYSTEM
from agents.isolation.beneath import FileRights, anchor
from agents.protocol import Mount

_NEVER: Final = (*OF_THE_SYSTEM, "/root")


class MountRefused(Refusal):
    """A folder may not be mounted, or is not there."""


@dataclass(frozen=True, slots=True)
class MountRoots:
    """``roots`` are the folders below which mounts may be, none by default; ``own`` is the agent's folder."""

    roots: Sequence[str] = ()
    own: str = ""

    def real(self, mount: Mount, rights: FileRights) -> Mount:
        """Return the mount with the real path of its source, on which nobody but the operator can put another folder.

        Links on the way that the stages' user could make are not followed: engines mount as root. May block. Raises
        MountRefused.
        """
        if ".." in mount.source.split("/") or not any(_is_below(mount.source, root) for root in self.roots):
            raise MountRefused(clause("MountNotAllowed", folder=mount.source, allowed=", ".join(self.roots) or "none"))
        try:
            real, rest = anchor(mount.source, rights)
        except OSError as error:
            raise MountRefused(clause("MountMissing", folder=mount.source, error=str(error.strerror))) from None
        if rest and os.path.lexists(os.path.join(real, rest[0])):
            raise MountRefused(clause("MountExchangeable", folder=mount.source))
        if rest or not os.path.isdir(real):
            raise MountRefused(clause("MountMissing", folder=mount.source, error="there is no such folder"))
        allowed = any(_is_below(real, os.path.realpath(root)) for root in self.roots)
        if not allowed or real == "/" or any(_is_below(real, each) for each in (*_NEVER, self.own) if each):
            raise MountRefused(clause("MountLeadsOut", folder=mount.source, real=real))
        return Mount(real, mount.path, mount.readonly)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
