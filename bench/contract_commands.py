"""How long ``yard --help`` and ``yard ps`` take from the shell to the end of the process, against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figures, quantile

TIMES = 31


def measure(url: str, token: str) -> Figures:
    """Return the median of each in ms. The command is the installed one beside this Python."""
    yard = Path(sys.executable).parent / "yard"
    if not yard.exists():
        raise SystemExit(f"there is no {yard}; install the package into this environment first")
    environment = {**os.environ, "YARD_URL": url, "YARD_TOKEN": token}
    figures: dict[str, float | int | str] = {}
    remarks = []
    for name, arguments in (("yard_help_ms", ["--help"]), ("yard_ps_ms", ["ps", "-u", "all"])):
        took = []
        before = os.times()
        for _time in range(TIMES):
            begun = time.perf_counter()
            subprocess.run([str(yard), *arguments], env=environment, check=True, capture_output=True)
            took.append((time.perf_counter() - begun) * 1000)
        after = os.times()
        cpu_ms = (after.children_user + after.children_system - before.children_user - before.children_system) * 1000
        figures[name] = quantile(took, 0.5)
        remarks.append(
            f"yard {' '.join(arguments)}: p95 {quantile(took, 0.95):.0f} ms, {cpu_ms / TIMES:.0f} ms of CPU each"
        )
    return Figures(figures, remarks)
