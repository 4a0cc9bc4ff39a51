"""Past, present and planned holders of devices: lanes of devices over past and plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.pages.counted import counted
from controlplane.pages.gantt import ENDED, GAVE_WAY, bars_of, moment
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import pools, timeline
from controlplane.queries.reading import seen

HOUR, DAY = 3600, 86_400
# Seconds before and after now, by the name in the address.
RANGES = {
    "1h": (-HOUR, HOUR // 2),
    "6h": (-4 * HOUR, 2 * HOUR),
    "24h": (-16 * HOUR, 8 * HOUR),
    "7d": (-5 * DAY, 2 * DAY),
}
MOST_BARS = 1500
MOST_PROMISES = 12
LIVE = {"STARTING", "RUNNING", "STOPPING", "SUSPENDED", "COMPLETED"}

Segment = Mapping[str, Any]


def _look(segment: Segment) -> str:
    if segment["planned"]:
        return "PLANNED"
    state = segment["state"]
    if state in LIVE:
        return str(state)
    return "PREEMPTED" if state in GAVE_WAY else ENDED.get(state, "FAILED")


def _label(segment: Segment) -> str:
    if not segment["job"]:
        return _("another project")
    name, stage = segment["name"], segment["stage"]
    return f"#{segment['job']} {name}" if stage in {"main", name} else f"#{segment['job']} {name} · {stage}"


def _foreseen(segments: list[Segment], lane: Mapping[str, Any], now: str, last: str) -> list[Segment]:
    """The segments of a lane; a running one is expected to end where the plan has the device for the next one.

    A forecast and a plan are made at different times, so they may overlap slightly, which means nothing. An overdue
    segment is drawn up to the next one too, or to the end of the chart: ``edge``.
    """
    plans = [s for s in segments if s["planned"] and s["start_at"] > now]

    def foreseen(segment: Segment) -> dict[str, Any]:
        room = lane["capacity_milli"] - segment["milli"]
        starts = [plan["start_at"] for plan in plans if plan["milli"] > room]
        expected = segment["expected_end_at"]
        ends = {"expected_end_at": min([expected, *starts])} if expected else {}
        return {**segment, **ends, "edge": min([max(last, now), *starts])}

    return [foreseen(segment) for segment in segments]


def _tracks(segments: Iterable[Segment], now: str) -> list[tuple[Segment, int]]:
    """Each segment with the first free track of its lane."""
    ends: list[str] = []
    placed = []
    for segment in sorted(segments, key=lambda s: (s["start_at"], s["job"] or 0)):
        ahead = segment["edge"] if segment["overdue_since_at"] else segment["expected_end_at"]
        until = segment["end_at"] or max(ahead or now, now)
        track = next((i for i, end in enumerate(ends) if end <= segment["start_at"]), len(ends))
        ends[track : track + 1] = [until]
        placed.append((segment, track))
    return placed


def chart(
    body: Mapping[str, Any], *, only_used: bool = False, row: int = 18, tallest: int = 1400, most: int | None = None
) -> dict[str, Any]:
    """The timeline as bars. Neighbouring devices of a node that one attempt holds alone become one taller bar.

    With ``most`` only the first so many lanes are drawn; ``left_out`` counts the others.
    """
    by_lane: dict[str, list[Segment]] = defaultdict(list)
    for segment in body["segments"]:
        by_lane[segment["lane"]].append(segment)
    lanes = [lane for lane in body["lanes"] if by_lane[lane["device"]] or not (only_used or lane["kind"] == "cpu")]
    left_out = len(lanes) - len(lanes := lanes[:most])
    items: list[dict[str, Any]] = []
    open_bars: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, lane in enumerate(lanes):
        placed = _tracks(_foreseen(by_lane[lane["device"]], lane, body["now"], body["to_at"]), body["now"])
        height = 1 / (max((track for _segment, track in placed), default=0) + 1)
        still: dict[tuple[Any, ...], dict[str, Any]] = {}
        for segment, track in placed:
            key = (
                lane["node"],
                segment["job"],
                segment["stage"],
                segment["attempt"],
                segment["start_at"],
                segment["end_at"],
                segment["expected_end_at"],
                segment["overdue_since_at"] and segment["edge"],
                segment["planned"],
            )
            bar = open_bars.get(key) if height == 1 and segment["job"] else None
            if bar is None:
                bar = _bar(segment, lane, number + (track + 0.5) * height - 0.5 if height < 1 else number, height)
                items.append(bar)
            else:
                bar["h"] += 1
                bar["last"] = f"{lane['kind']}{lane['index']}"
            if height == 1:
                still[key] = bar
        open_bars = still
    bars = [piece for bar in items for piece in _finished(bar, body["now"])]
    first: dict[str, int] = {}
    for number, lane in enumerate(lanes):
        first.setdefault(lane["node"], number)
    each = len(lanes) <= 28
    names = [f"{lane['node']} {lane['kind']}{lane['index']}" for lane in lanes] if each else list(first)
    starts = list(first.values())
    spans = list(pairwise([*starts, len(lanes)]))
    middles = [(start + end - 1) / 2 for start, end in spans]
    bands = [(start, end - 1) for start, end in spans[::2]]
    rows = max(1, len(lanes))
    row = row if rows <= 32 else row * 2 // 3
    return {
        "lanes": names,
        "at": list(range(len(lanes))) if each else middles,
        "rows": rows,
        "items": bars[:MOST_BARS],
        "bands": bands,
        "tight": True,
        "from": body["from_at"],
        "to": body["to_at"],
        "height": 46 + min(tallest, row * rows),
        "left_out": left_out,
        "cut": max(0, len(bars) - MOST_BARS) or body["truncated"],
    }


def _bar(segment: Segment, lane: Mapping[str, Any], at: float, height: float) -> dict[str, Any]:
    # A bar in a lane is placed by its upper edge; tracks within a lane are offset by their share.
    return {
        "lane": at if height == 1 else at - height / 2 + 0.5,
        "h": height,
        "s": _look(segment),
        "from": segment["start_at"],
        "to": segment["end_at"],
        "t": _label(segment),
        "href": f"/jobs/{segment['job']}" if segment["job"] else "",
        # The axis may name nodes only, and a track is no lane, so the table names the bar's device.
        "on": f"{lane['node']} {lane['kind']}{lane['index']}",
        "node": lane["node"],
        "segment": segment,
    }


def _finished(bar: dict[str, Any], now: str) -> list[dict[str, Any]]:
    """The bar with its texts, and a hatched one behind it up to its expected end."""
    segment, node = bar.pop("segment"), bar.pop("node")
    if last := bar.pop("last", ""):
        bar["on"] += f"–{last}"
    count = f" · {bar['h']} × {node}" if bar["h"] > 1 else f" · {node}"
    owner = f" · {segment['user']}, {segment['project']}" if segment["job"] else ""
    how = segment["cause"] or (_("planned") if segment["planned"] else segment["state"])
    bar["tip"] = f"{bar['t']}{count}{owner} · {how}"
    bar["h"] = round(bar["h"], 3)
    bar["lane"] = round(bar["lane"], 3)
    return bars_of(bar, segment, moment(now), moment(segment["edge"]))


def _promises(segments: Iterable[Segment], lanes: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The reservations that start next, one line per stage."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for segment in segments:
        if segment["planned"]:
            key = (segment["job"], segment["stage"], segment["start_at"])
            line = found.setdefault(
                key,
                {
                    "text": _label(segment),
                    "job": segment["job"],
                    "start_at": segment["start_at"],
                    "end_at": segment["end_at"],
                    "nodes": {},
                    "kinds": [],
                },
            )
            line["nodes"][lanes[segment["lane"]]["node"]] = True
            line["kinds"].append(lanes[segment["lane"]]["kind"])
    return [
        {**line, "nodes": ", ".join(line["nodes"]), "held": counted(line["kinds"])}
        for line in sorted(found.values(), key=lambda line: line["start_at"])
    ]


@login_required
def show(request: HttpRequest) -> HttpResponse:
    chosen = request.GET.get("range", "6h")
    if chosen not in RANGES:
        chosen = "6h"
    first, last = RANGES[chosen]
    asked = {"from": first, "to": last} | ({"pool": request.GET["pool"]} if request.GET.get("pool") else {})
    span = timeline.between(reader(request), str(first), str(last), request.GET.get("pool", ""))
    answer = seen(reader(request), "/timeline?" + urlencode(asked), span)
    body = answer.body
    drawn = chart(body)
    held = {s["lane"] for s in body["segments"] if not s["planned"] and s["end_at"] is None}
    promises = _promises(body["segments"], {lane["device"]: lane for lane in body["lanes"]})
    return page(
        request,
        "timeline.html",
        {
            "chart": drawn,
            "chosen": chosen,
            "ranges": list(RANGES),
            "pool": request.GET.get("pool", ""),
            "pools": pools.names(),
            "nodes": len({lane["node"] for lane in body["lanes"]}),
            "devices": counted(lane["kind"] for lane in body["lanes"]),
            "busy": counted(lane["kind"] for lane in body["lanes"] if lane["device"] in held),
            "promises": promises[:MOST_PROMISES],
            "promise_count": len(promises),
            "simulated": any(lane["simulated"] for lane in body["lanes"]),
        },
        place="timeline",
        topics=[answer],
        every_s=4,
        crumbs=[(title_of("timeline"), "")],
    )
