"""A page that a job serves, in a real Chromium that is signed in at the dashboard: it can do nothing there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from deploy.local.port import free_port
from deploy.local.service import ROOT
from switchyard.client import JobRecord
from tests.browser.site import LAUNCH
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import TIMERS, Yard, on

pytestmark = pytest.mark.chaos
# A bound on what hangs, not on how fast a busy machine is.
expect.set_options(timeout=90_000)

# What a hostile page tries; each entry is true where it succeeded.
TRY = """async dashboard => {
  const own = {credentials: "include"}, found = {}, path = "/api/v1/jobs", json = {"content-type": "application/json"};
  found.cookies = /yard_/.test(document.cookie);
  const ask = (url, how) => fetch(url, how).then(answer => answer.ok, () => false);
  for (const host of ["127.0.0.1", "localhost"]) {
    const url = `http://${host}:${dashboard}`;
    found[`read ${host}`] = await ask(url + path, own);
    found[`written ${host}`] = await ask(url + path, {...own, method: "POST", headers: json, body: "{}"});
    found[`seen ${host}`] = await fetch(url + "/", {...own, mode: "no-cors"}).then(answer => answer.type !== "opaque");
    found[`socket ${host}`] = await new Promise(done => {
      const socket = new WebSocket(`ws://${host}:${dashboard}/ws/v1`);
      socket.onopen = () => done(true); socket.onerror = () => done(false);
    });
  }
  found.api = await fetch(path, own).then(answer => (answer.headers.get("content-type") || "").includes("json"));
  for (const domain of ["", "; Domain=localhost", "; Domain=127.0.0.1"])
    document.cookie = `yard_session=planted; Path=/${domain}`;
  found.opener = !!(window.opener);
  return found;
}"""


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        up.started()
        yield from on(up)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH))
        yield opened
        opened.close()


@pytest.fixture
def signed_in(yard: Yard, browser: Browser) -> Iterator[BrowserContext]:
    made = subprocess.run(
        [str(ROOT / "script" / "sign-in")], env={**os.environ, "YARD_HOME": str(yard.up.home)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    link = next(word for word in made.stdout.split() if word.startswith("http"))
    with browser.new_context() as context:
        context.set_default_timeout(90_000)
        page = context.new_page()
        page.goto(link)
        page.get_by_role("button").first.click()
        expect(page.locator("nav").first).to_be_visible()
        yield context


@contextmanager
def running(yard: Yard, command: list[str] | str, port: int, path: str = "/") -> Iterator[JobRecord]:
    """A job that listens on this port."""
    spec = {"name": "notebook", "memory": "2GiB", "env": {"PYTHONPATH": str(ROOT)}}
    what = {"run": command} if isinstance(command, str) else {"command": command}
    made = yard.client.jobs.submit({**spec, **what, "ports": [{"name": "lab", "port": port, "path": path}]})
    try:
        assert eventually(lambda: all(each["listens"] for each in yard.client.jobs.ports(made)))
        yield made
    finally:
        ended(yard, made)


def ended(yard: Yard, job: JobRecord) -> None:
    """End a job, if it has not ended."""
    if not job.refresh().is_final:
        yard.client.jobs.cancel(job)
        job.wait(timeout_s=240)


def opened(context: BrowserContext, yard: Yard, job: JobRecord) -> Page:
    """Press *Open* on the page of the job, and return the page that it leads to."""
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{yard.up.port}/jobs/{job.number}")
    with context.expect_page() as led:
        page.get_by_role("button", name=f"Open lab of main of job {job.number}").click()
    led.value.wait_for_load_state()
    return led.value


def test_a_hostile_page_of_a_job_can_do_nothing_to_the_dashboard(yard: Yard, signed_in: BrowserContext) -> None:
    port = free_port(18_200)
    with running(yard, [sys.executable, "-m", "tests.chaos.web_app", str(port), str(free_port(18_600))], port) as job:
        page = opened(signed_in, yard, job)
        expect(page.get_by_role("heading")).to_have_text("notebook")
        assert page.url.startswith("http://s-")
        before = {each["name"]: each["value"] for each in signed_in.cookies(f"http://127.0.0.1:{yard.up.port}")}
        assert "yard_session" in before
        found = page.evaluate(TRY, yard.up.port)
        assert [what for what, was_done in found.items() if was_done] == []
        # What it planted stayed at its own host, where it leads nobody anywhere.
        assert {each["name"]: each["value"] for each in signed_in.cookies(f"http://127.0.0.1:{yard.up.port}")} == before
        assert [each["name"] for each in signed_in.cookies(f"http://localhost:{yard.up.port}")] == []
        page.reload()
        expect(page.get_by_role("heading")).to_have_text("notebook")
        # The dashboard is not shown in a frame of it.
        framed = page.evaluate(
            """url => new Promise(done => { const frame = document.createElement("iframe"); frame.src = url;
               frame.onload = () => { try { done(!!frame.contentDocument?.querySelector("nav")) }
                                      catch { done(false) } };
               document.body.append(frame); })""",
            f"http://127.0.0.1:{yard.up.port}/",
        )
        assert framed is False


@pytest.mark.long
def test_jupyterlab_opens_and_its_kernel_answers(yard: Yard, signed_in: BrowserContext, tmp_path: Path) -> None:
    if not (jupyter := shutil.which("jupyter")):
        pytest.skip("no jupyter (pip install jupyterlab)")
    port = free_port(18_300)
    options = f"--allow-root --no-browser --ip 127.0.0.1 --port {port}"
    run = f'HOME={tmp_path} JUPYTER_TOKEN="$YARD_PORT_TOKEN" exec {jupyter} lab {options}'
    with running(yard, f"cd {tmp_path}; {run}", port, "/lab?token={token}") as job:
        page = opened(signed_in, yard, job)
        page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
        cell = page.locator(".jp-Notebook .cm-content").first
        expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")).to_be_visible()
        cell.press_sequentially("print(6 * 7)")
        expect(cell).to_have_text("print(6 * 7)")
        cell.press("Shift+Enter")
        expect(page.locator(".jp-OutputArea-output pre").first).to_have_text("42\n")
        ended(yard, job)
        page.reload()
        expect(page.locator("h1")).to_have_text("Not open")
