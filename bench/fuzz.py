"""Inputs made bad on purpose for every file and answer that jobs, tools and other nodes write: who reads them lives on.

A *death* is an error that a reader does not declare, a process that ends or hangs. The shim's readers run in a process
with the shim's imports only (Python without site-packages; ``json`` is not loaded), the others with the agent's.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.doors import agent, shim
from bench.figures import Figures

ROOT = Path(__file__).parents[1]
INPUTS = 1_000_000
HUNG_S = 120.0
SEED = 11


@dataclass
class Tried:
    """What one door was tried with. ``deaths`` are sentences, of which a worker tells some and counts all."""

    door: str
    inputs: int = 0
    count: int = 0
    deaths: list[str] = field(default_factory=list)


def measure(inputs: int = INPUTS) -> Figures:
    """Try every door with its share of the inputs; the figure to look at is ``fuzz_deaths``."""
    began = time.monotonic()
    tried = every_door(inputs)
    values: dict[str, int | float | str] = {
        "fuzz_deaths": sum(each.count for each in tried),
        "fuzz_inputs": sum(each.inputs for each in tried),
        "fuzz_doors": len(tried),
        "fuzz_s": time.monotonic() - began,
    }
    return Figures(values, [f"{each.door}: {death}" for each in tried for death in each.deaths[:3]])


def every_door(inputs: int, seed: int = SEED) -> list[Tried]:
    """Two doors at a time or as many as there are cores; the inputs are the same for the same seed."""
    doors = [("shim", name) for name in shim.DOORS] + [("agent", name) for name in agent.DOORS]
    shares = [inputs // len(doors) + (at < inputs % len(doors)) for at in range(len(doors))]
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        return list(
            pool.map(
                lambda work: one_door(*work), [(*door, share, seed) for door, share in zip(doors, shares, strict=True)]
            )
        )


def one_door(module: str, door: str, inputs: int, seed: int = SEED, hung_s: float = HUNG_S) -> Tried:
    """Try one door in a process of its own, and see to it that it comes to its end."""
    folder = tempfile.mkdtemp(prefix="yard-fuzz-")
    bare = ["-I", "-S"] if module == "shim" else []
    words = [str(ROOT), module, door, str(inputs), str(seed), folder]
    worker = subprocess.Popen(
        [sys.executable, *bare, str(Path(__file__).parent / "doors" / "worker.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    tried = Tried(door)
    try:
        last = _follow(worker, tried, hung_s)
    finally:
        worker.kill()
        code = worker.wait()
        shutil.rmtree(folder, ignore_errors=True)
    if not last.startswith("done "):
        tried.count += 1
        tried.deaths.append(f"its process ended with {code}: {last[:300]}" if last != "hung" else "its process hung")
    return tried


def _follow(worker: subprocess.Popen[bytes], tried: Tried, hung_s: float) -> str:
    """Take what a worker tells until it has told its end; answers its last line, or ``hung``."""
    assert worker.stdout is not None
    last, rest = "", b""
    with worker.stdout as pipe:
        while True:
            if not select.select([pipe], [], [], hung_s)[0]:
                return "hung"
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                return last
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                last = line.decode(errors="replace")
                if last.startswith("death "):
                    tried.deaths.append(last.removeprefix("death "))
                elif last.startswith("done "):
                    _, inputs, count, with_json = last.split()
                    tried.inputs, tried.count = int(inputs), int(count)
                    if with_json != "0":
                        tried.count += 1
                        tried.deaths.append("json was loaded, which no shim has")
