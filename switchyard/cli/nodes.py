"""``yard nodes``: lists nodes, labels them, and decides about their quarantined parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import NotFound, UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard nodes -o wide         every node with its devices, agent versions and isolation
  yard nodes label g07 rack=3 room-      set a label, and take one away
  yard nodes quarantine g07 discard 0f3c --reason "disk lost"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", help="only this one, by name or id; or: label NODE, quarantine NODE")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE [LABEL=VALUE|LABEL-|release|discard PART]",
        help="labels to set or take away; or what is set aside, and what to do with a part of it",
    )
    parser.add_argument("--reason", default="", help="why a part is discarded; its owner will ask")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if args.node == "quarantine" and args.words:
        return quarantine(args)
    if args.node == "label" and len(args.words) > 1:
        return label(args)
    if args.words:
        raise UsageError(
            "yard nodes takes one node; or: label NODE LABEL=VALUE; or: quarantine NODE [release|discard PART]"
        )
    with connect(args) as client:
        found = iter([client.nodes.get(args.node)]) if args.node else client.nodes.list()
        output.many(args, found, COLUMNS, name=lambda node: node["name"])
    return exits.OK


def label(args: argparse.Namespace) -> int:
    """Set labels of a node, or take them away."""
    node, *words = args.words
    labels: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            labels[name] = value
        elif word.endswith("-"):
            labels[word[:-1]] = None
        else:
            raise UsageError(f"say LABEL=VALUE, or LABEL- to take it away, not {word!r}")
    with connect(args) as client:
        told = client.nodes.change(node, {"labels": labels})
        lines = [clean.line(f"{name}={value}") for name, value in sorted(told["labels"].items())]
        output.one(args, told, lambda: lines or ["it has no labels"], name=told["name"])
    return exits.OK


def quarantine(args: argparse.Namespace) -> int:
    """List the quarantined parts of a node, or decide about one of them, given by a prefix of its name."""
    node, *decision = args.words
    if len(decision) not in (0, 2) or (decision and decision[0] not in ("release", "discard")):
        raise UsageError("say: yard nodes quarantine NODE, then nothing, or release PART, or discard PART")
    with connect(args) as client:
        told: Row = client.nodes.get(node)
        if decision:
            do, part = decision
            known = [each["part"] for each in aside(told) if each["part"].startswith(part)]
            if not known:
                raise NotFound(f"node {node} has set no part aside whose name begins with {part}")
            if len(known) > 1:
                raise UsageError(f"{len(known)} parts that node {node} has set aside begin with {part}: say more")
            told = client.nodes.quarantine(node, known[0], do, args.reason)
        output.many(args, iter(aside(told)), ASIDE, name=lambda each: each["part"])
    return exits.OK


def aside(node: Row) -> list[Row]:
    """Return the parts that the agent of a node could not adopt."""
    return list((node.get("conditions") or {}).get("aside") or [])


ASIDE = (
    Column("PART", lambda each: each["part"]),
    Column("SINCE", lambda each: f"{units.span(units.since(each.get('since')))} ago"),
    Column("DECIDED", lambda each: (each.get("asked") or {}).get("do", "")),
    Column("REASON", lambda each: each.get("reason")),
    Column("FOLDER", lambda each: each.get("folder"), wide=True),
)


def devices(node: Row) -> str:
    """Summarise the devices of a node: ``8 gpu NVIDIA H100 80GB HBM3, 2 cpu``; the models of CPUs are left out."""
    found = node.get("devices") or []
    counted = Counter((d.get("kind"), d.get("model") if d.get("kind") != "cpu" else "") for d in found)
    ordered = sorted(counted.items(), key=lambda item: (item[0][0] == "cpu", str(item[0])))
    return ", ".join(f"{count} {kind} {model}".strip() for (kind, model), count in ordered)


def held(node: Row) -> str:
    """Return the share of its accelerators that is claimed; of its CPU if it has no other device."""
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
    Column("EXECUTOR", lambda n: n.get("executor"), wide=True),
    Column("AGENT", lambda n: n.get("agent_version"), wide=True),
    Column(
        "REPORTED",
        lambda n: (units.span(units.since(n.get("last_report_at"))) + " ago") if n.get("last_report_at") else "",
    ),
    Column("REASON", lambda n: "; ".join([n["reason"]] * bool(n.get("reason")) + list(n.get("alarms") or []))),
)
