"""How long it takes to find a line in a log of 1 GB, as ``yard logs --grep`` does: request by request, to its end."""

from __future__ import annotations

import time

from bench import part_log
from bench.figures import Figures
from switchyard.client import Client

MEGABYTES, TIMES = 1_000, 3
NEEDLE = "CUDA error: an illegal memory access was encountered"
_LINE = b"step 120 | loss 1.9312 | lr 3.0e-05 | 41800 tokens/s | 74.1 GiB of device 3 | rank 17 of 64\n"


def write(megabytes: int = MEGABYTES) -> int:
    """Write a log of a running job, with the needle in its last piece; return the job's number."""
    from controlplane.jobs.models import Part

    part = Part.objects.filter(attempt__stage__state="RUNNING", ended_at=None).earliest("id")
    piece = _LINE * (64 * 1024 // len(_LINE))
    count = megabytes * 10**6 // len(piece)
    last = piece.replace(b"loss 1.9312", NEEDLE.encode(), 1)
    part_log.write(part, [piece] * (count - 1) + [last], ["out"])
    return int(part.attempt.stage.job.number)


def measure(client: Client, megabytes: int = MEGABYTES) -> Figures:
    """Return the slowest of a few searches through the whole log."""
    number = write(megabytes)
    took = []
    for _time in range(TIMES):
        begun = time.perf_counter()
        found = list(client.jobs.search(number, NEEDLE))
        took.append(time.perf_counter() - begun)
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} lines were found, not the one")
    rounds = ", ".join(f"{each:.2f}" for each in took)
    return Figures({"grep_1gb_s": max(took)}, [f"searches through {megabytes:,} MB of log: {rounds} s"])
