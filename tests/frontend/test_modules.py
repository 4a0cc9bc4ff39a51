"""The modules of pages that need no page, by tests of their own: in node where a new enough one is, and in Chromium."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
TESTS = sorted(Path(__file__).parent.glob("*.test.js"))
# From this one on node takes modules without being told that they are modules.
OLDEST_NODE = (20, 19)
_RUN = """async () => {
    const failed = [];
    for (const [name, act] of globalThis.__tests) {
        try { await act(); } catch (error) { failed.push(`${name}: ${error.message}`); }
    }
    return [globalThis.__tests.length, failed];
}"""


def _node() -> str | None:
    node = shutil.which("node")
    if node is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(int(part) for part in told.strip().removeprefix("v").split(".")[:2])
    return node if version >= OLDEST_NODE else None


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The repository, served to a browser."""
    handler = functools.partial(_Quiet, directory=str(ROOT))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_modules_in_node() -> None:
    node = _node()
    if node is None:
        return  # the same tests run in the browser below
    done = subprocess.run([node, "--test", *map(str, TESTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.browser
def test_modules_in_a_browser(chromium: str, address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page()
            page.goto(f"{address}/tests/frontend/blank.html")
            for path in TESTS:
                page.evaluate("path => import(path)", f"/{path.relative_to(ROOT)}")
            count, failed = page.evaluate(_RUN)
        finally:
            browser.close()
    assert failed == []
    assert count > len(TESTS)
