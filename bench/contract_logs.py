"""How long it takes to find a line in a log of 1 GB, as ``yard logs --grep`` does: request by request, to its end."""

from __future__ import annotations

import time

from bench.figures import Figures
from switchyard.client import Client

MEGABYTES, TIMES = 1_000, 3
NEEDLE = "CUDA error: an illegal memory access was encountered"
_LINE = b"step 120 | loss 1.9312 | lr 3.0e-05 | 41800 tokens/s | 74.1 GiB of device 3 | rank 17 of 64\n"


def write(megabytes: int = MEGABYTES) -> int:
    """Write a log of a running job, with the needle in its last piece; return the job's number."""
    from django.db import connection

    from controlplane.jobs import logs
    from controlplane.jobs.models import LogSpan, Part

    part = Part.objects.filter(attempt__stage__state="RUNNING", ended_at=None).earliest("id")
    piece = _LINE * (64 * 1024 // len(_LINE))
    count = megabytes * 10**6 // len(piece)
    last = piece.replace(b"loss 1.9312", NEEDLE.encode(), 1)
    sizes = [len(piece)] * (count - 1) + [len(last)]
    starts = [n * len(piece) for n in range(count)]
    LogSpan.objects.bulk_create(
        (
            LogSpan(part=part, stream="out", start=start, offset=start, size=size)
            for start, size in zip(starts, sizes, strict=True)
        ),
        batch_size=5_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_logspan")  # as the database does by itself when a table has grown
    logs.folder(part.id).mkdir(parents=True)
    with (logs.folder(part.id) / "out").open("wb") as file:
        file.writelines([piece] * (count - 1) + [last])
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
