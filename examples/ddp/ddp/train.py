"""Trains on as many nodes as there are, and goes on with more or fewer of them from where the others stopped.

The batch of a step is cut into pieces. Whoever computes a piece, the gradients of all pieces are added in the order of
the pieces, so one, two or four processes end with the same weights to the last bit, interrupted or not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ddp.group import Group, any_of, from_first, join
from ddp.model import Model, TorchModel, Vector, batch
from switchyard import runtime

PIECES = 4
ROWS = 64
MOMENTUM = 0.9


def settings() -> argparse.Namespace:
    """Flags, each with a variable of the environment as its default."""

    def told(name: str, otherwise: str) -> str:
        return os.environ.get(f"DDP_{name}", otherwise)

    parser = argparse.ArgumentParser(prog="ddp.train", description="Data-parallel training that may lose its nodes.")
    parser.add_argument("--steps", type=int, default=told("STEPS", "400"))
    parser.add_argument("--width", type=int, default=told("WIDTH", "64"))
    parser.add_argument("--rate", type=float, default=told("RATE", "0.05"))
    parser.add_argument("--seed", type=int, default=told("SEED", "7"))
    parser.add_argument("--checkpoint-every", type=float, default=told("CHECKPOINT_EVERY", "2"), help="seconds")
    parser.add_argument("--pause", type=float, default=told("PAUSE", "0"), help="seconds between steps, to watch it")
    parser.add_argument(
        "--work", type=float, default=told("WORK", "0"), help="seconds of pretended work in a step, for all to share"
    )
    parser.add_argument("--resume", default=told("RESUME", ""), help="a checkpoint of another job to begin with")
    parser.add_argument("--framework", choices=["auto", "torch", "numpy"], default=told("FRAMEWORK", "auto"))
    return parser.parse_args()


def framework(wanted: str) -> str:
    if wanted == "auto":
        return "torch" if find_spec("torch") else "numpy"
    return wanted


class Run:
    """One process of the run. The state is one vector: step, weights, velocity."""

    def __init__(self, options: argparse.Namespace, group: Group) -> None:
        self.options, self.group = options, group
        kind = TorchModel if framework(options.framework) == "torch" else Model
        self.model = kind(options.width, options.seed)
        self.velocity = np.zeros_like(self.model.flat)
        self.step = 0
        self.loss = float("nan")

    @property
    def state(self) -> Vector:
        return np.concatenate([[self.step], self.model.flat, self.velocity])

    def resume(self) -> None:
        """Everybody begins with what rank 0 finds, so the disk need not be shared."""
        path = runtime.latest_checkpoint() or self.options.resume
        if self.group.rank == 0 and path:
            self._take(np.load(path))
            print(f"resuming from step {self.step} on {self.group.size} process(es)", flush=True)
        self._take(from_first(self.group, self.state))

    def _take(self, state: Vector) -> None:
        size = len(self.model.flat)
        self.step = int(state[0])
        self.model.flat, self.velocity = state[1 : 1 + size].copy(), state[1 + size :].copy()

    def advance(self) -> None:
        """One step. Each process computes every ``size``-th piece; all add all pieces in the same order."""
        mine = range(self.group.rank, PIECES, self.group.size)
        rows = np.zeros((-(-PIECES // self.group.size), 1 + len(self.model.flat)))
        for place, piece in enumerate(mine):
            loss, gradient = self.model.gradient(*batch(self.options.seed, self.step, piece, ROWS))
            rows[place] = np.concatenate([[loss], gradient])
        found = self.group.gather(rows)
        total = np.zeros(rows.shape[1])
        for piece in range(PIECES):
            total += found[piece % self.group.size][piece // self.group.size]
        mean = total / (PIECES * ROWS)
        self.loss = float(mean[0])
        self.velocity = MOMENTUM * self.velocity - self.options.rate * mean[1:]
        self.model.flat = self.model.flat + self.velocity
        self.step += 1

    def save(self) -> None:
        """Rank 0 writes beside and renames, confirms, and drops all but the newest two."""
        if self.group.rank:
            return
        folder = Path(runtime.checkpoint_dir())
        path, draft = folder / f"state-{self.step:07d}.npy", folder / ".state.draft"
        with runtime.phase("checkpoint", critical=True):
            with draft.open("wb") as file:
                np.save(file, self.state)
            draft.replace(path)
            if runtime.checkpoint(self.step, str(path)):
                for old in sorted(folder.glob("state-*.npy"))[:-2]:
                    old.unlink(missing_ok=True)

    def finish(self) -> None:
        if self.group.rank == 0:
            path = Path(runtime.output_dir()) / "model.npy"
            np.save(path, self.model.flat)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            runtime.report(step=self.step, total=self.options.steps, loss=self.loss, digest=digest)
            print(f"done after {self.step} steps, loss {self.loss:.6f}, weights {digest[:16]}", flush=True)
        self.group.close()


def main() -> None:
    """The loop that every process runs."""
    runtime.install_signal()
    options = settings()
    group = join(framework(options.framework))
    if PIECES % group.size:
        raise SystemExit(f"a batch of {PIECES} pieces cannot be shared by {group.size} processes: use 1, 2 or 4")
    run = Run(options, group)
    run.resume()
    where = f"rank {group.rank} of {group.size} ({group.name}, {type(run.model).__name__})"
    print(f"{where} begins at step {run.step}", flush=True)
    saved_at = time.monotonic()
    while run.step < options.steps:
        # Rank 0 alone would do for the clock, but the notice may reach any node first.
        if any_of(group, runtime.should_stop()):
            run.save()
            print(f"{where} was asked to stop ({runtime.stop_reason() or 'elsewhere'}) at step {run.step}", flush=True)
            group.close()
            sys.exit(runtime.EXIT_CHECKPOINTED)
        run.advance()
        if group.rank == 0:
            runtime.report(step=run.step, total=options.steps, loss=run.loss)
            if time.monotonic() - saved_at >= options.checkpoint_every:
                run.save()
                saved_at = time.monotonic()
        if options.pause or options.work:
            time.sleep(options.pause + options.work / group.size)
    run.finish()


if __name__ == "__main__":
    main()
