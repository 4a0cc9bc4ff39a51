"""The training state on disk: written whole or not at all, and read back only by the run that it belongs to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from finetune.weights import State
from switchyard import runtime

KEEP = 2


def write(stage: str, run: str, step: int, loss: float, state: State) -> bool:
    """Writes and confirms a checkpoint, then drops all but the newest two. Returns whether it is confirmed.

    ``run`` names everything that the result depends on. A full disk costs the checkpoint, not the training.
    """
    folder = Path(runtime.checkpoint_dir())
    path = folder / f"{stage}-{step:06d}.npz"
    temporary = folder / f".{path.name}.{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            np.savez(file, run=run, step=step, loss=loss, **vars(state))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        print(f"no checkpoint at step {step}: {error}", flush=True)
        return False
    confirmed = runtime.checkpoint(step, str(path))
    if confirmed:
        _drop_old(folder, stage, step)
    return confirmed


def read(run: str) -> tuple[int, float, State] | None:
    """Step, loss and state to resume from, or ``None``; says why when one is there but cannot serve ``run``."""
    path = runtime.latest_checkpoint()
    if path is None:
        return None
    try:
        with open(path, "rb") as raw, np.load(raw) as file:
            if str(file["run"]) != run:
                print(f"{path} belongs to another run (other settings or other text): starting from the beginning")
                return None
            state = State(file["flat"], file["first"], file["second"], int(file["updates"]))
            return int(file["step"]), float(file["loss"]), state
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        print(f"{path} cannot be read ({error}): starting from the beginning")
        return None


def _drop_old(folder: Path, stage: str, newest: int) -> None:
    # Only files that this code wrote, and never one that is newer than what was just confirmed.
    pattern = re.compile(rf"{re.escape(stage)}-(\d{{6}})\.npz")
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))]
    older = sorted((item for item in found if item[0] <= newest), reverse=True)
    for _, path in older[KEEP:]:
        path.unlink(missing_ok=True)
