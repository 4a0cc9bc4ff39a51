"""``yard top``: watches devices live."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from switchyard.cli import clean, devices, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.cli.spans import seconds

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType

    from switchyard.client import Client

EXAMPLES = """
  yard top                          every device, live
  yard top --node g07 --interval 1s
  yard top --once                   one look, as a plain table
"""

BLOCKS = " ▁▂▃▄▅▆▇█"
HISTORY = 40


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help="only this kind: cpu, gpu, npu, ...")
    parser.add_argument("--node", help="only this node")
    parser.add_argument("--interval", type=seconds, default=2.0, metavar="SPAN", help="how often to look (2s)")
    parser.add_argument("--once", action="store_true", help="look once and print a plain table")
    parser.add_argument("--no-headers", action="store_true", help="with --once: leave out the line of titles")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.once or not sys.stdout.isatty():
            args.output = None
            output.many(args, look(client, args), devices.COLUMNS, name=lambda device: device["uuid"])
            return exits.OK
        return _live(client, args)


def look(client: Client, args: argparse.Namespace) -> list[Row]:
    """Return the devices to show, in the order of their nodes."""
    return sorted(client.devices(kind=args.kind, node=args.node), key=devices.place)


def _live(client: Client, args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from switchyard.problem import Unreachable

    past: dict[str, deque[float | None]] = defaultdict(lambda: deque(maxlen=HISTORY))
    console = Console(highlight=False)
    found: list[Row] = look(client, args)
    seen_at = time.monotonic()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                for device in found:
                    past[device["uuid"]].append(devices.sample(device, "utilisation"))
                live.update(_screen(found, past, client.url, time.monotonic() - seen_at, console.height), refresh=True)
                time.sleep(max(0.5, args.interval))
                try:
                    found, seen_at = look(client, args), time.monotonic()
                except Unreachable:
                    continue  # the screen tells its age
    except KeyboardInterrupt:
        return exits.OK


def _screen(
    found: list[Row], past: dict[str, deque[float | None]], url: str, age_s: float, height: int
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    held = [d for d in found if (d.get("claimed_milli") or 0) > 0]
    simulated = sum(bool(d.get("simulated")) for d in found)
    head = Text(f"{url}  {_kinds(found)}; held: {_kinds(held) or 'none'}")
    head.append(f", {simulated} simulated" if simulated else "")
    if age_s > 5:
        head.append(f"  no answer for {units.span(age_s)}", style="bold yellow")
    return Group(head, _rows(found, past) if len(found) + 4 <= height else _dense(found))


def _kinds(found: list[Row]) -> str:
    """Count devices by kind, ``24 gpu, 3 cpu``; devices of different kinds are never added up."""
    counts = Counter(str(device.get("kind")) for device in found)
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items(), key=lambda item: (item[0] == "cpu", item[0])))


def _rows(found: list[Row], past: dict[str, deque[float | None]]) -> RenderableType:
    """Render one line per device with its history, as many as fit on the screen."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, expand=True)
    for title in ("NODE", "DEVICE", "MODEL", "BUSY", "", "HELD", "MEMORY", "POWER", "TEMP", "JOBS"):
        table.add_column(
            title, no_wrap=True, overflow="ellipsis", justify="right" if title in ("BUSY", "HELD", "MEMORY") else "left"
        )
    for device in found:
        busy = devices.sample(device, "utilisation")
        power, heat = devices.sample(device, "power_w"), devices.sample(device, "temperature_c")
        idle = (device.get("claimed_milli") or 0) > 0 and busy is not None and busy < 0.01
        cells = [
            str(device.get("node")),
            f"{device.get('kind')}{device.get('index')}" + (" sim" if device.get("simulated") else ""),
            str(device.get("model")),
            "n/a" if busy is None else units.percent(busy),
            spark(past[device["uuid"]]),
            units.share(device.get("claimed_milli"), device.get("capacity_milli")),
            devices.memory(device),
            "" if power is None else f"{power:.0f} W",
            "" if heat is None else f"{heat:.0f} °C",
            devices.jobs(device) + (" (idle)" if idle else ""),
        ]
        style = "red" if device.get("health") not in ("OK", "DEGRADED", None) else "yellow" if idle else ""
        table.add_row(*(Text(clean.line(cell), style=style) for cell in cells))
    return table


def _dense(found: list[Row]) -> RenderableType:
    """Render one block per device, one line per node: the height is its load, ``x`` is not usable, ``·`` has no
    sample."""
    from rich.text import Text

    nodes: dict[str, list[Row]] = defaultdict(list)
    for device in found:
        nodes[clean.line(device.get("node"))].append(device)
    width = max((len(name) for name in nodes), default=0)
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, own in nodes.items():
        text.append(f"{name:<{width}} ")
        for device in own:
            usable = device.get("health") in ("OK", "DEGRADED", None)
            held = (device.get("claimed_milli") or 0) > 0
            text.append(
                block(devices.sample(device, "utilisation")) if usable else "x",
                style="blue" if held else "bright_black",
            )
        text.append("\n")
    return text


def block(share: float | None) -> str:
    """Return one character for a share of 0 to 1."""
    return "·" if share is None else BLOCKS[max(1, min(8, round(share * 8)))]


def spark(past: deque[float | None]) -> str:
    """Return a short history as blocks, oldest first."""
    return "".join(block(share) for share in past)
