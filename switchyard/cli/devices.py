"""``yard devices``: lists devices with their load, or the load of groups of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard devices                     every device
  yard devices --kind npu --free   NPUs with something left to claim
  yard devices --by project --metric power   the power of what each project holds
"""

GROUPS = ("node", "pool", "kind", "model", "project")
METRICS = ("utilisation", "allocated", "memory", "power", "temperature")
USABLE = ("OK", "DEGRADED")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", help="only this kind: cpu, gpu, npu, ...")
    parser.add_argument("--node", help="only those of this node")
    parser.add_argument("--free", action="store_true", help="only healthy ones that are not fully claimed")
    parser.add_argument("--by", choices=GROUPS, help="the load of groups of all devices, instead of each device")
    parser.add_argument("--metric", choices=METRICS, help="with --by: what is measured (utilisation if not told)")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.metric and not args.by:
        raise UsageError(f"--metric is of groups: add --by with one of {', '.join(GROUPS)}")
    if args.by and (args.kind or args.node or args.free):
        raise UsageError("--by is of all devices: leave out --kind, --node and --free")
    with connect(args) as client:
        if args.by:
            loads = client.loads(metric=args.metric or METRICS[0], by=args.by)
            output.many(args, loads["results"], _columns(args.by, loads["unit"]), name=lambda group: group["name"])
            return exits.OK
        found = (d for d in client.devices(kind=args.kind, node=args.node) if not args.free or _free(d))
        output.many(args, sorted(found, key=place), COLUMNS, name=lambda device: device["uuid"])
    return exits.OK


def place(device: Row) -> tuple[str, bool, str, int]:
    """Return the sort key of devices: by node (n2 before n10), accelerators before CPUs, by index."""
    kind = str(device.get("kind"))
    return units.natural(str(device.get("node"))), kind == "cpu", kind, int(device.get("index") or 0)


def _free(device: Row) -> bool:
    """Whether a share of it can still be claimed."""
    return (device.get("claimed_milli") or 0) < (device.get("capacity_milli") or 0) and device.get("health") in USABLE


def sample(device: Row, key: str) -> float | None:
    """Return one value of the newest sample; ``None`` if the vendor does not report it, which is not zero."""
    found = (device.get("sample") or {}).get(key)
    return float(found) if isinstance(found, int | float) else None


def memory(device: Row) -> str:
    used, total = sample(device, "memory_used_bytes"), device.get("memory_bytes")
    return f"{units.size(used)}/{units.size(total)}" if used is not None else units.size(total)


def jobs(device: Row) -> str:
    """Return the stages that hold a share of it."""
    names = (f"{c['job']}/{c['stage']}" if c.get("job") else "(not yours to see)" for c in device.get("claims") or [])
    return " ".join(dict.fromkeys(names))


def _columns(by: str, unit: str) -> list[Column]:
    """Return the columns of the loads of groups, whose values are in ``unit``."""

    def value(title: str, key: str) -> Column:
        return Column(title, lambda g: "" if g[key] is None else f"{g[key]:g} {unit}", right=True)

    return [
        Column(by.upper(), lambda g: g["name"]),
        *([] if by == "kind" else [Column("KIND", lambda g: g["kind"])]),
        Column("DEVICES", lambda g: g["devices"], right=True),
        Column("HELD", lambda g: f"{g['allocated']:g}", right=True),
        value("MEAN", "mean"),
        value("LEAST", "least"),
        value("MOST", "most"),
        Column("KNOWN", lambda g: g["known"], wide=True, right=True),
    ]


def _number(device: Row, key: str, unit: str) -> str:
    value = sample(device, key)
    return "" if value is None else f"{value:.0f} {unit}"


COLUMNS = (
    Column("NODE", lambda d: d.get("node")),
    Column("DEVICE", lambda d: f"{d.get('kind')}{d.get('index')}"),
    Column("MODEL", lambda d: d.get("model")),
    Column("HEALTH", lambda d: d.get("health")),
    Column("HELD", lambda d: units.share(d.get("claimed_milli"), d.get("capacity_milli")), right=True),
    Column("BUSY", lambda d: units.percent(sample(d, "utilisation")), right=True),
    Column("MEMORY", memory, right=True),
    Column("POWER", lambda d: _number(d, "power_w", "W"), wide=True, right=True),
    Column("TEMPERATURE", lambda d: _number(d, "temperature_c", "°C"), wide=True, right=True),
    Column("MODE", lambda d: d.get("mode"), wide=True),
    Column("UUID", lambda d: d.get("uuid"), wide=True),
    Column("SIMULATED", lambda d: "yes" if d.get("simulated") else ""),
    Column("JOBS", jobs),
)
