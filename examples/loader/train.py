"""A trainer that waits for its input: worker processes make batches, each dearer than the step that eats it.

Says so, too: it reports ``input_wait``, the share of its time that it waits for a batch. On a node with idle cores the
agent then lends them to it, and takes them back when somebody claims them; the process stays the same. Needs nothing
but Python; outside Switchyard it just trains.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection, wait

try:
    from switchyard import runtime
except ImportError:  # outside a job
    runtime = None  # type: ignore[assignment]

REPORT_EVERY_S = 1.0


def make_batch(seed: int, rounds: int) -> bytes:
    """Decode and augment, in place of which this hashes: work for one core that nothing can skip."""
    content = seed.to_bytes(8, "little") * 512
    for _ in range(rounds):
        content = hashlib.sha256(content).digest() * 128
    return content


def load(outlet: Connection, worker: int, rounds: int) -> None:
    """In a worker: make batches for as long as anybody takes them."""
    seed = worker
    try:
        while True:
            outlet.send_bytes(make_batch(seed, rounds))
            seed += 1_000
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def step(weights: int, batch: bytes) -> int:
    """Learn from one batch: cheap against the making of it."""
    return (weights * 31 + int.from_bytes(batch[:8], "little")) % (1 << 61)


class Meter:
    """Counts steps and waiting over spans of a second, and reports them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a span."""
        self.began = time.monotonic()
        self.waited_s = 0.0
        self.steps = 0

    def tell(self, done: int, total: int) -> None:
        """Report the last span when it is over, and begin another."""
        passed = time.monotonic() - self.began
        if passed < REPORT_EVERY_S:
            return
        share, rate = self.waited_s / passed, self.steps / passed
        cores = len(os.sched_getaffinity(0))
        print(
            f"step {done} of {total}: {rate:.1f} steps/s on {cores} core(s), waits {share:.0%} of the time", flush=True
        )
        if runtime is not None:
            runtime.report(step=done, total=total, steps_per_s=rate, input_wait=round(share, 3))
        self.begin()


def train(total: int, workers: int, rounds: int) -> int:
    """Take batches from whichever worker has one, until all steps are done or a stop is asked for."""
    outlets = []
    for worker in range(workers):
        inlet, outlet = multiprocessing.Pipe(duplex=False)
        multiprocessing.Process(target=load, args=(outlet, worker, rounds), daemon=True).start()
        outlet.close()
        outlets.append(inlet)
    weights, done, meter = 1, 0, Meter()
    while done < total:
        asked = time.monotonic()
        ready = wait(outlets)
        meter.waited_s += time.monotonic() - asked
        for inlet in ready:
            weights = step(weights, inlet.recv_bytes())  # type: ignore[union-attr]
            done += 1
            meter.steps += 1
        meter.tell(done, total)
        if runtime is not None and runtime.should_stop():
            print(f"stopped after {done} steps", flush=True)
            return 0
    print(f"done: {done} steps, weights {weights}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4, help="processes that make batches")
    parser.add_argument("--rounds", type=int, default=600, help="how dear a batch is")
    options = parser.parse_args()
    return train(options.steps, options.workers, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
