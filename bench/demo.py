"""From a fresh clone to the first page and to the finished job, with a cold and then a warm package cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench.figures import Figures

ROOT = Path(__file__).parents[1]


def measure() -> Figures:
    """Return ``first_page_s`` and ``job_done_s`` of the cold run, and both of the warm one."""
    folder = Path(tempfile.mkdtemp(prefix="yard-bench-"))
    try:
        cold = run(folder, "cold")
        warm = run(folder, "warm")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Figures(
        {"first_page_s": cold[0], "job_done_s": cold[1], "warm_first_page_s": warm[0], "warm_job_done_s": warm[1]},
        ["from the first command in a fresh clone; cold: nothing of the packages is on the machine"],
    )


def run(folder: Path, name: str) -> tuple[float, float]:
    """Clone, start the demo, and return seconds to the first page and to the end of the job."""
    clone = folder / name
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    cache = folder / "cache"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("YARD_")}
    environment |= {
        "YARD_HOME": str(folder / f"{name}-home"),
        "PIP_CACHE_DIR": str(cache / "pip"),
        "UV_CACHE_DIR": str(cache / "uv"),
    }
    began = time.monotonic()
    first_page_s = job_done_s = 0.0
    with subprocess.Popen(
        [str(clone / "script" / "demo"), "--exit", "--port", "18470"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(f"  {line.rstrip()}", flush=True)
                if line.startswith("Dashboard "):
                    first_page_s = wait_for_page(line.split()[1], began)
                if line.startswith("Job ") and not line.rstrip().endswith(")") and "COMPLETED" in line:
                    job_done_s = time.monotonic() - began
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise SystemExit(f"the demo ended with status {process.returncode}")
    return first_page_s, job_done_s


def wait_for_page(url: str, began: float) -> float:
    """Ask for the first page until it comes; return the seconds since ``began``."""
    while True:
        try:
            with urlopen(url, timeout=10) as answer:
                answer.read()
            return time.monotonic() - began
        except URLError:
            time.sleep(0.05)
