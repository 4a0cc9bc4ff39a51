"""The loop that pretrain and train share: deterministic, resumable, and quick to stop when asked."""

from __future__ import annotations

import json
import sys
import time
import zlib
from dataclasses import asdict
from math import cos, pi
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from finetune import checkpoint
from switchyard import runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from finetune.framework import Model
    from finetune.settings import Settings

# What the final weights depend on; the rest of the settings may differ between two attempts.
DECIDING = ("steps", "batch", "rate", "seed", "freeze")


def read_tokens(name: str) -> NDArray[np.uint16]:
    """One file of tokens that preprocess wrote, e.g. ``"prose.train"``."""
    path = Path(runtime.input_dir("preprocess")) / f"{name}.npy"
    if not path.exists():
        raise SystemExit(f"there is no {path}: run the stage preprocess first")
    tokens: NDArray[np.uint16] = np.load(path)
    return tokens


def run(stage: str, model: Model, text: NDArray[np.uint16], settings: Settings) -> float:
    """Trains ``model`` for the steps that are left; returns the loss of the last step.

    The text of a step depends on the seed and the step alone, and a checkpoint holds all the rest, so an interrupted
    run ends where an uninterrupted one does. Asked to stop, it saves and exits with ``runtime.EXIT_CHECKPOINTED``.
    """
    runtime.install_signal()
    name = _name_of(stage, model, text, settings)
    step, loss = _resume(model, name)
    begun_at, begun_step, saved_at = time.monotonic(), step, time.monotonic()
    while step < settings.steps:
        if runtime.should_stop():
            _stop(stage, name, step, loss, model)
        loss = model.train_step(batch(text, settings, model.shape.context, step), _rate(settings, step))
        step += 1
        now = time.monotonic()
        pace = (step - begun_step) * settings.batch * model.shape.context / max(now - begun_at, 1e-9)
        runtime.report(step=step, total=settings.steps, loss=loss, tokens_per_s=round(pace))
        if step % settings.log_every == 0 or step == settings.steps:
            print(f"step {step:>5}/{settings.steps}  loss {loss:.4f}  {pace:,.0f} tokens/s", flush=True)
        if now - saved_at >= settings.checkpoint_every_s or step == settings.steps:
            _save(stage, name, step, loss, model)
            saved_at = time.monotonic()
    return loss


def batch(text: NDArray[np.uint16], settings: Settings, context: int, step: int) -> NDArray[np.uint16]:
    """The sequences of one step, dims (batch, context + 1), from places that the seed and the step choose."""
    dice = np.random.default_rng([settings.seed, step])
    starts = dice.integers(0, len(text) - context, settings.batch)
    rows: NDArray[np.uint16] = text[starts[:, None] + np.arange(context + 1)]
    return rows


def _rate(settings: Settings, step: int) -> float:
    """Rises over the first twentieth, then falls along a half cosine to a tenth. Zero where all is frozen."""
    if settings.freeze:
        return 0.0
    rise = max(1, settings.steps // 20)
    if step < rise:
        return settings.rate * (step + 1) / rise
    part = (step - rise) / max(1, settings.steps - rise)
    return settings.rate * (0.1 + 0.45 * (1 + cos(pi * part)))


def _name_of(stage: str, model: Model, text: NDArray[np.uint16], settings: Settings) -> str:
    facts: dict[str, Any] = {"stage": stage, **asdict(model.shape)}
    facts |= {setting: getattr(settings, setting) for setting in DECIDING}
    facts |= {"text": zlib.crc32(text.tobytes()), "from": zlib.crc32(model.state().flat.tobytes())}
    return json.dumps(facts, sort_keys=True)


def _resume(model: Model, name: str) -> tuple[int, float]:
    found = checkpoint.read(name)
    if found is None:
        return 0, float("nan")
    step, loss, state = found
    model.restore(state)
    print(f"resuming from the checkpoint of step {step}", flush=True)
    return step, loss


def _save(stage: str, name: str, step: int, loss: float, model: Model) -> None:
    with runtime.phase("checkpoint", critical=True):
        confirmed = checkpoint.write(stage, name, step, loss, model.state())
    if confirmed:
        print(f"checkpoint at step {step}", flush=True)


def _stop(stage: str, name: str, step: int, loss: float, model: Model) -> NoReturn:
    print(f"asked to stop ({runtime.stop_reason()}) after step {step}", flush=True)
    if step:
        _save(stage, name, step, loss, model)
    sys.exit(runtime.EXIT_CHECKPOINTED)
