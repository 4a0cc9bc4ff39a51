"""Which folders of this host the control plane may name as storage; the operator of the host decides.

The agent creates folders there, opens them to the stages' user and mounts them into containers, as root if it is root.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What no pool keeps its files in, and what is never given away where the operator has not named it.
OF_THE_SYSTEM: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var/run", "/var/spool",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Allowed:
    """``roots`` are folders below which storage may be; without any, everything but the system's folders. ``own`` is
    the agent's folder."""

    roots: Sequence[str] = ()
    own: str = ""

    def refuses(self, path: str) -> bool:
        """Return whether a folder may not be used. Decides by name; links on the way are handled elsewhere."""
        if not os.path.isabs(path) or ".." in Path(path).parts:
            return True
        place = os.path.normpath(path).replace("//", "/", 1)
        if self.own and is_below(place, self.own):
            return False
        if self.roots:
            return not any(is_below(place, root) for root in self.roots)
        return place == "/" or any(is_below(place, root) for root in OF_THE_SYSTEM)

    @property
    def spoken(self) -> str:
        """Return a description of what is accepted, for people."""
        return ", ".join(self.roots) if self.roots else "any folder but the system's"


def is_below(path: str, root: str) -> bool:
    """Return whether a path is this folder or lies in it, by name."""
    return path == root or path.startswith(root.rstrip("/") + "/")
