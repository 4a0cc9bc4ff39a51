"""The demo's view of a job: pure functions from the REST interface's JSON to text and to a terminal's table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

Job = dict[str, Any]
Stage = dict[str, Any]

COLOURS = {
    "PENDING": "yellow",
    "HELD": "yellow",
    "STARTING": "cyan",
    "RUNNING": "bold cyan",
    "STOPPING": "magenta",
    "SUSPENDED": "magenta",
    "COMPLETED": "green",
    "FAILED": "bold red",
    "CANCELLED": "red",
}
BAR_WIDTH = 14
LOG_LINES = 8


def where(stage: Stage) -> str:
    """Return the devices and nodes on which the stage runs or ran; empty before it is placed."""
    return "; ".join(f"{part['node']}: {_devices(part['devices'])}" for part in stage.get("placed") or [])


def _devices(devices: Sequence[dict[str, Any]]) -> str:
    """Name the accelerators of a part, or its CPU if it has none."""
    told = [device for device in devices if device["kind"] != "cpu"] or list(devices)
    return ", ".join(
        f"{device['model'] or device['kind']} #{device['index']}" + (" (simulated)" if device.get("simulated") else "")
        for device in told
    )


def why(stage: Stage) -> str:
    """Return why the stage is where it is, waits, or ended as it did."""
    reason = stage.get("reason") or {}
    if stage["state"] == "COMPLETED":
        return stage.get("why_here") or ""
    return str(reason.get("text") or stage.get("detail") or stage.get("why_here") or "")


def share_done(stage: Stage) -> float | None:
    """Return the share of the stage that is done, from 0 to 1; None if it does not report it."""
    if stage["state"] == "COMPLETED":
        return 1.0
    progress = stage.get("progress") or {}
    total = progress.get("total")
    return min(1.0, (progress.get("step") or 0) / total) if total else None


def elapsed_s(stage: Stage, now: datetime) -> float | None:
    """Return the seconds since the stage started, until its end if it has one; None before it starts."""
    if not stage.get("started_at"):
        return None
    ended_at = datetime.fromisoformat(stage["ended_at"]) if stage.get("ended_at") else now
    return max(0.0, (ended_at - datetime.fromisoformat(stage["started_at"])).total_seconds())


def metrics(stage: Stage) -> str:
    """Format the stage's last values in one line."""
    return "  ".join(f"{name} {_short(value)}" for name, value in (stage.get("values") or {}).items())


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def news(before: Job | None, job: Job, now: datetime) -> list[str]:
    """Return one line for each stage whose state, place, reason or quarter of progress changed."""
    known = {stage["id"]: _key_facts(stage) for stage in (before or {}).get("stages", [])}
    lines = []
    for stage in job["stages"]:
        told = _key_facts(stage)
        former = known.get(stage["id"], ())
        if told != former:
            lines.append(line(stage, now, explain=told[:3] != former[:3]))
    return lines


def _key_facts(stage: Stage) -> tuple[Any, ...]:
    done = share_done(stage)
    reason = (stage.get("reason") or {}).get("code")
    return stage["state"], where(stage), reason, None if done is None else int(done * 4)


def line(stage: Stage, now: datetime, explain: bool = True) -> str:
    """Format the state of one stage in one line without colours; ``explain`` adds where it is and why."""
    done, elapsed = share_done(stage), elapsed_s(stage, now)
    words = [f"{stage['name']:<12} {stage['state']:<10}"]
    if done is not None:
        words.append(f"{done:4.0%}")
    if elapsed is not None:
        words.append(f"{elapsed:6.1f} s")
    if explain:
        words += [text for text in (where(stage), why(stage)) if text]
    return "  ".join(words)


def ending(job: Job) -> list[str]:
    """Format the result: duration, device and final metrics of each stage."""
    now = datetime.now(UTC)
    lines = []
    for stage in job["stages"]:
        elapsed = elapsed_s(stage, now)
        took = f"{elapsed:7.1f} s" if elapsed is not None else "        -"
        tries = f"  {stage['attempts']} attempts" if stage.get("attempts", 0) > 1 else ""
        lines.append(f"  {stage['name']:<12} {stage['state']:<10} {took}  {where(stage) or '-'}{tries}")
        if said := metrics(stage):
            lines.append(f"  {'':<12} {said}")
        if stage["state"] == "FAILED" and why(stage):
            lines.append(f"  {'':<12} {why(stage)}")
    return lines


def picture(job: Job, logs: Sequence[str], address: str, notes: Sequence[str]) -> Group:
    """Draw the job for a terminal: the stages, the newest log lines, and links."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = datetime.now(UTC)
    table = Table(expand=True, box=None, pad_edge=False, header_style="dim")
    for name, options in (
        ("stage", {"no_wrap": True}),
        ("state", {"no_wrap": True}),
        ("where, and why there", {"ratio": 1, "overflow": "fold"}),
        ("progress", {"no_wrap": True}),
        ("elapsed", {"justify": "right", "no_wrap": True}),
    ):
        table.add_column(name, **options)
    for stage in job["stages"]:
        elapsed = elapsed_s(stage, now)
        place = Text(where(stage))
        if reason := why(stage):
            place.append((" · " if place else "") + reason, style="dim")
        table.add_row(
            stage["name"],
            Text(stage["state"], style=COLOURS.get(stage["state"], "")),
            place,
            _bar(stage),
            "" if elapsed is None else f"{elapsed:.1f} s",
        )
    title = Text.assemble(
        (f"Job {job['number']} {job['name']} ", "bold"), (job["state"], COLOURS.get(job["state"], ""))
    )
    tail = Text("\n".join(logs), style="dim", no_wrap=True, overflow="ellipsis")
    foot = Text("\n".join([*notes, f"{address}/jobs/{job['number']}   Ctrl-C stops"]), style="dim")
    return Group(title, table, Text(), tail, Text(), foot)


def _bar(stage: Stage) -> str:
    done = share_done(stage)
    if done is None:
        return ""
    full = round(done * BAR_WIDTH)
    return "━" * full + "╌" * (BAR_WIDTH - full) + f" {done:4.0%}"
