"""``yard topology``: draws the topology of nodes and their devices."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

# How many measured links of a node are drawn, the slowest first.
MOST_LINKS = 8

EXAMPLES = """
  yard topology              every node by its domain, with measured links, link groups and NUMA nodes
  yard topology g07          one node
  yard topology --pool gpu --json
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", help="only this node")
    parser.add_argument("--pool", help="only nodes of this pool")
    output.options(parser, formats=("table", "json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = list(client.topology(node=args.node, pool=args.pool))
    if args.node and not found:
        print(f"error: there is no node {clean.line(args.node)}; yard nodes lists them", file=sys.stderr)
        return exits.NOT_FOUND
    output.one(args, {"nodes": found}, lambda: map(clean.line, drawing(found)))
    return exits.OK


def drawing(nodes: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a tree: domains, their nodes, and the link groups and NUMA nodes of each node."""
    ordered = sorted(nodes, key=lambda node: (units.natural(node["domain"]), units.natural(node["node"])))
    for domain, members in itertools.groupby(ordered, key=lambda node: str(node["domain"])):
        here = list(members)
        is_alone = domain == f"node={here[0]['node']}"
        if not is_alone:
            yield domain
        for at, node in enumerate(here):
            last = at == len(here) - 1
            stem, below = ("", "") if is_alone else ("└─ " if last else "├─ ", "   " if last else "│  ")
            yield f"{stem}{head(node)}"
            branches = list(inside(node))
            for i, text in enumerate(branches):
                yield f"{below}{'└─' if i == len(branches) - 1 else '├─'} {text}"


def head(node: Row) -> str:
    """Return the name of a node, the bandwidth of its link, and its load."""
    gbps = node.get("gbps")
    how = "measured" if node.get("is_measured") else "declared"
    link = f"  {gbps:.4g} Gbit/s ({how})" if gbps else ""
    return f"{node['node']}{link}  load {node.get('load') or 0:.4g}"


def inside(node: Row) -> Iterator[str]:
    """Yield its measured links, its link groups and its NUMA nodes, each with its devices."""
    measured = node.get("measured") or []
    if measured:
        more = f" and {len(measured) - MOST_LINKS} faster ones" if len(measured) > MOST_LINKS else ""
        told = ", ".join(f"{one['node']} {one['gbps']:.4g}" for one in measured[:MOST_LINKS])
        yield f"measured from {told} Gbit/s{more}"
    for group in node.get("groups") or []:
        gbps = f", {group['gbps']:.4g} GB/s" if group.get("gbps") else ""
        yield f"group {group['number']} ({'+'.join(group['types'])}{gbps}): {' '.join(group['devices'])}"
    by_numa: dict[Any, list[str]] = {}
    for device in node.get("devices") or []:
        pcie = f"[{device['pcie']}]" if device.get("pcie") else ""
        by_numa.setdefault(device.get("numa"), []).append(f"{device['name']}{pcie}")
    for numa, names in sorted(by_numa.items(), key=lambda one: (one[0] is None, one[0] or 0)):
        yield f"{'NUMA ?' if numa is None else f'NUMA {numa}'}: {' '.join(names)}"
