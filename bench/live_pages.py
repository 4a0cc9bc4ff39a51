"""Browsers that watch the overview: 1,024 nodes of 8 GPUs, all measured anew each second, before 100 open tabs.

Each tab is a real WebSocket client that does what the scripts of the page do: it takes the whole page once and every
change from then on, and asks for the whole where one is missing. What a browser draws is no part of it. Ten tabs
a second are opened (``live_open_p95_ms``: how long a page takes then); the delays are those once all are live. A fifth
of the people see all jobs, the others are members of one project: two audiences. The delay of an update is from the
commit of the measurements until a tab has them.
"""

from __future__ import annotations

import asyncio
import base64
import html
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from websockets.asyncio.client import connect
from websockets.typing import Origin

from bench.figures import Figures, quantile
from bench.live import Filled, fresh_database
from deploy.local.port import free_port
from deploy.local.service import ROOT

NODES, TABS, STAFF, OPENING_S, MEASURED_S = 1_024, 100, 20, 10, 60
PATIENCE_S = 90
# The utilisation of the first GPU of each node is the number of the second, so that a tab's copy says how new it is. It
# is never low: a GPU that is held and hardly used is shown as idle, without a number.
LEAST, LAPS = 50, 50
_SAMPLES = """
INSERT INTO fleet_device_sample (device_id, at, utilisation, memory_used_bytes, power_w, temperature_c)
SELECT id, now(), CASE WHEN uuid LIKE 'gpu-%%-0' THEN %s / 100.0 ELSE random() END, 1073741824, 300, 60
FROM fleet_device
"""
_WEB = (
    "uvicorn", "controlplane.asgi:application", "--http", "controlplane.request_head:BoundedHead",
    "--ws", "websockets-sansio", "--ws-per-message-deflate", "false",
    "--log-level", "warning", "--lifespan", "off", "--no-access-log",
)  # fmt: skip


def measure() -> Figures:
    """Return ``live_cores`` of the web server, ``live_delay_p95_ms`` and its median, and the bytes a tab is sent."""
    with fresh_database():
        cookies = _people(Filled(NODES))
        with web_server() as (port, server):
            return asyncio.run(_measured(port, server, cookies))


def _people(cluster: Filled) -> list[str]:
    from django.test import Client

    from controlplane.accounts.models import Member, User

    cookies = []
    for number in range(TABS):
        user = User.objects.create(username=f"person-{number}", is_superuser=number < STAFF)
        if not user.is_superuser:
            Member.objects.create(project=cluster.projects[0], user=user, role="member")
        browser = Client()
        browser.force_login(user)
        cookies.append(f"yard_session={browser.cookies['yard_session'].value}")
    return cookies


@contextmanager
def web_server() -> Iterator[tuple[int, psutil.Process]]:
    port = free_port(18_470)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "YARD_LOG_LEVEL": "ERROR", "YARD_DB_POOL": "8"}
    process = subprocess.Popen([sys.executable, "-m", *_WEB, "--port", str(port)], env=environment)
    try:
        for _ in range(600):
            try:
                http.client.HTTPConnection("127.0.0.1", port).request("GET", "/healthz")
                break
            except OSError:
                time.sleep(0.1)
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


class Tab:
    """One open overview: what it has of the map, and when it got which second."""

    def __init__(self, port: int, cookie: str) -> None:
        self.port, self.cookie = port, cookie
        self.got: list[tuple[float, int]] = []
        self.received = self.updates = self.resyncs = 0
        self.opened_s = 0.0

    async def watch(self) -> None:
        """Opens the page and follows it until it is cancelled."""
        began = time.monotonic()
        page = await asyncio.to_thread(self._page)
        self.opened_s = time.monotonic() - began
        found = re.search(r'id="overview-cursors" type="application/json">(.*?)</script>', page)
        assert found, "the page names what it follows"
        cursors: dict[str, str] = json.loads(html.unescape(found[1]))
        origin = Origin(f"http://127.0.0.1:{self.port}")
        headers = {"Cookie": self.cookie}
        async with connect(
            f"ws://127.0.0.1:{self.port}/ws/v1",
            additional_headers=headers,
            origin=origin,
            compression=None,
            max_size=None,
        ) as line:
            for topic, cursor in cursors.items():
                await line.send(json.dumps({"op": "sub", "topic": topic, "since": cursor}))
            async for text in line:
                self.received += len(text)
                message = json.loads(text)
                if message["kind"] != "delta":
                    continue
                topic = message["topic"]
                if message.get("since") and message["since"] != cursors[topic]:
                    self.resyncs += 1
                    await line.send(json.dumps({"op": "sub", "topic": topic, "since": ""}))
                    continue
                cursors[topic] = message["to"]
                self._take(message["parts"])

    def _take(self, parts: dict[str, Any]) -> None:
        if levels := parts.get("levels:chart-heat-0"):
            self.updates += 1
            self.got.append((time.monotonic(), base64.b64decode(levels[:4])[0]))

    def _page(self) -> str:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        link.request("GET", "/", headers={"Cookie": self.cookie})
        answer = link.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"the overview was answered {answer.status}")
        return body.decode()


def _second(number: int) -> float:
    """Measures every device anew and tells so; returns when that was committed."""
    from django.db import connection

    from controlplane import changes

    with connection.cursor() as cursor:
        cursor.execute(_SAMPLES, [LEAST + number % LAPS])
    at = time.monotonic()
    changes.announce("samples")
    return at


async def paced(second: int) -> float:
    """Measures every device anew and waits for the rest of the second; returns when that was committed.

    Where the machine is too slow for one a second, they come later and not in a heap.
    """
    at = await asyncio.to_thread(_second, second)
    await asyncio.sleep(max(0.0, at + 1 - time.monotonic()))
    return at


async def _measured(port: int, server: psutil.Process, cookies: list[str]) -> Figures:
    tabs = [Tab(port, cookie) for cookie in cookies]
    committed: dict[int, float] = {}
    watching: list[asyncio.Task[None]] = []
    second = 0
    while second < OPENING_S or not all(tab.got for tab in tabs):
        if second > PATIENCE_S:
            raise SystemExit(f"only {sum(bool(tab.got) for tab in tabs)} of {TABS} tabs were live after {second} s")
        opened = slice(second * TABS // OPENING_S, (second + 1) * TABS // OPENING_S)
        watching += [asyncio.create_task(tab.watch()) for tab in tabs[opened]]
        committed[second] = await paced(second)
        second += 1
    first, began_measuring, used, others = second, time.monotonic(), _cpu(server), _others(server)
    for second in range(first, first + MEASURED_S):
        committed[second] = await paced(second)
    took_s = time.monotonic() - began_measuring
    used, others = _cpu(server) - used, {name: cpu - others.get(name, 0.0) for name, cpu in _others(server).items()}
    await asyncio.sleep(3)
    for task in watching:
        if task.done():
            task.result()
        task.cancel()
    delays = [_delay(tab, second, committed[second]) for tab in tabs for second in range(first, first + MEASURED_S)]
    values: dict[str, float | int | str] = {
        "live_cores": used / took_s,
        "live_delay_p95_ms": quantile(delays, 0.95),
        "live_delay_p50_ms": quantile(delays, 0.5),
        "live_tab_kb_per_s": sum(tab.received for tab in tabs) / TABS / (first + MEASURED_S) / 1000,
        "live_open_p95_ms": quantile([tab.opened_s * 1000 for tab in tabs], 0.95),
        "tabs": TABS,
        "devices": NODES * 8,
    }
    beside = ", ".join(f"{name} {cpu / took_s:.2f}" for name, cpu in sorted(others.items()) if cpu / took_s >= 0.005)
    return Figures(
        values,
        [
            f"cores beside the web server: {beside}",
            (
                f"{min(tab.updates for tab in tabs)} to {max(tab.updates for tab in tabs)} updates a tab, "
                f"{sum(tab.resyncs for tab in tabs)} asked for the whole"
            ),
            f"{took_s / MEASURED_S:.2f} s from one change to the next; all tabs were live after {first} s",
        ],
    )


def _delay(tab: Tab, second: int, committed_at: float) -> float:
    """Milliseconds until this tab had the measurements of this second or newer ones; a minute where it never did."""
    for at, value in tab.got:
        if at >= committed_at and (value - LEAST - second) % LAPS < LAPS / 2:
            return (at - committed_at) * 1000
    return 60_000.0


def _cpu(process: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def _others(server: psutil.Process) -> dict[str, float]:
    """Processor seconds of what else this measurement started, by name."""
    found: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        if process.pid != server.pid:
            found[process.name()] = found.get(process.name(), 0.0) + sum(process.cpu_times()[:2])
    return found
