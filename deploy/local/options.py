"""The options of a local stack."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 8470


@dataclass(frozen=True)
class Options:
    """The options of ``up`` and ``demo``; ``simulate`` is in the agent's format, e.g. ``4xdgx-h100``; ``restore`` is
    the folder of a backup."""

    port: int = DEFAULT_PORT
    simulate: str = ""
    fresh: bool = False
    stages_as_root: bool = False
    restore: str = ""
