"""Makes docs/screenshots/tour.webp, the picture of the README that moves: ``./script/screenshots tour``.

A stack of its own runs for it, with simulated nodes; jobs are submitted, wait and run, and a real Chromium shows it.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser.site import LAUNCH, ROOT

TARGET = ROOT / "docs" / "screenshots" / "tour.webp"
SIZE = {"width": 1200, "height": 750}
NODES = "dgx-h100,atlas-800,laptop"
# What others have running already: name, devices, seconds.
EARLIER = (("pretrain", "gpu:4", 300), ("eval", "npu:2", 300), ("tune", "gpu:1", 300), ("rollout", "npu:3", 300))
JOB = """name: llama-sft
pool: simulated
time_limit: 30m
stages:
  - name: prepare
    devices: {kind: cpu}
    run: sleep 4
  - name: train
    needs: [prepare]
    devices: {kind: gpu, count: 2}
    run: sleep 240
"""
LARGE = """name: nightly-eval
pool: simulated
time_limit: 1h
devices: {kind: gpu, count: 6}
run: sleep 60
"""


class Film:
    """Pictures of a page, and how long each of them stands."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.lasts_ms: list[int] = []

    def shoot(self, lasts_ms: int) -> None:
        """Add what the page shows now."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture.resize((1000, 625), Image.Resampling.LANCZOS))
        self.lasts_ms.append(lasts_ms)

    def open(self, path: str) -> None:
        """Go to a page of the stack, and wait until it is live and its charts are drawn."""
        self.page.goto(path)
        self.page.wait_for_selector("[data-live-pill][data-state=live]")
        self.page.wait_for_timeout(1500)

    def write(self, text: str) -> None:
        """Write a job file as somebody types it, line by line, and wait for the verdict of the dry run."""
        typed = ""
        field = self.page.locator("[data-yaml]")
        for line in text.splitlines(keepends=True):
            typed += line
            field.fill(typed)
            self.shoot(220)
        self.page.wait_for_timeout(2500)
        self.shoot(2600)

    def submit(self) -> str:
        """Submit what was written; returns the address of the job's page."""
        self.page.click("[data-submit]")
        self.page.wait_for_url(re.compile(r"/jobs/\d+$"))
        return self.page.url

    def save(self, target: Path) -> None:
        """Write all pictures as one."""
        first, *rest = self.frames
        first.save(target, save_all=True, append_images=rest, duration=self.lasts_ms, loop=0, quality=70, method=6)


@contextmanager
def stack(home: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A stack of its own: a link that signs in, and the environment in which ``yard`` finds it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "YARD_HOME": str(home / "yard"), "PYTHONPATH": str(ROOT)}
    as_root = ["--stages-as-root"] if os.geteuid() == 0 else []
    command = [sys.executable, "-P", "-m", "deploy.local", "up", "--port", str(port), "--simulate", NODES, *as_root]
    log = home / "up.log"
    with log.open("w") as output:
        running = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 300
        while "\nReady." not in log.read_text():
            if running.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the stack did not start:\n{log.read_text()}")
            time.sleep(0.5)
        link = re.search(r"http://\S+/sign-in/\S+", log.read_text())
        assert link is not None
        yield link[0], environment
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)


def yard(environment: dict[str, str], *words: str) -> str:
    """Run the ``yard`` command; returns what it prints."""
    command = [sys.executable, "-m", "switchyard", *words]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def tour(film: Film, link: str, environment: dict[str, str]) -> None:
    """From the overview to a job that runs, one that waits and says why, and a node that is taken out of service."""
    page = film.page
    address = link.partition("/sign-in/")[0]
    page.goto(link)
    page.click("button[type=submit]")
    for name, devices, lasts_s in EARLIER:
        yard(
            environment, "submit", "--pool", "simulated", "--name", name, "--devices", devices, "--time", "1h",
            "--", "sleep", str(lasts_s),
        )  # fmt: skip
    page.wait_for_timeout(8000)
    film.open(f"{address}/")
    film.shoot(2000)
    film.open(f"{address}/jobs/new")
    film.write(JOB)
    job = film.submit()
    for _ in range(3):
        page.wait_for_timeout(1200)
        film.shoot(900)
    page.wait_for_timeout(6000)
    film.shoot(2200)
    film.open(f"{address}/jobs/new")
    film.write(LARGE)
    film.submit()
    page.wait_for_timeout(6000)
    film.shoot(3500)
    film.open(f"{address}/timeline")
    film.shoot(2500)
    nodes = yard(environment, "nodes", "-o", "name").split()
    yard(environment, "drain", next(name for name in nodes if "atlas" in name), "--reason", "new fans")
    film.open(f"{address}/nodes")
    film.shoot(2500)
    film.open(f"{address}/")
    film.shoot(2500)
    film.open(job)
    film.shoot(2000)


def main(chromium: str) -> None:
    """Make the picture with this browser."""
    with tempfile.TemporaryDirectory(prefix="yard-tour-") as folder, stack(Path(folder)) as (link, environment):
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
            page = browser.new_page(viewport=SIZE, color_scheme="light", locale="en-US")  # type: ignore[arg-type]
            film = Film(page)
            tour(film, link, environment)
            browser.close()
    film.save(TARGET)
    print(f"{TARGET.relative_to(ROOT)}: {len(film.frames)} pictures, {TARGET.stat().st_size / 2**20:.2f} MiB")
