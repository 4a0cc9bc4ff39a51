"""The machine that a figure was measured on; a figure without it says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def describe() -> str:
    """Return cores, memory, processor and versions in one line."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, {_processor()}, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
