"""Which user the stages of this machine's own agent run as."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from deploy.local.home import Home
from deploy.local.leash import NOBODY
from deploy.local.service import ROOT, leashed

# What a stage needs: its interpreter, the code that starts it, and its own folders below the state folder.
_TRIAL = """
import os, sys
sys.path.insert(0, sys.argv[1])
import agents.protocol
for folder in sys.argv[2:]:
    os.stat(folder)
"""


@dataclass(frozen=True)
class StageUser:
    """The agent's ``--run-as`` and, where it is not what one would expect, the sentence that says why."""

    run_as: Literal["self", "nobody"]
    why: str = ""


def choose(home: Home) -> StageUser:
    """Return who runs the stages: an ordinary user's agent itself; root's agent as uid 65534 wherever that can work."""
    if os.getuid() != 0:
        return StageUser("self")
    opened = (home.path, home.agents)
    for folder in opened:
        folder.chmod(0o711)
    trial = subprocess.run(
        leashed([sys.executable, "-c", _TRIAL, str(ROOT), str(home.agents / "."), str(home.shared)], user="nobody"),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if trial.returncode == 0:
        # Stages go through it to folders of their own, which the agent makes: nobody else may put one in their place.
        os.chown(home.shared, 0, 0)
        home.shared.chmod(0o711)
        return StageUser("nobody")
    for folder in opened:
        folder.chmod(0o700)
    said = trial.stderr.strip().splitlines() or [f"exit status {trial.returncode}"]
    return StageUser(
        "self",
        f"stages run as root: uid {NOBODY} cannot reach this Python, this folder or {home.path} ({said[-1]}). "
        "Start the stack as an ordinary user, or keep the three where every user may enter, to isolate them",
    )
