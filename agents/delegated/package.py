"""The part of the agent that a foreign job runs: its supervisor, in a folder that the engine's nodes see."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Final

# A program for "python -I -S -c", with the folder of supervisor_package and the run folder of a part as its arguments.
_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); from agents.supervisor.foreign import {0}; sys.exit({0}(sys.argv[2]))"
)
START: Final = _START.format("run")
# The same for an engine that does not end what a job leaves behind.
START_GUARDED: Final = _START.format("guard")


def supervisor_package(state: Path) -> Path:
    """Copy what a supervisor needs to the shared folder, under a name that tells which version it is; return its
    folder. A job that still waits keeps the one that it was submitted with."""
    source = Path(__file__).resolve().parents[1]
    files = [source / f"{name}.py" for name in ("__init__", "ends", "masking", "notes")]
    files += [path for folder in ("supervisor", "isolation") for path in sorted((source / folder).glob("*.py"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    made = state / f"supervisor-{digest}"
    if not made.exists():
        draft = state / f"supervisor-{digest}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        for path in files:
            target = draft / "agents" / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        draft.rename(made)
    return made
