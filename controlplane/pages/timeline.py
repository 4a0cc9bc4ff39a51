"""Past, present and planned holders of devices: lanes of devices over past and plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
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
PER_PAGE: Final = 32
MOST_PAGES: Final = 1000
# The height of a lane in pixels; few lanes are up to twice as high.
ROW: Final = 22
LEAST, MINUTE = timedelta(minutes=4), timedelta(minutes=1)
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
    body: Mapping[str, Any], *, opened: Collection[str] = (), only_used: bool = False, most: int | None = None
) -> dict[str, Any]:
    """The timeline as bars. A node is one lane, and an ``opened`` one has a lane for each of its devices.

    A bar is as high as its devices' share of their node, and neighbouring devices that one attempt holds alone have one
    bar, also over the border of two nodes. With ``most`` only the first so many nodes are drawn; ``left_out`` counts
    the others.
    """
    by_lane: dict[str, list[Segment]] = defaultdict(list)
    for segment in body["segments"]:
        by_lane[segment["lane"]].append(segment)
    nodes: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for lane in body["lanes"]:
        nodes[lane["node"]].append(lane)
    if only_used:
        nodes = {name: lanes for name, lanes in nodes.items() if any(by_lane[lane["device"]] for lane in lanes)}
    names = list(nodes)[:most]
    items: list[dict[str, Any]] = []
    open_bars: dict[tuple[Any, ...], dict[str, Any]] = {}
    folds: list[dict[str, Any]] = []
    labels: list[tuple[str, float]] = []
    top = 0.0
    for name in names:
        is_open = name in opened
        shown = nodes[name] if is_open else _folded(nodes[name], by_lane)
        each = 1.0 if is_open else 1 / len(shown)
        rows = len(shown) if is_open else 1
        folds.append({"name": name, "at": round(top), "rows": rows, "open": is_open})
        if is_open:
            labels += [(f"{lane['kind']}{lane['index']}", top + number) for number, lane in enumerate(shown)]
        for number, lane in enumerate(shown):
            placed = _tracks(_foreseen(by_lane[lane["device"]], lane, body["now"], body["to_at"]), body["now"])
            share = 1 / (max((track for _segment, track in placed), default=0) + 1)
            still: dict[tuple[Any, ...], dict[str, Any]] = {}
            for segment, track in placed:
                key = (*_same(segment), is_open and name)
                bar = open_bars.get(key) if share == 1 and segment["job"] else None
                if bar is None:
                    bar = _bar(segment, top + (number + track * share) * each, each * share)
                    items.append(bar)
                bar["h"] += each * share if bar["devices"] else 0
                bar["devices"].append(lane)
                if share == 1:
                    still[key] = bar
            open_bars = still
        top += rows
    bars = [piece for bar in items for piece in _finished(bar, body["now"])]
    rows = max(1, round(top))
    return {
        "lanes": [text for text, _at in labels] if opened else names,
        "at": [at for _text, at in labels] if opened else list(range(len(names))),
        "rows": rows,
        "items": bars[:MOST_BARS],
        "bands": [(fold["at"], fold["at"] + fold["rows"] - 1) for fold in folds[::2]],
        "folds": folds,
        "tight": True,
        "from": body["from_at"],
        "to": body["to_at"],
        "height": 46 + rows * (ROW if rows > 20 else min(ROW * 2, 20 * ROW // rows)),
        "left_out": len(nodes) - len(names),
        "cut": max(0, len(bars) - MOST_BARS) or body["truncated"],
    }


def _folded(lanes: list[Mapping[str, Any]], by_lane: Mapping[str, list[Segment]]) -> list[Mapping[str, Any]]:
    """The devices that a node's one lane shows: its accelerators, and CPUs that have work without an accelerator."""

    def attempts(lane: Mapping[str, Any]) -> set[tuple[Any, ...]]:
        return {(each["job"], each["stage"], each["attempt"], each["planned"]) for each in by_lane[lane["device"]]}

    held = {attempt for lane in lanes if lane["kind"] != "cpu" for attempt in attempts(lane)}
    return [lane for lane in lanes if lane["kind"] != "cpu" or attempts(lane) - held] or lanes


def _same(segment: Segment) -> tuple[Any, ...]:
    """What is alike for the devices of one bar."""
    names = ("job", "stage", "attempt", "start_at", "end_at", "expected_end_at", "overdue_since_at", "planned")
    return (*(segment[name] for name in names), segment["overdue_since_at"] and segment["edge"])


def _bar(segment: Segment, top: float, height: float) -> dict[str, Any]:
    return {
        "lane": top,
        "h": height,
        "s": _look(segment),
        "from": segment["start_at"],
        "to": segment["end_at"],
        "t": _label(segment),
        "href": f"/jobs/{segment['job']}" if segment["job"] else "",
        "devices": [],
        "segment": segment,
    }


def _finished(bar: dict[str, Any], now: str) -> list[dict[str, Any]]:
    """The bar with its texts, and a hatched one behind it up to its expected end."""
    segment, devices = bar.pop("segment"), bar.pop("devices")
    # The axis may name nodes only, and a track is no lane, so the table names the bar's devices.
    bar["on"] = _span(devices)
    count = counted(lane["kind"] for lane in devices)
    owner = f" · {segment['user']}, {segment['project']}" if segment["job"] else ""
    how = segment["cause"] or (_("planned") if segment["planned"] else segment["state"])
    bar["tip"] = f"{bar['t']} · {bar['on']} ({count}){owner} · {how}"
    bar["h"] = round(bar["h"], 3)
    bar["lane"] = round(bar["lane"], 3)
    return bars_of(bar, segment, moment(now), moment(segment["edge"]))


def _span(devices: list[Mapping[str, Any]]) -> str:
    first, last = devices[0], devices[-1]
    begin, end = f"{first['node']} {first['kind']}{first['index']}", f"{last['kind']}{last['index']}"
    if first["node"] != last["node"]:
        return f"{begin} – {last['node']} {end}"
    return begin if len(devices) == 1 else f"{begin}–{end}"


def fitted(body: Mapping[str, Any]) -> dict[str, Any]:
    """The timeline, cut to where it has segments: an installation of one minute's age shows that minute, not an empty
    hour."""
    now, segments = moment(body["now"]), body["segments"]
    first = min((moment(segment["start_at"]) for segment in segments), default=now)
    ends = (segment["end_at"] or segment["expected_end_at"] for segment in segments)
    last = max((moment(end) for end in ends if end), default=now)
    begin = max(moment(body["from_at"]), min(first, now - LEAST) - max(LEAST, now - first) / 30)
    end = min(moment(body["to_at"]), max(last, now + (now - begin) * 0.15))
    # Rounded to minutes, so that an unchanged plan gives the same text.
    begin, end = begin.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0) + MINUTE
    return {**body, "from_at": begin.isoformat(), "to_at": end.isoformat()}


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
    """The page: ``range`` before and after now, of a ``pool``, of nodes with ``node`` in their name, a ``page`` of
    these, of which ``open`` names the unfolded ones, or is ``*`` for all."""
    chosen = request.GET.get("range", "6h")
    if chosen not in RANGES:
        chosen = "6h"
    first, last = RANGES[chosen]
    pool, part, number = request.GET.get("pool", ""), request.GET.get("node", "")[:63], request.GET.get("page", "1")[:9]
    skip = (min(int(number), MOST_PAGES) - 1) * PER_PAGE if number.isdecimal() and int(number) else 0
    nodes = timeline.Nodes(pool, part, skip, PER_PAGE)
    asked = {"from": first, "to": last, "pool": pool, "node": part, "skip": skip, "nodes": PER_PAGE}
    span = timeline.between(reader(request), str(first), str(last), nodes)
    answer = seen(reader(request), "/timeline?" + urlencode({k: v for k, v in asked.items() if v != ""}), span)
    body = answer.body
    names = list(dict.fromkeys(lane["node"] for lane in body["lanes"]))
    wanted = request.GET.get("open", "")[:4000]
    unfolded = set(wanted.split(","))
    opened = names if wanted == "*" else [name for name in names if name in unfolded]
    drawn = chart(fitted(body), opened=opened)
    for fold in drawn["folds"]:
        rest = [name for name in opened if name != fold["name"]]
        fold["href"] = _changed(request, open=",".join(rest if fold["open"] else [*rest, fold["name"]]))
    held = {s["lane"] for s in body["segments"] if not s["planned"] and s["end_at"] is None}
    promises = _promises(body["segments"], {lane["device"]: lane for lane in body["lanes"]})
    return page(
        request,
        "timeline.html",
        {
            "chart": drawn,
            "chosen": chosen,
            "ranges": [(name, last - first) for name, (first, last) in RANGES.items()],
            "pool": pool,
            "part": part,
            "pools": pools.names(),
            "node_count": body["node_count"],
            "shown": Paginator(range(body["node_count"]), PER_PAGE).get_page(skip // PER_PAGE + 1),
            "opened": opened,
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


def _changed(request: HttpRequest, **changes: str) -> str:
    kept = {name: value for name, value in request.GET.items() if name not in changes}
    return f"/timeline?{urlencode(kept | {name: value for name, value in changes.items() if value})}"
