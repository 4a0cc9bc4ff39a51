"""A real Chromium without a window, and what it knows about the page that it shows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

# Of every Chromium that is started here, also by tests.
LAUNCH = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip
# From the page's first moment on; the largest paint counts until the measurement looks at it.
_WATCH = """
window.__tasks = []; window.__paint = 0;
new PerformanceObserver(list => __tasks.push(...list.getEntries().map(e => e.duration)))
  .observe({ type: "longtask", buffered: true });
for (const type of ["paint", "largest-contentful-paint"])
  new PerformanceObserver(list => list.getEntries().forEach(e => { __paint = Math.max(__paint, e.startTime); }))
    .observe({ type, buffered: true });
"""
_DRAWN = """[...document.querySelectorAll("[data-chart]")]
    .filter(e => e.clientWidth && e.getBoundingClientRect().top < innerHeight)
    .every(e => e.classList.contains("js-plotly-plot"))"""


def path() -> str:
    """Return the path of a Chromium: ``YARD_CHROMIUM``, or the first on the path."""
    names = (os.environ.get("YARD_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    for name in names:
        if name and (found := shutil.which(name)):
            return found
    raise SystemExit("no Chromium was found; install the package chromium, or name one in YARD_CHROMIUM")


@dataclass(frozen=True)
class Visitor:
    """Somebody who is signed in at ``url`` by a cookie, and opens pages."""

    browser: Browser
    url: str
    session: str

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """Open a window with an empty cache; it is watched from its first page on."""
        context = await self.browser.new_context(viewport={"width": 1440, "height": 900})
        try:
            await context.add_cookies([{"name": "yard_session", "value": self.session, "url": self.url}])
            await context.add_init_script(_WATCH)
            yield await context.new_page()
        finally:
            await context.close()


@asynccontextmanager
async def visitor(url: str, session: str) -> AsyncIterator[Visitor]:
    """Start Chromium for somebody with this session."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path(), args=[*LAUNCH, "--enable-precise-memory-info"]
        )
        try:
            yield Visitor(browser, url, session)
        finally:
            await browser.close()


async def until(page: Page, expression: str, patience_s: float = 60) -> None:
    """Wait until an expression of the page is true. Its policy forbids the browser's own way to wait for one."""
    for _ in range(int(patience_s / 0.02)):
        if await page.evaluate(expression):
            return
        await page.wait_for_timeout(20)
    raise SystemExit(f"{page.url} did not come to {expression!r} within {patience_s:.0f} s")


async def drawn(page: Page) -> None:
    """Wait until every chart in sight is drawn."""
    await until(page, _DRAWN)


class Meter:
    """What the main thread of a page has done so far, in seconds by kind, and its memory after a collection."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @classmethod
    async def of(cls, page: Page) -> Meter:
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable")
        return cls(session)

    async def read(self) -> dict[str, float]:
        """Return Chromium's counters: ``TaskDuration``, ``ScriptDuration``, ``LayoutDuration``, ``Nodes`` ..."""
        metrics = (await self._session.send("Performance.getMetrics"))["metrics"]
        return {each["name"]: each["value"] for each in metrics}

    async def settled(self) -> dict[str, float]:
        """Collect what nobody refers to, and return the counters."""
        for _ in range(3):
            await self._session.send("HeapProfiler.collectGarbage")
        return await self.read()

    async def kept(self) -> dict[str, int]:
        """Return the bytes that a heap snapshot finds by type: ``code`` is what the browser compiled, ``native`` its
        own records of the page; ``object``, ``closure``, ``array`` and ``string`` are what scripts hold."""
        pieces: list[str] = []

        def take(event: dict[str, str]) -> None:
            pieces.append(event["chunk"])

        self._session.on("HeapProfiler.addHeapSnapshotChunk", take)
        try:
            await self._session.send("HeapProfiler.takeHeapSnapshot")
        finally:
            self._session.remove_listener("HeapProfiler.addHeapSnapshotChunk", take)
        return _by_type(json.loads("".join(pieces)))


def _by_type(snapshot: dict[str, Any]) -> dict[str, int]:
    meta = snapshot["snapshot"]["meta"]
    fields, names, nodes = meta["node_fields"], meta["node_types"][0], snapshot["nodes"]
    width, kind, size = len(fields), fields.index("type"), fields.index("self_size")
    found: dict[str, int] = {}
    for at in range(0, len(nodes), width):
        name = names[nodes[at + kind]]
        found[name] = found.get(name, 0) + nodes[at + size]
    return found
