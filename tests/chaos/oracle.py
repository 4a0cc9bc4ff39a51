"""What jobs under chaos write down of themselves, and the offline check that no two of one job were alive at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# One line a beat: who, and when by the clock that no suspension stops and nobody sets.
BEATS = """
import os, sys, time
out = os.open(sys.argv[1] + "/" + os.environ["YARD_JOB_ID"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
who = f'{os.environ["YARD_ATTEMPT"]} {os.environ["YARD_EPOCH"]} {os.getpid()}'
for beat in range(int(sys.argv[2]) + 1):
    word = "done" if beat == int(sys.argv[2]) else "beat"
    os.write(out, f"{who} {time.clock_gettime(time.CLOCK_BOOTTIME):.4f} {beat} {word}\\n".encode())
    time.sleep(0.05 if word == "beat" else 0)
"""


@dataclass(frozen=True)
class Run:
    """One process of a job, from its first beat to its last. Times of CLOCK_BOOTTIME."""

    attempt: int
    epoch: int
    pid: int
    first_at: float
    last_at: float
    is_done: bool


def runs(folder: Path) -> dict[int, list[Run]]:
    """All processes of every job, in the order in which they began."""
    beats: dict[int, dict[tuple[int, int, int], list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            attempt, epoch, pid, at, _, word = line.split()
            beats[int(file.name)][(int(attempt), int(epoch), int(pid))].append((float(at), word))
    return {
        job: sorted(
            (Run(*who, told[0][0], told[-1][0], told[-1][1] == "done") for who, told in each.items()),
            key=lambda run: run.first_at,
        )
        for job, each in beats.items()
    }


def doubled(found: dict[int, list[Run]]) -> list[tuple[int, Run, Run]]:
    """Pairs of processes of one job that were alive at once."""
    return [
        (job, one, other)
        for job, each in found.items()
        for number, one in enumerate(each)
        for other in each[number + 1 :]
        if other.first_at <= one.last_at
    ]
