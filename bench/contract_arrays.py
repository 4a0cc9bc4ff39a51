"""How long it takes to accept an array of 10,000 elements, over REST."""

from __future__ import annotations

import time

from bench.figures import Figures
from bench.stack import Bench, fresh_stack

ELEMENTS = 10_000
TIMES = 3
SPEC = {
    "name": "sweep",
    "hold": True,
    "run": "python train.py --lr $YARD_PARAM_LR --seed $YARD_PARAM_SEED",
    "env": {"WANDB_MODE": "offline"},
    "array": {
        "parameters": {"lr": [10.0**-n for n in range(10)], "seed": list(range(1000))},
        "max_parallel": 8,
    },
}


def accepted_s(bench: Bench) -> list[float]:
    """Return how long each of a few submissions took from the request to the answer."""
    took = []
    for _time in range(TIMES):
        begun = time.perf_counter()
        array = bench.client.jobs.submit(SPEC)
        took.append(time.perf_counter() - begun)
        if array["counts"] != {"HELD": ELEMENTS}:
            raise RuntimeError(f"not all elements are there: {array['counts']}")
        bench.client.jobs.cancel(array)
    return took


def measure() -> Figures:
    """Return the slowest of them."""
    with fresh_stack() as bench:
        took = accepted_s(bench)
    rounds = ", ".join(f"{each:.2f}" for each in took)
    return Figures({"array_10000_s": max(took)}, [f"{TIMES} arrays of {ELEMENTS:,} elements on hold: {rounds} s"])
