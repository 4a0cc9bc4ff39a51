"""Takes the pictures of docs/screenshots: the seeded yard, in a real Chromium. Those of Chinese pages lie in zh.

``./script/screenshots`` takes all of them, ``./script/screenshots jobs-light`` one. ``./script/screenshots tour`` makes
the one that moves, from a stack that really runs; it needs Pillow, from docs/requirements.txt.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.site import LAUNCH, PASSWORD, ROOT, Site, serve

FOLDER = ROOT / "docs" / "screenshots"
JOB = "qwen3-32b-sft"
# Whether what the page asks in the background is answered: a dry run, or what else would let a job start.
ANSWERED = "!/(Trying|Checking|正在尝试|检查中)…/.test(document.querySelector('.y-main').innerText)"
# Name of the picture, path, theme, width, language, and the height or None for the whole page.
SHOTS = (
    ("overview-light", "/", "light", 1440, "en-US", None),
    ("overview-dark", "/", "dark", 1440, "en-US", None),
    ("zh/overview-light", "/", "light", 1440, "zh-CN", None),
    ("overview-phone", "/", "dark", 390, "en-US", 1500),
    ("jobs-light", "/jobs", "light", 1440, "en-US", None),
    ("job-light", "/jobs/{job}", "light", 1440, "en-US", None),
    ("job-dark", "/jobs/{job}", "dark", 1440, "en-US", None),
    ("why-light", "/jobs/{waiting}", "light", 1440, "en-US", 760),
    ("zh/why-light", "/jobs/{waiting}", "light", 1440, "zh-CN", 760),
    ("timeline-light", "/timeline", "light", 1440, "en-US", None),
    ("usage-light", "/usage", "light", 1440, "en-US", None),
    ("decision-light", "/decisions/2", "light", 1440, "en-US", None),
    ("simulation-light", "/simulations/1", "light", 1440, "en-US", None),
    ("profiles-light", "/profiles", "light", 1440, "en-US", None),
    ("profile-dark", "/profiles/night-shift", "dark", 1440, "en-US", None),
    ("profiles-phone", "/profiles", "dark", 390, "en-US", 1500),
    ("zh/usage-light", "/usage", "light", 1440, "zh-CN", None),
    ("submit-light", "/jobs/new?from={job}", "light", 1440, "en-US", None),
)


def take(browser: Browser, site: Site) -> None:
    """All pictures; each waits until the page is live and its charts are drawn."""
    numbers = {"job": site.number(JOB), "waiting": site.number("llama-pretrain-v4")}
    wanted = set(sys.argv[1:])
    for name, path, theme, width, language, height in SHOTS:
        if wanted and name not in wanted:
            continue
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, locale=language)  # type: ignore[arg-type]
        page = context.new_page()
        site.pulse()  # the overview, which is shown after the sign-in, keeps what it measured for a moment
        page.goto(f"{site.url}/sign-in")
        page.fill("[name=username]", "admin")
        page.fill("[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_selector("[data-live-pill]")
        page.goto(site.url + path.format(**numbers))
        page.wait_for_selector("[data-live-pill][data-state=live]")
        page.wait_for_timeout(1500)
        # The whole page at once, so that charts far below are in sight and drawn too.
        whole = page.evaluate("document.querySelector('.y-main').scrollHeight") + 50
        page.set_viewport_size({"width": width, "height": max(900, min(height or whole, 2600))})
        page.wait_for_timeout(2500)
        for _turn in range(60):
            if page.evaluate(ANSWERED):
                break
            page.wait_for_timeout(500)
        page.screenshot(path=FOLDER / f"{name}.png")
        context.close()
        print(f"docs/screenshots/{name}.png")


def main() -> None:
    chromium = shutil.which(os.environ.get("YARD_CHROMIUM", "chromium"))
    if chromium is None:
        raise SystemExit("no Chromium: set YARD_CHROMIUM to one, or: apt-get install chromium fonts-noto-cjk")
    if sys.argv[1:] == ["tour"]:
        from tests.browser import film

        film.main(chromium)
        return
    (FOLDER / "zh").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="yard-shots-") as folder:
        state = Path(folder)
        stores = _stores(state)
        try:
            with serve(
                os.environ["DATABASE_URL"], dict(os.environ), state / "web.log", written="named by hand"
            ) as site:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
                    take(browser, site)
                    browser.close()
        finally:
            _stop(stores)


def _stores(state: Path) -> list[object]:
    """PostgreSQL and Valkey of their own, and an environment that names them."""
    from deploy.local.home import new_secrets_key, write_private
    from deploy.local.postgres import Cluster
    from deploy.local.valkey import Broker

    cluster, broker = Cluster(state / "postgres", state, state, durable=False), Broker(state, state, state)
    broker.make_password()
    (state / "static").mkdir()
    write_private(state / "django.key", "a key of sixty characters that signs nothing outside of pictures")
    write_private(state / "secrets.keys", new_secrets_key())
    os.environ |= {
        "DATABASE_URL": cluster.url,
        **broker.environment,
        "YARD_HOME": str(state),
        "YARD_SECRET_KEY_FILE": str(state / "django.key"),
        "YARD_SECRETS_KEY_FILE": str(state / "secrets.keys"),
        "YARD_CLUSTER": "yard-east",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONPATH": str(ROOT),
    }
    environment = dict(os.environ)
    valkey = broker.service(environment, state / "valkey.log")
    valkey.start()
    postgres = cluster.service(cluster.make(environment), environment, state / "postgres.log")
    postgres.start()
    deadline = time.monotonic() + 60
    while not (cluster.is_ready() and broker.is_ready()):
        if time.monotonic() > deadline:
            raise SystemExit(f"the stores did not start:\n{postgres.last_lines(20)}")
        time.sleep(0.05)
    return [valkey, postgres]


def _stop(stores: list[object]) -> None:
    from deploy.local.service import stop_all

    stop_all(stores, 15)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
