"""A real Chromium on a real server. The browser ends with this package: its event loop must not outlive these tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.site import LAUNCH, PASSWORD, ROOT, Site, environment_of_tests, serve
from tests.conftest import TABLES
from tests.controlplane import smtp_server
from tests.controlplane.oidc_server import CLIENT, SECRET
from tests.controlplane.smtp_server import Sink

# A bound on what hangs, not on how fast a busy machine is.
PATIENCE_MS = 90_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def provider() -> Iterator[str]:
    """The address of a provider of OpenID Connect."""
    command = [sys.executable, "-m", "tests.controlplane.oidc_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="package")
def mail() -> Iterator[Sink]:
    """A mail server, which keeps what the site sends."""
    with smtp_server.sink() as server:
        yield server


@pytest.fixture(scope="package")
def site(servers: Any, provider: str, mail: Sink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "secret").write_text(SECRET)
    environment = environment_of_tests() | {
        "YARD_OIDC": "corp",
        "YARD_OIDC_CORP_ISSUER": provider,
        "YARD_OIDC_CORP_CLIENT_ID": CLIENT,
        "YARD_OIDC_CORP_CLIENT_SECRET_FILE": str(folder / "secret"),
        "YARD_OIDC_CORP_TITLE": "Corp SSO",
        "YARD_OIDC_CORP_DOMAINS": "example.org",
        "YARD_EMAIL_URL": f"smtp://127.0.0.1:{mail.port}",
        "YARD_EMAIL_FROM": "yard@example.org",
    }
    with serve(servers.database_url, environment, folder / "web.log", like=TABLES) as found:
        yield found


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
        yield opened
        opened.close()


_LISTEN = """
window.__refused = [];
document.addEventListener("securitypolicyviolation", e => __refused.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


class Witness:
    """What a page must not do: complain, be refused by its own policy, fail to load, or ask anybody else."""

    def __init__(self, page: Page, site: Site) -> None:
        self.seen: list[str] = []
        self.page = page
        page.on(
            "console",
            lambda m: self.seen.append(f"console {m.type}: {m.text}") if m.type in {"error", "warning"} else None,
        )
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("request", lambda r: self.seen.append(f"foreign: {r.url}") if self._is_foreign(r.url, site) else None)
        page.on("response", lambda r: self.seen.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        page.on("dialog", lambda dialog: self.seen.append(f"dialog: {dialog.message}"))
        page.add_init_script(_LISTEN)

    @staticmethod
    def _is_foreign(url: str, site: Site) -> bool:
        own = (site.url, site.url.replace("http", "ws", 1), "data:", "blob:", "about:")
        return not url.startswith(own)

    def complaints(self) -> list[str]:
        return self.seen + [f"policy: {text}" for text in self.page.evaluate("window.__refused || []")]


Open = Callable[..., tuple[Page, Witness]]


@pytest.fixture
def open_page(browser: Browser, site: Site) -> Iterator[Open]:
    """Opens a page as somebody who is signed in; every page is closed after the test."""
    contexts = []

    def open_(
        path: str, *, user: str = "admin", theme: str = "light", width: int = 1440, language: str = "en-US"
    ) -> tuple[Page, Witness]:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, locale=language)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        witness = Witness(page, site)
        page.goto(f"{site.url}/sign-in?next={path.replace('&', '%26')}")
        page.fill("[name=username]", user)
        page.fill("[name=password]", PASSWORD)
        site.pulse()
        # Loaded, and not only in sight: the page's scripts have run, and take what the test does next.
        with page.expect_navigation(url=site.url + path):
            page.click("button[type=submit]")
        page.wait_for_selector("[data-live-pill], .y-card")
        return page, witness

    yield open_
    for context in contexts:
        context.close()
