"""Submit over REST to the first instruction of the user's process, on an idle stack with one node.

The job is ``date +%s%N``: what it prints is read from its log and compared with this process's clock just before the
POST, on the same machine. One job at a time; the next one starts when the stack is idle again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figures import Figures, moment, quantile
from bench.stack import Bench, fresh_stack

WARM_UP = 10
SAMPLES = 200
SPEC = {"name": "latency", "command": ["date", "+%s%N"], "cpus": 0.1, "memory": "64MiB"}
# Nobody asks about the job before it has had time to start: on few cores the asking would be part of the figure.
QUIET_S = 0.3


@dataclass(frozen=True)
class Sample:
    """Milliseconds from just before the POST."""

    answered: float
    submitted: float
    placed: float
    first_instruction: float
    ended: float


def measure() -> Figures:
    """Return ``p50_ms`` and ``p99_ms``."""
    with fresh_stack() as bench:
        samples = [one(bench) for _ in range(WARM_UP + SAMPLES)][WARM_UP:]
    first = [sample.first_instruction for sample in samples]
    return Figures(
        {"p50_ms": quantile(first, 0.5), "p99_ms": quantile(first, 0.99), "max_ms": max(first), "samples": len(first)},
        [
            f"p50 from the POST to: {name} {quantile([getattr(sample, field) for sample in samples], 0.5):.1f} ms"
            for field, name in (
                ("submitted", "submitted_at"),
                ("answered", "its answer"),
                ("placed", "the job's started_at"),
                ("first_instruction", "the first instruction"),
                ("ended", "the recorded end"),
            )
        ],
    )


def one(bench: Bench) -> Sample:
    """Run one job to its end."""
    began = time.time()
    job = bench.client.jobs.submit(SPEC)
    answered = time.time()
    time.sleep(QUIET_S)
    while not (job := bench.client.jobs.get(job)).is_final:
        time.sleep(0.05)
    if job.state != "COMPLETED":
        raise SystemExit(f"job {job.number} ended {job.state} ({job.cause})")
    moments = (
        answered,
        moment(job["submitted_at"]),
        moment(job["started_at"]),
        printed(bench, job.number),
        moment(job["ended_at"]),
    )
    return Sample(*((at - began) * 1000 for at in moments))


def printed(bench: Bench, number: int) -> float:
    """Return the time that the job printed; its log may arrive a moment after its end."""
    for _ in range(500):
        text = "".join(bench.client.jobs.logs(number, stream="out")).strip()
        if text:
            return int(text) / 1e9
        time.sleep(0.02)
    raise SystemExit(f"job {number} ended without output")
