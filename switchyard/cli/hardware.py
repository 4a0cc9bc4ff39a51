"""``yard hardware``: lists the models of devices in the cluster, what fits on them now, and how full they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

EXAMPLES = """
  yard hardware                  every model: how many are free, memory, bandwidth and peak rates
  yard hardware --gangs          the largest gang of each model that fits now
  yard hardware --history week   how many were there and allocated, and how many stages waited
"""


def options(parser: argparse.ArgumentParser) -> None:
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--gangs", action="store_true", help="instead, the largest gang of each model that fits now")
    instead.add_argument(
        "--history",
        choices=("day", "week"),
        help="instead, how many devices of each kind were allocated and there, and how many stages waited",
    )
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.gangs:
            output.many(args, client.gangs(), GANGS, name=lambda gang: gang["model"] or gang["kind"])
        elif args.history:
            found = client.capacity_history(args.history)
            kinds = [kind["kind"] for kind in found["kinds"]]
            output.many(args, _steps(found), _history(kinds), name=lambda step: step["at"])
        else:
            output.many(args, client.hardware(), COLUMNS, name=lambda model: model["model"])
    return exits.OK


def _steps(found: Row) -> Iterator[Row]:
    """Yield one row for each step of the history."""
    for place, at in enumerate(found["at"]):
        kinds = {
            each["kind"]: {"allocated": each["allocated"][place], "capacity": each["capacity"][place]}
            for each in found["kinds"]
        }
        yield {"at": at, "waiting": found["waiting"][place], "kinds": kinds}


def _history(kinds: Iterable[str]) -> list[Column]:
    """Return the columns of a history: a share for each kind, such as ``12.5/16``."""

    def share(kind: str) -> Column:
        return Column(
            kind.upper(), lambda s: f"{s['kinds'][kind]['allocated']:g}/{s['kinds'][kind]['capacity']:g}", right=True
        )

    return [
        Column("UNTIL", lambda s: units.clock(s["at"])),
        *map(share, kinds),
        Column("WAITING", lambda s: s["waiting"], right=True),
    ]


def _rates(values: Row) -> str:
    return ", ".join(f"{name.rpartition('_')[0]} {value:g}" for name, value in values.items())


def _links(model: Row) -> str:
    return ", ".join(
        link["type"] + (f" {link['gbps']:g}" if link["gbps"] is not None else "") for link in model["links"]
    )


def _unit(model: Row, key: str, unit: str) -> str:
    """Return a declared figure; empty if it is unknown, which is not zero."""
    return "" if model[key] is None else f"{model[key]:g} {unit}"


COLUMNS = (
    Column("MODEL", lambda m: f"{m['vendor']} {m['model'] or m['kind']}".strip()),
    Column("KIND", lambda m: m["kind"]),
    Column("FREE", lambda m: f"{m['free']}/{m['count']}", right=True),
    Column("MEMORY", lambda m: units.size(m["memory_bytes"]), right=True),
    Column("BANDWIDTH", lambda m: _unit(m, "memory_gbps", "GB/s"), right=True),
    Column("RATES", lambda m: _rates(m["rates"])),
    Column("POWER", lambda m: _unit(m, "watts", "W"), wide=True, right=True),
    Column("PER WATT", lambda m: _rates(m["per_watt"]), wide=True),
    Column("LINKS", _links, wide=True),
    Column("SUITS", lambda m: " ".join(one["kind"] for one in m["speeds"] if one["suits"]), wide=True),
)
GANGS = (
    Column("MODEL", lambda g: g["model"] or g["kind"]),
    Column("KIND", lambda g: g["kind"]),
    Column("POOL", lambda g: g["pool"]),
    Column("NODES", lambda g: g["nodes"], right=True),
    Column("EACH", lambda g: g["each"], right=True),
    Column("TOGETHER", lambda g: g["nodes"] * g["each"], right=True),
    Column("FREE", lambda g: ", ".join(f"{each['nodes']} x {each['free']}" for each in g["by_node"]), wide=True),
)
