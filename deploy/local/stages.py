"""Stops the stages of agents of one state folder, also those whose agent was killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from deploy.local.home import Home
from deploy.local.service import importing, open_log, python

PATIENCE_S = 60


def stop_stages(home: Home) -> list[Path]:
    """Stop all stages; return the agent folders where that failed; ``log/agent-stop.log`` has the reasons."""
    if not home.agents.is_dir():
        return []
    home.logs.mkdir(mode=0o700, exist_ok=True)
    return [state for state in sorted(home.agents.iterdir()) if state.is_dir() and not _stop(home, state)]


def _stop(home: Home, state: Path) -> bool:
    log = open_log(home.logs / "agent-stop.log")
    try:
        ended = subprocess.run(
            python("-m", "agents", "stop-all", "--state", str(state)),
            env=importing({**os.environ, "YARD_HOME": str(home.path)}),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        os.close(log)
    return ended.returncode == 0
