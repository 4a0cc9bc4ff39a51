"""Submit over REST to the first instruction of the user's process, on an idle stack with one node.

The job is ``date +%s%N``: what it prints is read from its log and compared with this process's clock just before the
POST, on the same machine. One job at a time; the next one starts when the stack is idle again.
"""

from __future__ import annotations

import time

from bench.figures import Figures, quantile
from bench.stack import Bench, fresh_stack

WARM_UP = 10
SAMPLES = 200
PAUSE_S = 0.05
SPEC = {"name": "latency", "command": ["date", "+%s%N"], "cpus": 0.1, "memory": "64MiB"}


def measure() -> Figures:
    """Return ``p50_ms`` and ``p99_ms``."""
    with fresh_stack() as bench:
        rows = [one(bench) for _ in range(WARM_UP + SAMPLES)][WARM_UP:]
    first = [row[1] for row in rows]
    return Figures(
        {"p50_ms": quantile(first, 0.5), "p99_ms": quantile(first, 0.99), "max_ms": max(first), "samples": len(rows)},
        [
            f"of it until the POST was answered: p50 {quantile([row[0] for row in rows], 0.5):.1f} ms",
            f"submit to COMPLETED as a client sees it: p50 {quantile([row[2] for row in rows], 0.5):.1f} ms",
        ],
    )


def one(bench: Bench) -> tuple[float, float, float]:
    """Run one job; return milliseconds to the POST's answer, to the first instruction, and to the end."""
    began_ns = time.time_ns()
    job = bench.client.jobs.submit(SPEC)
    answered_ns = time.time_ns()
    while not (job := bench.client.jobs.get(job)).is_final:
        time.sleep(0.01)
    ended_ns = time.time_ns()
    if job.state != "COMPLETED":
        raise SystemExit(f"job {job.number} ended {job.state} ({job.cause})")
    started_ns = printed(bench, job.number)
    time.sleep(PAUSE_S)
    return (answered_ns - began_ns) / 1e6, (started_ns - began_ns) / 1e6, (ended_ns - began_ns) / 1e6


def printed(bench: Bench, number: int) -> int:
    """Return the number that the job printed; its log may arrive a moment after its end."""
    for _ in range(500):
        text = "".join(bench.client.jobs.logs(number, stream="out")).strip()
        if text:
            return int(text)
        time.sleep(0.02)
    raise SystemExit(f"job {number} ended without output")
