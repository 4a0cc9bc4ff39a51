"""Every page in a real browser: it draws, complains of nothing, asks nobody else, and goes on when the line dies."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from controlplane.documents import from_yaml
from tests.browser.conftest import PATIENCE_MS, Open
from tests.browser.site import HOSTILE, Site
from tests.chaos.stack import long

pytestmark = pytest.mark.browser

PAGES = (
    "/", "/queue", "/jobs", "/jobs/{job}", "/jobs/{job}/logs", "/jobs/{job}/metrics",
    "/jobs/{job}/timeline", "/jobs/{job}/checkpoints", "/jobs/{job}/usage", "/jobs/{job}/spec", "/jobs/{job}/waits",
    "/jobs/{job}/profile",
    "/arrays/{array}",
    "/timeline", "/nodes", "/nodes/g03", "/hardware", "/devices/{device}", "/jobs/new", "/decisions",
    "/decisions/2", "/user", "/secrets", "/health", "/simulations", "/simulations/1", "/profiles",
    "/profiles/night-shift", "/profiles/hybrid", "/usage", "/quota", "/schedules",
    "/schedules/1", "/services", "/services/1", "/functions", "/functions/2", "/providers", "/sites",
    "/topology", "/topology?by=pool", "/search", "/search?q=g0",
    "/calendar", "/calendar?view=week", "/calendar/reservations/course", "/calendar/new/maintenance",
    "/webhooks?project=vision", "/webhooks/vision/chat",
    "/templates", "/templates/torchrun", "/service-accounts", "/service-accounts/ci@vision", "/retention",
    "/operations", "/operations/1", "/sessions",
)  # fmt: skip


_CHARTS_DRAWN = """[...document.querySelectorAll("[data-chart]")]
    .filter(e => e.clientWidth && e.getBoundingClientRect().top < innerHeight)
    .every(e => e.classList.contains("js-plotly-plot"))"""


def _named(path: str, site: Site) -> str:
    """The path with the number of a running job, the uuid of a device that it holds, and the number of the array."""
    ((device,),) = site.run("SELECT min(uuid) FROM fleet_device WHERE kind = 'gpu' AND claimed_milli > 0")
    ((array,),) = site.run("SELECT number FROM jobs_array")
    return path.format(job=site.number("qwen3-32b-sft"), device=device, array=array)


def _eventually(page: Any, claim: Callable[[], object]) -> bool:
    """Wait for a claim. A strict policy forbids the browser's own way to wait for a script's answer."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not (held := bool(claim())) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    return held


def _drawn(page: Any) -> None:
    """Waits until the line is live and every chart in sight is drawn."""
    expect(page.locator("[data-live-pill]")).to_have_attribute("data-state", "live")
    assert _eventually(page, lambda: page.evaluate(_CHARTS_DRAWN)), "a chart in sight was not drawn"


def _serious(page: Any) -> list[str]:
    """What keeps people from a page who do not see it, or do not use a mouse."""
    return [
        f"{fault['id']}: {node['html'][:150]}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 390), long("dark", 390)])
def test_every_page_draws_without_complaint_or_serious_fault(
    open_page: Open, site: Site, theme: str, width: int
) -> None:
    """The themes differ in colours and the widths in places: narrow and dark together is for a long run."""
    page, witness = open_page("/", theme=theme, width=width)
    others = (
        f"/jobs/{site.number('moe-router')}",
        f"/jobs/{site.number('clip-ft')}",
        "/jobs?state=ended",
        "/nodes?view=table",
    )
    faults = {}
    for path in (*PAGES, *others):
        site.pulse()
        page.goto(site.url + _named(path, site))
        _drawn(page)
        expect(page.locator("h1")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width}"
        beside = page.evaluate("[...document.querySelectorAll('.y-scroll')].filter(e => e.scrollWidth > e.clientWidth)")
        assert beside == [], f"a table of {path} scrolls sideways at {width}"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(14, 16, 19)") == (theme == "dark")
        assert witness.complaints() == [], path
        faults[path] = _serious(page)
    assert {path: found for path, found in faults.items() if found} == {}


def test_the_map_of_utilisation_shows_cells_and_not_a_gradient(open_page: Open, site: Site) -> None:
    page, _witness = open_page("/")
    _drawn(page)
    image = page.locator(".heatmaplayer image").first
    expect(image).to_be_attached()
    assert image.evaluate("e => getComputedStyle(e).imageRendering") == "pixelated"
    assert page.locator("[data-chart=heat]").count() == page.locator("[data-view=chart] .y-facet").count() >= 3
    page.click("#panel-heat [data-show='[data-view=links]']")
    cells = page.locator("[data-view=links] .y-cell")
    assert cells.count() == site.run("SELECT count(*) FROM fleet_device")[0][0]
    assert re.search(r"g03 gpu0 · H100 · held, idle", page.locator("[data-view=links]").inner_html())


@pytest.mark.parametrize("count", [5, 6, 7, 8, 9])
def test_no_tile_of_the_overview_stands_alone_below_the_others(open_page: Open, count: int) -> None:
    """A yard of seven models had six tiles in a row at 1280, and the seventh in a row of its own."""
    page, _witness = open_page("/", width=1280)
    rows = """async ([count, width]) => {
        const tiles = document.querySelector(".y-tiles"), one = tiles.firstElementChild;
        tiles.replaceChildren(...Array.from({ length: count }, () => one.cloneNode(true)));
        return [...tiles.children].map(tile => Math.round(tile.getBoundingClientRect().top));
    }"""
    for width in (1280, 1366, 1440, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        tops = page.evaluate(rows, [count, width])
        assert min(tops.count(top) for top in tops) > 1, f"{count} tiles at {width}: {tops}"


def test_no_chart_offers_to_send_its_data_away(open_page: Open) -> None:
    page, _witness = open_page("/")
    _drawn(page)
    contexts = page.evaluate("[...document.querySelectorAll('.js-plotly-plot')].map(e => e._context)")
    assert contexts
    assert all(c["showSendToCloud"] is False and c["plotlyServerURL"] == "" for c in contexts)


def test_a_chart_is_a_table_too(open_page: Open) -> None:
    page, _witness = open_page("/timeline")
    _drawn(page)
    page.click("#panel-timeline [data-table-for]")
    rows = page.locator("#panel-timeline .y-figtable tbody tr")
    expect(rows.first).to_be_visible()
    assert "moe-router" in page.locator("#panel-timeline .y-figtable").inner_text()
    # The axis of so many devices names nodes; the table names the device of every bar.
    rows_told, bars, axis = page.evaluate("""async () => {
        const chart = JSON.parse(document.getElementById("chart-timeline").textContent);
        const rows = [...document.querySelectorAll("#panel-timeline .y-figtable tbody tr")];
        const found = rows.map(row => [...row.cells].slice(0, 2).map(cell => cell.textContent));
        return [found, chart.items.map(item => [item.on, item.t || item.tip]), chart.lanes];
    }""")
    assert rows_told == bars[: len(rows_told)]
    assert not {on for on, _ in rows_told} & set(axis)
    page.click("#panel-timeline [data-table-for]")
    expect(page.locator("#panel-timeline .y-figtable")).to_be_hidden()


def test_a_page_moves_by_itself_while_the_line_lives(open_page: Open, site: Site) -> None:
    number = site.number("moe-router")
    page, witness = open_page(f"/jobs/{number}")
    _drawn(page)
    site.run(
        "UPDATE jobs_stage SET progress = %s WHERE job_id = (SELECT id FROM jobs_job WHERE number = %s)",
        '{"step": 4321, "total": 5000, "phase": ""}',
        number,
    )
    expect(page.locator(".y-rail")).to_contain_text("4,321")
    assert witness.complaints() == []


def test_a_dead_line_is_said_and_the_page_moves_on(open_page: Open, site: Site) -> None:
    number = site.number("rerank-ft")
    page, _witness = open_page("/jobs")
    lines: list[Any] = []
    dead = False

    def door(line: Any) -> None:
        if dead:
            line.close(code=4000)
        else:
            line.connect_to_server()
            lines.append(line)

    page.route_web_socket(re.compile(r"/ws/v1\?"), door)
    page.goto(f"{site.url}/jobs/{number}")
    _drawn(page)
    dead = True
    for line in lines:
        line.close(code=4000)
    pill = page.locator("[data-live-pill]")
    expect(pill).to_have_attribute("data-state", "polling")
    expect(pill).to_contain_text("Polling 5 s")
    site.run(
        "UPDATE jobs_stage SET progress = %s WHERE job_id = (SELECT id FROM jobs_job WHERE number = %s)",
        '{"step": 4777, "total": 5000, "phase": ""}',
        number,
    )
    expect(page.locator(".y-rail")).to_contain_text("4,777")
    dead = False
    expect(pill).to_have_attribute("data-state", "live")


def _chart(page: Any, name: str) -> Any:
    return json.loads(page.locator(f"#{name}").text_content() or "{}")


def test_a_loss_curve_is_there_in_a_browser_that_never_saw_it_grow(open_page: Open, site: Site) -> None:
    number = site.number("qwen3-32b-sft")
    page, witness = open_page(f"/jobs/{number}")
    expect(page.locator("#panel-values")).to_be_visible()
    series = _chart(page, "chart-values")["series"]
    assert [one["name"] for one in series] == ["train loss"]
    steps = series[0]["x"]
    assert (steps[0], steps[-1], len(steps) > 200) == (1, 3940, True), "both attempts, the second from its first step"
    assert steps == sorted(steps)
    expect(page.locator("#panel-values header .sub")).to_have_text("by step; 1 of 3")
    assert page.evaluate("Object.keys(sessionStorage).length") == 0
    assert witness.complaints() == []


def test_what_a_running_job_prints_and_its_loss_are_seen_without_scrolling(open_page: Open, site: Site) -> None:
    page, _witness = open_page(f"/jobs/{site.number('qwen3-32b-sft')}")
    page.set_viewport_size({"width": 1280, "height": 800})
    _drawn(page)
    expect(page.locator(".y-log .rows")).to_contain_text("step 39")
    for part in (".y-log", "#panel-values [data-chart]"):
        assert page.locator(part).evaluate("e => e.getBoundingClientRect().top") < 700, part


def test_each_reported_number_has_a_curve_of_its_own_among_the_measurements(open_page: Open, site: Site) -> None:
    page, witness = open_page(f"/jobs/{site.number('qwen3-32b-sft')}")
    page.click(".y-tabs >> text=Metrics")
    page.wait_for_url(re.compile("/metrics$"))
    expect(page.locator(".y-each .y-fig b")).to_have_text(["train lr", "train loss"])
    page.click("#panel-devices .y-seg >> text=Temperature")
    assert _eventually(page, lambda: _chart(page, "chart-devices").get("unit") == "°C")
    expect(page.locator("#panel-devices .y-fig")).to_be_visible()
    assert witness.complaints() == []


def test_memory_is_drawn_in_the_unit_that_its_panel_names(open_page: Open, site: Site) -> None:
    """Also for little memory, and after the page's live part was rendered again."""
    number = site.number("moe-router")
    site.run(
        "UPDATE fleet_part_sample SET rss_bytes = 300 * 1024 * 1024 WHERE part_id IN (SELECT p.id FROM jobs_part p "
        "JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id "
        "JOIN jobs_job j ON j.id = s.job_id WHERE j.number = %s)",
        number,
    )
    page, _witness = open_page(f"/jobs/{number}/metrics")
    for _turn in range(2):
        expect(page.locator("#keep-memory .y-fig")).to_be_visible()
        chart = _chart(page, "chart-memory")
        told = page.locator("#panel-memory header .sub").inner_text()
        assert (chart["unit"], told) == ("GiB", "GiB")
        assert {round(value, 3) for one in chart["series"] for value in one["y"] if value is not None} == {0.293}
        # What a script put into the live part is gone once the part was rendered again.
        page.evaluate("document.querySelector('[data-live-part]').append(document.createElement('s'))")
        page.keyboard.press("r")
        expect(page.locator("[data-live-part] > s")).to_have_count(0)


def test_a_hung_server_is_said_within_seconds(open_page: Open, site: Site) -> None:
    """A stopped process keeps its sockets open: nothing is closed, nothing arrives."""
    number = site.number("rerank-ft")
    page, _witness = open_page(f"/jobs/{number}")
    _drawn(page)
    pill = page.locator("[data-live-pill]")
    os.kill(site.pid, signal.SIGSTOP)
    try:
        expect(pill).to_have_attribute("data-state", "stale")
        expect(pill).to_contain_text(re.compile(r"^Not live since \d\d:\d\d:\d\d$"))
    finally:
        os.kill(site.pid, signal.SIGCONT)
    expect(pill).to_have_attribute("data-state", "live")


def test_a_silent_line_is_left_and_the_paths_are_polled(open_page: Open, site: Site) -> None:
    """A proxy that holds the socket and lets nothing through: the page goes on by polling."""
    number = site.number("rerank-ft")
    page, _witness = open_page("/jobs")
    _drawn(page)
    silent = False

    def door(line: Any) -> None:
        server = line.connect_to_server()
        line.on_message(lambda message: None if silent else server.send(message))
        server.on_message(lambda message: None if silent else line.send(message))

    page.route_web_socket(re.compile(r"/ws/v1\?"), door)
    page.goto(f"{site.url}/jobs/{number}")
    _drawn(page)
    silent = True
    pill = page.locator("[data-live-pill]")
    expect(pill).to_have_attribute("data-state", re.compile("polling|stale"))
    site.run(
        "UPDATE jobs_stage SET progress = %s WHERE job_id = (SELECT id FROM jobs_job WHERE number = %s)",
        '{"step": 4888, "total": 5000, "phase": ""}',
        number,
    )
    expect(page.locator(".y-rail")).to_contain_text("4,888")
    silent = False
    expect(pill).to_have_attribute("data-state", "live")


_HANGS = """
window.__hangs = true;
const Real = WebSocket;
window.WebSocket = class {
    static OPEN = 1;
    constructor(address) { if (!window.__hangs) return new Real(address); this.readyState = 0; }
    send() {}
    close() {}
};
"""


def test_a_handshake_that_hangs_is_left_and_the_paths_are_polled(open_page: Open, site: Site) -> None:
    """A proxy that takes the connection and never answers: also the overview goes on, and comes back."""
    page, _witness = open_page("/jobs")
    page.add_init_script(_HANGS)
    page.goto(site.url)
    pill = page.locator("[data-live-pill]")
    expect(pill).to_have_attribute("data-state", "polling")
    site.run(
        "UPDATE fleet_device SET health = 'UNHEALTHY', health_reason = 'it hangs' "
        "WHERE uuid = (SELECT min(uuid) FROM fleet_device)"
    )
    try:
        expect(page.locator("#panel-attention")).to_contain_text("it hangs")
    finally:
        site.run("UPDATE fleet_device SET health = 'OK', health_reason = '' WHERE health_reason = 'it hangs'")
    page.evaluate("window.__hangs = false")
    expect(pill).to_have_attribute("data-state", "live")


def test_charts_can_be_zoomed_and_saved(open_page: Open) -> None:
    page, witness = open_page("/timeline")
    _drawn(page)
    assert page.locator("#panel-timeline .modebar-btn").count() >= 4
    page.click('#panel-timeline .modebar-btn[data-title="Zoom in"]', force=True)
    chart = page.locator("#panel-timeline [data-chart]").first
    narrow = chart.evaluate("el => el.layout.xaxis.range")
    # What the chart shows moves on by two minutes, as it does while one looks at it.
    chart.evaluate("""el => {
        const holder = document.getElementById(el.dataset.source), d = JSON.parse(holder.textContent);
        for (const end of ["from", "to"]) d[end] = new Date(Date.parse(d[end]) + 120000).toISOString();
        holder.textContent = JSON.stringify(d);
        el.before = el.dataset.drawn;
    }""")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("el => el.dataset.drawn && el.dataset.drawn !== el.before", arg=chart.element_handle())
    assert chart.evaluate("el => el.layout.xaxis.range") == narrow
    assert witness.complaints() == []


def test_a_paused_page_stands_still_and_says_so(open_page: Open) -> None:
    page, _witness = open_page("/jobs")
    _drawn(page)
    page.click("[data-live-pill]")
    expect(page.locator("[data-live-pill]")).to_have_text("Paused")
    page.click("[data-live-pill]")
    expect(page.locator("[data-live-pill]")).to_have_text("Live")


def test_chosen_jobs_of_the_queue_change_together_after_a_dry_run(open_page: Open, site: Site) -> None:
    page, witness = open_page("/queue")
    number = site.number("asr-distill")
    page.click(f"#open-{number} > summary")
    expect(page.locator(f"#open-{number} .y-why")).to_be_visible()
    for other in (number, site.number("speech-tts-ft")):
        page.check(f"[data-choose][value='{other}']")
    page.select_option("[data-bulk] select", "low")
    expect(page.locator("#ask-bulk [data-effect]")).to_contain_text("This would be done to 2 of 2 jobs.")
    page.click("#ask-bulk [type=submit]")
    for other in (number, site.number("speech-tts-ft")):
        expect(page.locator(f"#job-{other}")).to_contain_text("low")
    expect(page.locator("[data-choose]:checked")).to_have_count(0)
    assert site.run("SELECT count(*) FROM jobs_job WHERE priority_class = 'low' AND state IN ('PENDING', 'HELD')") == [
        (2,)
    ]
    assert witness.complaints() == []


def test_markup_in_names_and_logs_stays_text(open_page: Open, site: Site) -> None:
    number = site.number(HOSTILE)
    page, witness = open_page("/jobs")
    _drawn(page)
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.goto(f"{site.url}/jobs/{number}")
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    page.goto(f"{site.url}/jobs/{site.number('qwen3-32b-sft')}")
    expect(page.locator(".y-log .rows")).to_contain_text(f"evaluating {HOSTILE} & <b>not bold</b>")
    assert page.locator(".y-log b, .y-log img").count() == 0
    expect(page.locator(".y-log .a31")).to_have_count(1)  # ANSI colours become classes
    assert witness.complaints() == []


def test_a_log_follows_what_is_appended(open_page: Open, site: Site) -> None:
    number = site.number("qwen3-32b-sft")
    page, _witness = open_page(f"/jobs/{number}")
    expect(page.locator(".y-log .rows")).to_contain_text("step 3940")
    site.append_to_log(number, b"a line that is new")
    expect(page.locator(".y-log .rows")).to_contain_text("a line that is new")


def test_a_whole_log_is_searched_and_what_is_found_leads_to_its_place(open_page: Open, site: Site) -> None:
    number = site.number("clip-ft")
    site.append_to_log(
        number, b"the needle <b>far</b> above\n" + b"a line like many others\n" * 60_000 + b"the last line\n"
    )
    page, witness = open_page(f"/jobs/{number}/logs")
    expect(page.locator(".y-log .rows")).to_contain_text("the last line")
    page.fill("[data-log-find]", "NEEDLE")
    expect(page.locator("[data-log-count]")).to_have_text("0 found")
    page.click("[data-log-everywhere]")
    expect(page.locator("[data-log-found-told]")).to_have_text("1 line found in the whole log")
    expect(page.locator("[data-log-found-list] li")).to_contain_text("the needle <b>far</b> above")
    assert page.locator("[data-log-found-list] b").count() == 0
    page.click("[data-log-found-list] button")
    expect(page.locator(".y-log .rows")).to_contain_text("the needle <b>far</b> above")
    expect(page.locator(".y-log .rows mark").first).to_be_visible()
    assert _serious(page) == []
    page.click("[data-log-follow]")
    expect(page.locator(".y-log .rows")).to_contain_text("the last line")
    page.click("[data-log-found-stop]")
    expect(page.locator("[data-log-found]")).to_be_hidden()
    assert witness.complaints() == []


def test_two_ranks_are_read_side_by_side_and_scrolled_by_time(open_page: Open, site: Site) -> None:
    number = site.number("qwen3-32b-sft")
    page, witness = open_page(f"/jobs/{number}/logs")
    views = page.locator("[data-log-view]")
    first, second = views.nth(0), views.nth(1)
    expect(first.locator(".rows")).to_contain_text("step 3940")
    expect(page.locator("[data-log-together]")).to_be_hidden()
    page.click("[data-log-two]")
    expect(second.locator("[data-log-pick]")).to_have_value("train|2|1|both")
    expect(second.locator(".rows")).to_contain_text("rank 1: step 3920")
    expect(page).to_have_url(re.compile("beside=train%7C2%7C1%7Cboth"))
    boxes = [view.bounding_box() for view in (first, second)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]
    expect(page.locator("[data-log-together]")).to_be_visible()
    # The lines of both that are at the upper edges were printed within a minute of each other.
    first.locator(".y-log").evaluate("box => (box.scrollTop = 200 * 18)")
    expect(second.locator("[data-log-follow]")).to_have_text("Follow")
    moments = [datetime.fromisoformat(view.locator(".row .l").nth(22).inner_text()[:19]) for view in (first, second)]
    assert abs(moments[0] - moments[1]) < timedelta(minutes=1)
    page.select_option("[data-log-level]", "error")
    expect(second.locator(".row")).to_have_count(1)
    expect(second.locator(".row")).to_contain_text("lost a connection to g01")
    expect(first.locator(".row")).to_have_count(0)
    page.select_option("[data-log-level]", "warning")
    expect(first.locator(".row")).to_have_count(2)
    page.select_option("[data-log-level]", "info")
    page.fill("[data-log-find]", "step 940")
    for view in (first, second):
        expect(view.locator("[data-log-count]")).to_have_text("1 found")
        expect(view.locator(".row mark")).to_have_text(["step 940"])
    page.click("[data-log-everywhere]")
    for view in (first, second):
        expect(view.locator("[data-log-found-told]")).to_have_text("1 line found in the whole log")
    assert _serious(page) == []
    page.reload()
    expect(second.locator(".rows")).to_contain_text("rank 1: step 3920")
    page.set_viewport_size({"width": 390, "height": 900})
    boxes = [view.bounding_box() for view in (first, second)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["y"] < boxes[1]["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("[data-log-two]")
    expect(views).to_have_count(1)
    expect(page).not_to_have_url(re.compile("beside"))
    assert witness.complaints() == []


def test_without_scripts_one_log_is_read(open_page: Open, site: Site) -> None:
    page, _witness = open_page("/")
    context = page.context.browser.new_context(java_script_enabled=False)
    context.add_cookies(page.context.cookies())
    plain = context.new_page()
    plain.goto(f"{site.url}/jobs/{site.number('qwen3-32b-sft')}/logs")
    expect(plain.locator("noscript pre")).to_contain_text("step 3940")
    plain.select_option("noscript select", "train|2|1|both")
    plain.get_by_role("button", name="Show").click()
    expect(plain.locator("noscript pre")).to_contain_text("rank 1: step 3920")
    context.close()


def test_a_job_is_cancelled_through_its_dialog(open_page: Open, site: Site) -> None:
    number = site.number("speech-tts-ft")
    page, witness = open_page(f"/jobs/{number}")
    _drawn(page)
    page.click("text=Cancel…")
    expect(page.locator("#ask-cancel")).to_contain_text(f"Cancel #{number} speech-tts-ft?")
    page.fill("#ask-cancel [name=reason]", "not needed")
    page.click("#ask-cancel button[type=submit]")
    expect(page.locator(".y-head .y-badge").first).to_have_text("CANCELLED")
    page.click(".y-tabs >> text=Attempts and events")
    expect(page.locator(".y-list.scroll")).to_contain_text("not needed")
    assert witness.complaints() == []


def test_a_running_attempt_is_paused_adjusted_and_let_go_on(open_page: Open, site: Site) -> None:
    page, witness = open_page(f"/jobs/{site.number('qwen3-32b-sft')}")
    _drawn(page)
    panel = page.locator("#panel-running")
    panel.locator("text=Pause…").first.click()
    page.fill("#ask-pause [name=reason]", "a demonstration")
    page.click("#ask-pause button[type=submit]")
    expect(panel.locator(".y-badge").first).to_have_text("SUSPENDED")
    panel.locator("text=Adjust…").first.click()
    page.fill("#ask-adjust [name=cpu_weight]", "0")
    page.click("#ask-adjust button[type=submit]")
    # The browser itself refuses what is out of range; what it does not know is told by the server.
    page.fill("#ask-adjust [name=cpu_weight]", "40")
    page.fill("#ask-adjust [name=memory_bytes]", "2.5")
    page.select_option("#ask-adjust [name=queue_class]", label="long: after others")
    page.click("#ask-adjust button[type=submit]")
    expect(panel).to_contain_text("CPU weight 40, memory up to 2.5 GiB, queue class long")
    panel.locator("text=Let it go on…").first.click()
    page.click("#ask-go-on button[type=submit]")
    expect(panel.locator(".y-badge")).to_have_count(0)
    page.click(".y-tabs >> text=Attempts and events")
    expect(page.locator(".y-list.scroll")).to_contain_text("suspended (a demonstration)")
    assert witness.complaints() == []


def test_somebody_else_may_look_and_not_touch(open_page: Open, site: Site) -> None:
    page, _witness = open_page(f"/jobs/{site.number('moe-router')}", user="lin.wei")
    button = page.locator("text=Cancel…")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    expect(page.locator("#ask-cancel")).to_be_hidden()


def test_the_form_and_the_file_are_one_job(open_page: Open, site: Site) -> None:
    page, witness = open_page(f"/jobs/new?from={site.number('qwen3-32b-sft')}")
    expect(page.locator("[data-verdict-short]")).to_have_text("Valid")
    page.click("[data-stages] button:nth-child(3)")
    page.fill("[data-stage-path=time_limit]", "5h")
    expect(page.locator("[data-yaml]")).to_have_value(re.compile('time_limit: "?5h'))
    page.fill("[data-yaml]", "name: small\npool: simulated\nrun: echo hi\ncpus: 2\n")
    expect(page.locator("[data-key-path=name]")).to_have_value("small")
    expect(page.locator("[data-stage-path=cpus]")).to_have_value("2")
    page.fill("[data-key-path=name]", "!")
    expect(page.locator("[data-err=name]")).to_contain_text("name must be")
    expect(page.locator("[data-verdict]")).to_have_attribute("data-s", "failed")
    page.fill("[data-key-path=name]", "from-the-form")
    expect(page.locator("[data-verdict-short]")).to_have_text("Valid")
    witness.seen = [line for line in witness.seen if "400" not in line and "422" not in line]
    page.click("[data-submit]")
    page.wait_for_url(re.compile(r"/jobs/\d+$"))
    expect(page.locator("h1")).to_contain_text("from-the-form")
    assert site.number("from-the-form")
    assert witness.complaints() == []


def test_what_is_shown_is_submitted_or_nothing(open_page: Open, site: Site) -> None:
    page, _witness = open_page("/jobs/new")
    page.fill("[data-yaml]", "name: first-name\npool: simulated\nrun: echo hi\n")
    expect(page.locator("[data-key-path=name]")).to_have_value("first-name")
    page.fill("[data-key-path=name]", "renamed")
    expect(page.locator("[data-yaml]")).to_have_value(re.compile("name: renamed"))
    page.fill("[data-yaml]", "name: broken\nrun: [echo\n")
    page.click("[data-submit]")
    expect(page.locator(".y-toast").first).to_contain_text("line")
    expect(page.locator("[data-unread]")).to_be_visible()
    expect(page.locator("[data-form]")).to_have_attribute("inert", "")
    assert page.url.endswith("/jobs/new")
    names = "SELECT count(*) FROM jobs_job WHERE name IN ('first-name', 'renamed', 'broken')"
    assert site.run(names) == [(0,)]
    # The form rests: what it shows is not what the file says. Corrected and submitted at once, the file counts.
    page.fill("[data-yaml]", "# a remark that stays\nname: corrected\npool: simulated\nrun: echo there\n")
    page.keyboard.press("Control+Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+$"))
    assert site.run("SELECT spec->>'run' FROM jobs_job WHERE name = 'corrected'") == [("echo there",)]
    assert site.run(names) == [(0,)]


def test_a_draft_is_kept_without_secrets_and_goes_at_sign_out(open_page: Open, site: Site) -> None:
    page, _witness = open_page("/jobs/new")

    def kept() -> str:
        return str(page.evaluate("JSON.stringify(Object.entries(localStorage))"))

    def keeps(words: str) -> bool:
        """Waits until the browser keeps it."""
        return _eventually(page, lambda: words in kept())

    page.evaluate("localStorage.setItem('yard.draft', 'a draft of an earlier release')")
    page.reload()
    page.fill("[data-yaml]", "# a remark\nname: a-draft\nrun: echo hi\n")
    expect(page.locator("[data-key-path=name]")).to_have_value("a-draft")
    assert keeps("# a remark")
    assert "an earlier release" not in kept()
    variables = "env:\n  HF_TOKEN: canary-1\n  PLAN: canary-2\nsecrets: [PLAN]\n# OLD_TOKEN: canary-3\n"
    text = f"name: with-secrets\nrun: echo hi\n{variables}"
    page.locator("[data-yaml]").press_sequentially(text[:40])
    page.fill("[data-yaml]", text)
    expect(page.locator("[data-key-path=name]")).to_have_value("with-secrets")
    assert keeps("with-secrets")
    assert "canary" not in kept()
    page.fill("[data-key-path=name]", "renamed-draft")
    assert keeps("renamed-draft")
    assert "canary" not in kept()
    assert "canary-1" in page.input_value("[data-yaml]")
    page.reload()
    expect(page.locator("[data-yaml]")).to_have_value(re.compile(r"HF_TOKEN: .?\*\*\*"))
    expect(page.locator("[data-fault-list]")).to_contain_text("the value of HF_TOKEN is masked")
    page.click(".y-menu summary")
    page.click("form[action='/sign-out'] button")
    page.wait_for_url(re.compile("/sign-in"))
    assert "draft" not in kept()


def test_secrets_are_set_and_deleted_on_their_page(open_page: Open, site: Site) -> None:
    page, witness = open_page("/secrets")
    page.fill("input[name=name]", "HF_TOKEN")
    page.fill("textarea[name=value]", "canary-of-the-page")
    page.click("form[action='/secrets/set'] button")
    expect(page.locator("p.y-note[role=status]")).to_contain_text("The secret is set")
    expect(page.locator("table")).to_contain_text("HF_TOKEN")
    assert "canary" not in page.content()
    page.click("[aria-label='Delete the secret HF_TOKEN']")
    expect(page.locator("p.y-note[role=status]")).to_contain_text("The secret is deleted")
    expect(page.locator("table")).to_have_count(0)
    assert witness.complaints() == []


def test_the_form_shows_what_a_stage_has_from_the_whole_job(open_page: Open) -> None:
    page, _witness = open_page("/jobs/new")
    inherited = "run: train.sh\ndevices: {kind: gpu, count: 2}\nretry: {max: 3}\n"
    page.fill("[data-yaml]", f"{inherited}stages:\n- name: a\n- name: b\n  run: other.sh\n")
    command = page.locator("[data-stage-path=run]")
    expect(command).to_have_value("train.sh")
    expect(command).to_have_attribute("title", "given by the whole job")
    expect(page.locator("[data-device]")).to_have_value("gpu")
    expect(page.locator("[data-device-count]")).to_have_value("2")
    expect(page.locator("[data-retry]")).to_have_value("3")
    page.click("[data-stages] button:nth-child(2)")
    expect(command).to_have_value("other.sh")
    expect(command).to_have_attribute("title", "")
    expect(page.locator("[data-device-count]")).to_have_value("2")


def test_the_preview_tells_what_a_submit_refuses(open_page: Open) -> None:
    page, _witness = open_page("/jobs/new")
    page.fill(
        "[data-yaml]", "name: too-much\npool: simulated\nrun: echo hi\nnodes: 900\ndevices: {kind: gpu, count: 2}\n"
    )
    expect(page.locator("[data-verdict-title]")).to_have_text("Would be refused")
    expect(page.locator("[data-fault-list]")).to_contain_text("can never start")
    page.click("[data-submit]")
    expect(page.locator(".y-toast").first).to_contain_text("can never start")


def test_a_job_that_no_change_helps_is_told_so_on_one_line(open_page: Open, site: Site) -> None:
    page, _witness = open_page(f"/jobs/{site.number(HOSTILE)}")
    said = page.locator(".otherwise li").first
    expect(said).to_have_text("No single change that was tried lets it start now.")
    assert said.evaluate("e => e.getBoundingClientRect().height") < 40


ODD = [
    "", " lead", "trail ", ".5", "1e3", "no", "~", "a: b", "a #b", "- x", "[x", "{y", "'q", '"q', "tab\there",
    "\x85\x7f\u2028", "line\nbreak", "line\nbreak\n", "two\n\n", "  first\nindented", "a\n\n  b\n", "cr\r\nlf",
    "\ufeffmark", "100%", "@at", "1:30", "2027-01-31", "=", "文", "x" * 200,
]  # fmt: skip


def test_the_file_is_written_as_the_server_reads_it(open_page: Open) -> None:
    page, _witness = open_page("/jobs/new")
    value = {
        "odd": ODD,
        "numbers": [0, -1, 1.5, 1e21, 1e-7, True, False, None],
        "deep": [{"name": word, "inner": {word or "empty": word, "none": {}, "list": [[word], []]}} for word in ODD],
        **{f"key {n}": word for n, word in enumerate(ODD)},
    }
    text = page.evaluate("async value => (await import('/static/yard/yaml.js')).yaml(value)", value)
    assert from_yaml(text.encode()) == value


def test_keys_lead_from_page_to_page(open_page: Open) -> None:
    page, _witness = open_page("/")
    _drawn(page)
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url("**/nodes")
    _drawn(page)
    page.keyboard.press("?")
    expect(page.locator("#yard-keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#yard-keys")).to_be_hidden()
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("/")
    page.keyboard.type("g t")
    expect(page.get_by_role("combobox", name="What to find")).to_have_value("g t")


def test_the_palette_finds_and_leads_by_keys_alone(open_page: Open, site: Site) -> None:
    page, witness = open_page("/nodes/g03")
    _drawn(page)
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="What to find")
    expect(field).to_be_focused()
    # The page's own actions come first, then all pages.
    expect(page.locator("#yard-found").get_by_role("option", selected=True)).to_have_text("Drain…")
    page.keyboard.type("qwen3")
    job = page.get_by_role("option", name="qwen3-32b-sft")
    expect(job).to_have_attribute("aria-selected", "true")
    expect(field).to_have_attribute("aria-activedescendant", str(job.get_attribute("id")))
    page.keyboard.press("ArrowDown")
    expect(job).to_have_attribute("aria-selected", "false")
    page.keyboard.press("ArrowUp")
    assert _serious(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{site.number('qwen3-32b-sft')}")
    _drawn(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("drain g04")
    expect(page.locator("#yard-found").get_by_role("option", selected=True)).to_have_text("Drain g04…")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/g04#ask-drain")
    expect(page.locator("#ask-drain")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(page.locator("#yard-palette")).to_be_hidden()
    assert witness.complaints() == []


def test_the_palette_leads_to_what_was_typed_however_fast(open_page: Open, site: Site) -> None:
    page, witness = open_page("/nodes/g03")
    _drawn(page)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option", selected=True)).to_have_text("Drain…")
    page.keyboard.type("qwen3-32b-sft")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{site.number('qwen3-32b-sft')}")
    assert witness.complaints() == []


def test_without_scripts_the_search_is_a_page(open_page: Open, site: Site) -> None:
    page, _witness = open_page("/")
    context = page.context.browser.new_context(java_script_enabled=False)
    context.add_cookies(page.context.cookies())
    plain = context.new_page()
    plain.goto(site.url + "/")
    plain.get_by_role("link", name="Search or do…").click()
    plain.get_by_role("searchbox", name="What to find").fill("g03")
    plain.get_by_role("button", name="Search").click()
    plain.get_by_role("link", name="g03").first.click()
    expect(plain).to_have_url(f"{site.url}/nodes/g03")
    context.close()


def test_chinese_is_a_language_of_every_page(open_page: Open, site: Site) -> None:
    page, witness = open_page("/", language="zh-CN")
    _drawn(page)
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    expect(page.locator("h1")).to_have_text("总览")
    expect(page.locator("[data-live-pill]")).to_have_text("实时")
    for path in PAGES[1:]:
        page.goto(site.url + _named(path, site))
        _drawn(page)
    assert witness.complaints() == []


def test_how_long_a_project_keeps_its_logs_is_changed_on_the_page(open_page: Open) -> None:
    page, witness = open_page("/retention")
    row, dialog = page.locator("[data-key=project-speech]"), page.locator("#keep-speech")
    expect(row).not_to_contain_text("its own choice")
    for days, size, told in (("21", "10", "21 days"), ("", "", "90 days")):
        page.click("[data-dialog=keep-speech]")
        dialog.locator("[name='days.logs']").fill(days)
        dialog.locator("[name=log_bytes]").fill(size)
        assert _serious(page) == []
        dialog.locator("button[type=submit]").click()
        expect(row).to_contain_text(told)
    expect(row).to_contain_text("50 GiB")
    expect(row).not_to_contain_text("its own choice")
    assert witness.complaints() == []
