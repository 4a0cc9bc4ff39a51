"""Finds a large cut of a random graph as a QUBO, by simulated annealing. Runs on a stage's device, or by itself.

Minimise x'Qx over x in {0, 1}: each edge (i, j) of weight w adds -w to Q[i][i] and Q[j][j] and 2w between them, so that
the energy is minus the weight of the edges that the two sides cut.
"""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

try:
    from switchyard import runtime
except ImportError:
    runtime = None

MARK = Path(os.environ.get("QUBO_MARK", "/tmp/switchyard-example-annealer"))


def graph(size: int, share: float, seed: int) -> list[dict[int, int]]:
    """A random graph: for each node its neighbours with the weight of the edge between them."""
    chance = random.Random(seed)
    edges: list[dict[int, int]] = [{} for _ in range(size)]
    for one in range(size):
        for other in range(one + 1, size):
            if chance.random() < share:
                edges[one][other] = edges[other][one] = chance.randint(1, 9)
    return edges


def energy(edges: list[dict[int, int]], sides: list[int]) -> int:
    """Minus the weight of the cut."""
    return -sum(
        w for one, to in enumerate(edges) for other, w in to.items() if one < other and sides[one] != sides[other]
    )


def gain(edges: list[dict[int, int]], sides: list[int], node: int) -> int:
    """By how much the energy changes when a node changes its side."""
    return sum(w if sides[node] != sides[other] else -w for other, w in edges[node].items())


def anneal(edges: list[dict[int, int]], sweeps: int, seed: int) -> tuple[int, list[int]]:
    """The best energy found and its sides."""
    chance = random.Random(seed)
    sides = [chance.randint(0, 1) for _ in edges]
    now = best = energy(edges, sides)
    best_sides = list(sides)
    for sweep in range(sweeps):
        heat = 20.0 * (0.02 / 20.0) ** (sweep / max(1, sweeps - 1))
        for node in range(len(edges)):
            change = gain(edges, sides, node)
            if change <= 0 or chance.random() < math.exp(-change / heat):
                sides[node] ^= 1
                now += change
                if now < best:
                    best, best_sides = now, list(sides)
        tell(sweep + 1, sweeps, best)
        if runtime is not None and runtime.should_stop():
            break
    return best, best_sides


def tell(sweep: int, sweeps: int, best: int) -> None:
    """Report now and then, and keep the mark that the device is in use."""
    if sweep % 50 and sweep != sweeps:
        return
    try:
        MARK.touch(mode=0o666)
    except OSError:
        pass
    if runtime is not None:
        runtime.report(step=sweep, total=sweeps, cut=-best)


def main() -> int:
    parser = argparse.ArgumentParser(description="Find a large cut of a random graph.")
    parser.add_argument("--size", type=int, default=128, help="nodes of the graph")
    parser.add_argument("--share", type=float, default=0.2, help="share of all possible edges")
    parser.add_argument("--sweeps", type=int, default=3000, help="passes over all nodes")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    device = os.environ.get("YARD_DEVICE_MODEL") or "no device: this host's CPU"
    simulated = " (simulated: a CPU does the work)" if os.environ.get("YARD_DEVICE_SIMULATED") == "1" else ""
    print(f"annealing {options.size} variables on {device}{simulated}", flush=True)
    began = time.monotonic()
    edges = graph(options.size, options.share, options.seed)
    best, sides = anneal(edges, options.sweeps, options.seed)
    whole = sum(w for one, to in enumerate(edges) for other, w in to.items() if one < other)
    found = {"cut": -best, "of": whole, "sides": sides, "seconds": round(time.monotonic() - began, 3)}
    folder = Path(os.environ.get("YARD_OUTPUT_DIR") or ".")
    (folder / "cut.json").write_text(json.dumps(found))
    print(f"cut {-best} of {whole} in {found['seconds']} s; energy checked: {energy(edges, sides) == best}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
