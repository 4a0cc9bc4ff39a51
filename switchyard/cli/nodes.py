"""``yard nodes``: lists nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.output import Column, Row
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard nodes                 every node with its devices
  yard nodes g07 --json      one node, with all that is known
  yard nodes -o wide         with agent versions and isolation
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", help="only this one, by name or id")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = iter([client.nodes.get(args.node)]) if args.node else client.nodes.list()
        output.many(args, found, COLUMNS, name=lambda node: node["name"])
    return exits.OK


def devices(node: Row) -> str:
    """What a node has, in short: ``8 gpu NVIDIA H100 80GB HBM3, 2 cpu``; the models of CPUs are left out."""
    found = node.get("devices") or []
    counted = Counter((d.get("kind"), d.get("model") if d.get("kind") != "cpu" else "") for d in found)
    ordered = sorted(counted.items(), key=lambda item: (item[0][0] == "cpu", str(item[0])))
    return ", ".join(f"{count} {kind} {model}".strip() for (kind, model), count in ordered)


def held(node: Row) -> str:
    """The share of its accelerators that is claimed; of its CPU where it has no other device."""
    found = node.get("devices") or []
    chosen = [d for d in found if d.get("kind") != "cpu"] or found
    capacity = sum(d.get("capacity_milli") or 0 for d in chosen)
    return units.percent(sum(d.get("claimed_milli") or 0 for d in chosen) / capacity) if capacity else ""


COLUMNS = (
    Column("NODE", lambda n: n["name"]),
    Column("STATE", lambda n: n.get("state")),
    Column("POOLS", lambda n: ",".join(n.get("pools") or [])),
    Column("DEVICES", devices),
    Column("HELD", held, right=True),
    Column("SIMULATED", lambda n: "yes" if n.get("simulated") else ""),
    Column("WARNING", lambda n: output.AS_ROOT if n.get("runs_as") == "root" else ""),
    Column("RUNS AS", lambda n: n.get("runs_as"), wide=True),
    Column("ISOLATION", lambda n: n.get("isolation"), wide=True),
    Column("CONTAINERS", lambda n: n.get("container_engine"), wide=True),
    Column("AGENT", lambda n: n.get("agent_version"), wide=True),
    Column(
        "REPORTED",
        lambda n: (units.span(units.since(n.get("last_report_at"))) + " ago") if n.get("last_report_at") else "",
    ),
    Column("REASON", lambda n: "; ".join([n["reason"]] * bool(n.get("reason")) + list(n.get("alarms") or []))),
)
