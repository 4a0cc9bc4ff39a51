"""Signing in as people do: through a provider, by a link, with a second factor, and a program by its code."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from allauth.mfa.totp.internal import auth
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import _LISTEN, PATIENCE_MS, Open
from tests.browser.site import PASSWORD, ROOT, Site, environment_of_tests
from tests.controlplane.smtp_server import Sink

pytestmark = pytest.mark.browser

LOOKS = [("light", "en-US", 1440), ("dark", "zh-CN", 390)]
ASK = {"name": "yard on a laptop with a rather long name", "scopes": ["read", "submit"], "days": 30}


@pytest.fixture(params=LOOKS, ids=["light", "dark"])
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    theme, language, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, locale=language)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.add_init_script(_LISTEN)
    yield page
    context.close()


def judge(page: Page) -> None:
    """What every page keeps to: nothing refused by its own policy, nothing wider than the window, no serious fault."""
    expect(page.locator("h1")).to_have_count(1)  # it is there, and there is one
    assert page.evaluate("window.__refused") == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []


def press(page: Page, selector: str, leads_to: str | re.Pattern[str]) -> None:
    """Click what leads to another page, and wait until that page is loaded."""
    with page.expect_navigation(url=leads_to):
        page.click(selector)


def test_a_provider_signs_in_and_makes_an_account(visit: Page, site: Site, provider: str) -> None:
    claims: dict[str, Any] = {
        "sub": f"s{time.time()}",
        "email": f"u{time.time_ns()}@example.org",
        "email_verified": True,
    }
    httpx.post(f"{provider}/claims", json={"claims": claims}, timeout=60).raise_for_status()
    visit.goto(f"{site.url}/sign-in?next=/user")
    judge(visit)
    press(visit, "form[action='/sign-in/with/corp'] button", f"{site.url}/user")
    judge(visit)
    httpx.post(f"{provider}/claims", json={"claims": claims | {"sub": "other", "email": "x@elsewhere.org"}}, timeout=60)
    visit.goto("about:blank")  # the page would leave by itself once nobody is signed in
    visit.context.clear_cookies()
    visit.goto(f"{site.url}/sign-in")
    visit.click("form[action='/sign-in/with/corp'] button")
    expect(visit.locator("[role=alert]")).to_contain_text("example.org")
    judge(visit)


def test_a_link_signs_in_by_its_button(visit: Page, site: Site) -> None:
    digest = hashlib.sha256(b"a-link").hexdigest()
    site.run("DELETE FROM access_signinlink")
    site.run(
        "INSERT INTO access_signinlink (digest, user_id, expires_at) "
        "SELECT %s, id, now() + interval '1 hour' FROM access_user WHERE username = 'admin'",
        digest,
    )
    visit.goto(f"{site.url}/sign-in/a-link")
    judge(visit)
    press(visit, "button[type=submit]", f"{site.url}/")
    visit.wait_for_selector("[data-live-pill]")
    visit.goto("about:blank")  # the page would leave by itself once nobody is signed in
    visit.context.clear_cookies()
    visit.goto(f"{site.url}/sign-in/a-link")
    expect(visit.locator("[role=alert]")).to_be_visible()


def test_a_second_factor_is_set_up_asked_for_and_removed(visit: Page, site: Site) -> None:
    def sign_in(leads_to: str) -> None:
        visit.goto(f"{site.url}/sign-in?next=/user")
        visit.fill("[name=username]", "admin")
        visit.fill("[name=password]", PASSWORD)
        press(visit, "button[type=submit]", leads_to)

    def give_code(secret: str) -> None:
        # Each code is taken once: the one of the next half minute, if this one was used or has little time left.
        while (counter := int(time.time()) // 30) in used or time.time() % 30 > 10:
            visit.wait_for_timeout(250)
        used.add(counter)
        visit.fill("[name=code]", auth.format_hotp_value(auth.hotp_value(secret, counter)))
        with visit.expect_navigation():
            visit.keyboard.press("Enter")

    used: set[int] = set()
    sign_in("**/user")
    press(visit, "a[href='/user/second-factor/new']", "**/sign-in/again**")
    judge(visit)
    visit.fill("[name=password]", PASSWORD)
    press(visit, "button[type=submit]", "**/user/second-factor/new")
    visit.wait_for_selector(".y-qr")
    judge(visit)
    secret = visit.locator("code").inner_text()
    give_code(secret)
    visit.wait_for_selector("#recovery-codes")
    judge(visit)
    codes = visit.locator("#recovery-codes").inner_text().split()
    visit.goto("about:blank")
    visit.context.clear_cookies()
    sign_in("**/sign-in/**")
    judge(visit)
    visit.fill("[name=code]", "000000")
    press(visit, "button[type=submit] >> nth=0", "**/sign-in/**")
    expect(visit.locator("[role=alert]")).to_be_visible()
    judge(visit)
    visit.fill("[name=code]", codes[0])
    press(visit, "button[type=submit] >> nth=0", f"{site.url}/user")
    judge(visit)
    with visit.expect_navigation():
        visit.click("a[href='/user/second-factor/remove']")
    if "/again" in visit.url:
        if visit.locator("[name=password]").count():
            visit.fill("[name=password]", PASSWORD)
            press(visit, "button[type=submit]", "**/user/second-factor/remove")
        else:
            give_code(secret)
    visit.wait_for_selector(".y-btn.danger")
    judge(visit)
    press(visit, "button.danger", f"{site.url}/user")
    visit.wait_for_selector("a[href='/user/second-factor/new']")


def test_a_program_is_signed_in_by_its_code(visit: Page, site: Site) -> None:
    asked = httpx.post(f"{site.url}/api/v1/device-codes", json=ASK, timeout=60).raise_for_status().json()
    visit.goto(f"{site.url}/device")
    visit.fill("[name=username]", "admin")
    visit.fill("[name=password]", PASSWORD)
    press(visit, "button[type=submit]", "**/device**")
    visit.wait_for_selector("[name=code]")
    judge(visit)
    visit.fill("[name=code]", "BBBB-BBBB")
    with visit.expect_navigation():
        visit.keyboard.press("Enter")
    expect(visit.locator("[role=alert]")).to_be_visible()
    visit.fill("[name=code]", asked["user_code"].lower())
    with visit.expect_navigation():
        visit.keyboard.press("Enter")
    visit.wait_for_selector("button[value=confirm]")
    judge(visit)
    with visit.expect_navigation():
        visit.click("button[value=confirm]")
    expect(visit.locator("[role=status]")).to_be_visible()
    judge(visit)
    told = httpx.post(f"{site.url}/api/v1/device-codes/token", json={"device_code": asked["device_code"]}, timeout=60)
    token = told.raise_for_status().json()["access_token"]
    me = httpx.get(f"{site.url}/api/v1/whoami", headers={"Authorization": f"Bearer {token}"}, timeout=60).json()
    assert (me["user"], me["scopes"]) == ("admin", ["read", "submit"])


def test_a_session_is_ended_from_another_browser(open_page: Open, site: Site) -> None:
    here, _witness = open_page("/user")
    there, _other = open_page("/")
    expect(there.locator("[data-live-pill]")).to_have_attribute("data-state", "live")
    here.reload()
    for _ in range(here.locator("form[action$='/end']").count()):
        press(here, "form[action$='/end'] button >> nth=0", "**/user?done=ended")
    # The page leaves by itself when its socket is closed; a navigation of ours beside that one would race with it.
    there.wait_for_url(re.compile(r"/sign-in\?next="))
    there.goto(f"{site.url}/jobs")
    expect(there.locator("[name=username]")).to_be_visible()


_NEW_USER = """
INSERT INTO access_user (password, is_superuser, username, first_name, last_name, email, is_staff, is_active,
                         date_joined, theme)
SELECT password, false, %s, '', '', %s, false, true, now(), '' FROM access_user WHERE username = 'admin'
"""
# What a worker would do.
_SEND = (
    "import django; django.setup(); from controlplane.accounts.password_reset import mail_link; mail_link({!r}, 'en')"
)


def _somebody(site: Site) -> tuple[str, str]:
    name = f"u{time.time_ns()}"
    site.run(_NEW_USER, name, f"{name}@example.org")
    return name, f"{name}@example.org"


def _link_in(mail: Sink, site: Site) -> str:
    found = re.search(r"http://127\.0\.0\.1:8470(/\S+)", mail.mails()[-1].get_content())
    assert found
    return site.url + found[1]


def test_a_forgotten_password_is_set_anew(visit: Page, site: Site, mail: Sink) -> None:
    _name, address = _somebody(site)
    visit.goto(f"{site.url}/sign-in")
    visit.click("a[href='/password-reset']")
    judge(visit)
    visit.fill("[name=email]", address)
    press(visit, "button[type=submit]", "**/password-reset/sent")
    judge(visit)
    environment = environment_of_tests() | {
        "DATABASE_URL": site.database_url,
        "YARD_EMAIL_URL": f"smtp://127.0.0.1:{mail.port}",
        "YARD_EMAIL_FROM": "yard@example.org",
    }
    subprocess.run([sys.executable, "-c", _SEND.format(address)], cwd=ROOT, env=environment, check=True)
    link = _link_in(mail, site)
    visit.goto(link)
    judge(visit)
    visit.fill("[name=password1]", "short")
    visit.fill("[name=password2]", "short")
    with visit.expect_navigation():
        visit.click("button[type=submit]")
    expect(visit.locator("[role=alert]").first).to_be_visible()
    for field in ("password1", "password2"):
        visit.fill(f"[name={field}]", "another long phrase")
    press(visit, "button[type=submit]", "**/password-reset/done")
    judge(visit)
    visit.goto(link)
    expect(visit.locator("[role=alert]")).to_be_visible()
    judge(visit)


def test_an_address_is_confirmed_and_times_are_those_of_a_zone(visit: Page, site: Site, mail: Sink) -> None:
    name, address = _somebody(site)
    visit.goto(f"{site.url}/sign-in?next=/user")
    visit.fill("[name=username]", name)
    visit.fill("[name=password]", PASSWORD)
    press(visit, "button[type=submit]", "**/user")
    visit.fill("[name=email]", f"new-{address}")
    press(visit, "form[action='/user/address'] button", "**/sign-in/again**")
    visit.fill("[name=password]", PASSWORD)
    press(visit, "button[type=submit]", "**/user?done=address-asked")
    judge(visit)
    visit.goto(_link_in(mail, site))
    judge(visit)
    press(visit, "button[type=submit]", "**/user?done=address")
    visit.check("[name=ends][value=failed]")
    press(visit, "form[action='/user/notices'] button", "**/user?done=notices")
    expect(visit.locator("[name=ends][value=failed]")).to_be_checked()
    visit.select_option("[name=time_zone]", "Asia/Kathmandu")
    press(visit, "form[action='/user/time-zone'] button", "**/user?done=time-zone")
    judge(visit)
    told = visit.evaluate("import('/static/yard/text.js').then(text => text.wall('2026-07-01T22:30:05Z'))")
    assert told == "2026-07-02 04:15:05"
