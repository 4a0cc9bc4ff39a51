"""Pages in a real Chromium, over 1,024 nodes of 8 GPUs: the overview while all is measured each second, the first paint
of every page of the navigation, and a log of 1,000,000 lines."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any
from urllib.parse import urlsplit

from bench import chromium, part_log
from bench.figures import Figures
from bench.live import Filled, fresh_database
from bench.live_pages import paced, web_server

NODES, WATCHED_S = 1_024, 600
# The browser compiles what runs often anew for some minutes; memory is compared from then on.
WARM_S, WARM_SMALL_S = 300, 30
PAINTS = 3
LINES = 1_000_000
NEEDLE = "CUDA error: an illegal memory access was encountered"
# What the navigation and the menu lead to; the sites of the documentation and the administration are not of the pages.
_PLACES = "[...document.querySelectorAll('.y-side a, .y-menu a')].map(e => e.getAttribute('href'))"
# Pages come from the server with all their content but charts.
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_OTHERS = ("/docs", "/admin", "/api")
# Types of a heap snapshot.
_CODE, _HELD = ("code",), ("object", "closure", "array", "string", "concatenated string")


def measure(small: bool = False) -> Figures:
    """Return the figures of the overview, of paints and of the log; ``small`` watches a smaller yard for a minute."""
    with fresh_database():
        cluster = Filled(64 if small else NODES)
        number = _log(cluster.going[0], LINES)
        session = _session(cluster.user)
        with web_server() as (port, _process):
            lasts_s = (WARM_SMALL_S, 60) if small else (WARM_S, WATCHED_S)
            return asyncio.run(_measured(f"http://127.0.0.1:{port}", session, number, *lasts_s))


def _session(user: Any) -> str:
    from django.test import Client

    browser = Client()
    browser.force_login(user)
    return browser.cookies["yard_session"].value


def _log(part: Any, lines: int) -> int:
    """Write so many lines, with the needle in the last but one; return the job's number."""
    numbered = [b"step %7d | loss 1.9312 | lr 3.0e-05 | 41800 tokens/s | rank 17 of 64\n" % n for n in range(lines)]
    numbered[-2] = numbered[-2].replace(b"loss 1.9312", NEEDLE.encode())
    pieces = [b"".join(numbered[at : at + 900]) for at in range(0, lines, 900)]
    part_log.write(part, pieces, ["out"])
    return int(part.attempt.stage.job.number)


async def _measured(url: str, session: str, number: int, warm_s: int, watched_s: int) -> Figures:
    async with chromium.visitor(url, session) as visitor:
        found = [
            await _overview(visitor, warm_s, watched_s),
            await _paints(visitor),
            await _log_page(visitor, number),
        ]
    return Figures({k: v for one in found for k, v in one.values.items()}, [r for one in found for r in one.remarks])


async def _overview(visitor: chromium.Visitor, warm_s: int, watched_s: int) -> Figures:
    """Watch the overview while every device is measured anew each second, then open it a few times more.

    The longest task is the longest of the time watched, or the median of the longest ones of each opening. Memory is
    the JavaScript heap after a forced collection, at the end of that time against its beginning, which is ``warm_s``
    after the page was opened; ``memory_held_growth_pct`` is of what scripts hold of it, without compiled code.
    """
    second = 0
    await paced(second)
    async with visitor.page() as page:
        opened = [await _opened(visitor, page)]
        meter = await chromium.Meter.of(page)
        for second in range(1, warm_s):
            await paced(second)
        kept = await meter.kept()
        first = await meter.settled()
        await page.evaluate("__tasks.splice(0)")
        for _second in range(watched_s):
            second += 1
            await paced(second)
        last = await meter.read()
        tasks = await page.evaluate("__tasks.splice(0)")
        held = await meter.kept()  # before, as at the beginning: a snapshot collects more than is asked for else
        grown = await meter.settled()
    for _time in range(1, PAINTS):
        await paced(second)
        async with visitor.page() as page:
            opened.append(await _opened(visitor, page))
    spent = {k: last[k] - first[k] for k in last if k.endswith("Duration")}
    took_s = last["Timestamp"] - first["Timestamp"]
    parts = ", ".join(f"{k.removesuffix('Duration')} {100 * v / took_s:.1f} %" for k, v in sorted(spent.items()))
    return Figures(
        {
            "main_thread_pct": 100 * spent["TaskDuration"] / took_s,
            "longest_task_ms": max(max(tasks, default=0.0), statistics.median(max(one, default=0.0) for one in opened)),
            "memory_growth_pct": 100 * (grown["JSHeapUsedSize"] / first["JSHeapUsedSize"] - 1),
            "memory_held_growth_pct": 100 * (_sum(held, _HELD) / _sum(kept, _HELD) - 1),
        },
        [
            f"overview, watched for {took_s:.0f} s, {watched_s} changes: {parts}",
            f"longest tasks in that time {_longest(tasks)} ms; while it opened {'; '.join(map(_longest, opened))} ms",
            (
                f"memory {first['JSHeapUsedSize'] / 2**20:.1f} to {grown['JSHeapUsedSize'] / 2**20:.1f} MiB, "
                f"elements {first['Nodes']:.0f} to {grown['Nodes']:.0f}, "
                f"listeners {first['JSEventListeners']:.0f} to {grown['JSEventListeners']:.0f}; "
                f"of it compiled code {_told(kept, held, _CODE)}, what scripts hold {_told(kept, held, _HELD)}"
            ),
        ],
    )


async def _opened(visitor: chromium.Visitor, page: Any) -> list[float]:
    """Open the overview; return its long tasks until all in sight is drawn."""
    await page.goto(visitor.url)
    await chromium.drawn(page)
    tasks: list[float] = await page.evaluate("__tasks.splice(0)")
    return tasks


def _sum(found: dict[str, int], kinds: tuple[str, ...]) -> int:
    return sum(found.get(kind, 0) for kind in kinds)


def _told(before: dict[str, int], after: dict[str, int], kinds: tuple[str, ...]) -> str:
    """Say how much memory of these kinds there was before and after."""
    return f"{_sum(before, kinds) / 2**20:.2f} to {_sum(after, kinds) / 2**20:.2f} MiB"


def _longest(tasks: list[float]) -> str:
    return ", ".join(f"{each:.0f}" for each in sorted(tasks, reverse=True)[:5]) or "below 50"


async def _paints(visitor: chromium.Visitor) -> Figures:
    """Open each page of the navigation a few times, with an empty cache; the median of each counts."""
    async with visitor.page() as page:
        await page.goto(visitor.url)
        found = [urlsplit(link).path for link in await page.evaluate(_PLACES)]
    places = [link for link in dict.fromkeys(found) if not link.startswith(_OTHERS)]
    took: dict[str, tuple[float, float]] = {}
    for place in places:
        paints, largest = [], []
        for _time in range(PAINTS):
            await paced(0)
            async with visitor.page() as page:
                answer = await page.goto(visitor.url + place)
                if answer is None or answer.status != 200:
                    raise SystemExit(f"{place} was answered {answer and answer.status}")
                await chromium.drawn(page)
                await page.wait_for_timeout(300)
                paints.append(await page.evaluate(_FIRST_PAINT))
                largest.append(await page.evaluate("__paint"))
        took[place] = statistics.median(paints), statistics.median(largest)
    worst = sorted(took.items(), key=lambda each: -each[1][0])
    said = ", ".join(f"{place} {first:.0f} ({largest:.0f})" for place, (first, largest) in worst)
    return Figures(
        {"paint_worst_ms": worst[0][1][0]},
        [f"first paint of content in ms, median of {PAINTS} (largest paint, which may be a chart): {said}"],
    )


async def _log_page(visitor: chromium.Visitor, number: int) -> Figures:
    """Open the page of a long log until its end is shown, and search all of it until the needle is."""
    await paced(0)
    async with visitor.page() as page:
        await page.goto(f"{visitor.url}/jobs/{number}/logs", wait_until="commit")
        ended = f"[...document.querySelectorAll('.y-log .row')].some(e => e.textContent.includes('step  {LINES - 1}'))"
        await chromium.until(page, ended)
        open_ms = await page.evaluate("performance.now()")
        await page.fill("[data-log-find]", NEEDLE)
        began = await page.evaluate("performance.now()")
        await page.click("[data-log-everywhere]")
        await chromium.until(page, "document.querySelector('[data-log-found-list] li') !== null")
        find_ms = await page.evaluate("performance.now()") - began
        await chromium.until(page, "document.querySelector('[data-log-found-told]').textContent.includes('whole')")
        whole_ms = await page.evaluate("performance.now()") - began
    return Figures(
        {"log_open_ms": open_ms, "log_find_ms": find_ms},
        [f"a log of {LINES:,} lines: the search had read all of it after {whole_ms:.0f} ms"],
    )
