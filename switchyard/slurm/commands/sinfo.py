"""``sinfo``: lists pools as partitions, with their nodes by state."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from switchyard.cli import clean
from switchyard.slurm.commands.records import SlurmNode, clock
from switchyard.slurm.commands.shell import SlurmOptions, columns, connect, table

USUAL: Final = "%9P %.5a %.10l %.6D %.6t %N"
BY_NODE: Final = "%#N %.6D %#P %6t"
SUMMARY: Final = "%9P %.5a %.10l %.16F %N"
LONGER: Final = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
REASONS: Final = "%20E %9u %19H %N"


@dataclass(slots=True)
class PartitionRow:
    """Nodes of one partition that are shown as one line."""

    pool: Mapping[str, Any]
    nodes: list[SlurmNode] = field(default_factory=list)

    @property
    def partition(self) -> str:
        """Its name; the pool of jobs that name none has a star."""
        name = clean.line(self.pool.get("name"))
        return name + "*" if name == "default" else name

    def first(self, value: Callable[[SlurmNode], object]) -> str:
        """Return a value of the nodes: the least, with a plus where they differ."""
        found = [value(node) for node in self.nodes]
        if not found:
            return "0"
        if isinstance(found[0], int):
            return f"{min(found)}+" if len(set(found)) > 1 else str(found[0])  # type: ignore[type-var]
        return str(found[0])

    @property
    def features(self) -> str:
        return ",".join(self.nodes[0].features if self.nodes else []) or "(null)"

    def sums(self) -> list[int]:
        return [sum(column) for column in zip(*(node.counts for node in self.nodes), strict=True)] or [0, 0, 0, 0]

    def by_kind(self) -> str:
        """Return its nodes that are held, idle, out of service, and all."""
        held = sum(node.states[0].rstrip("*") in ("alloc", "mix", "drng") for node in self.nodes)
        idle = sum(node.states[0] == "idle" for node in self.nodes)
        return f"{held}/{idle}/{len(self.nodes) - held - idle}/{len(self.nodes)}"


def _names(row: PartitionRow) -> str:
    from switchyard.step import compress

    return compress([node.name for node in row.nodes])


Field = tuple[str, Callable[[PartitionRow], str]]
LETTERS: Final[Mapping[str, Field]] = {
    "a": ("AVAIL", lambda row: "down" if row.pool.get("stopped_by") else "up"),
    "A": ("NODES(A/I)", lambda row: "/".join(row.by_kind().split("/")[:2])),
    "c": ("CPUS", lambda row: row.first(lambda node: node.cpus)),
    "C": ("CPUS(A/I/O/T)", lambda row: "/".join(map(str, row.sums()))),
    "D": ("NODES", lambda row: str(len(row.nodes))),
    "e": ("FREE_MEM", lambda row: "N/A"),
    "E": ("REASON", lambda row: clean.line((row.nodes[0].node.get("reason") if row.nodes else "") or "none")),
    "b": ("ACTIVE_FEATURES", lambda row: row.features),
    "f": ("AVAIL_FEATURES", lambda row: row.features),
    "F": ("NODES(A/I/O/T)", lambda row: row.by_kind()),
    "g": ("GROUPS", lambda row: "all"),
    "G": ("GRES", lambda row: row.first(lambda node: node.gres) if row.nodes else "(null)"),
    "h": ("OVERSUBS", lambda row: "NO"),
    "H": ("TIMESTAMP", lambda row: "Unknown"),
    "l": ("TIMELIMIT", lambda row: _limit(row.pool.get("max_limit_s"))),
    "L": ("DEFAULTTIME", lambda row: _limit(row.pool.get("default_limit_s"))),
    "m": ("MEMORY", lambda row: row.first(lambda node: node.memory_mib)),
    "n": ("HOSTNAMES", lambda row: _names(row)),
    "N": ("NODELIST", _names),
    "o": ("NODE_ADDR", lambda row: _names(row)),
    "O": ("CPU_LOAD", lambda row: "N/A"),
    "P": ("PARTITION", lambda row: row.partition),
    "r": ("ROOT", lambda row: "no"),
    "R": ("PARTITION", lambda row: row.partition.rstrip("*")),
    "s": ("JOB_SIZE", lambda row: "1-infinite"),
    "t": ("STATE", lambda row: row.nodes[0].states[0] if row.nodes else "n/a"),
    "T": ("STATE", lambda row: row.nodes[0].states[1] if row.nodes else "n/a"),
    "u": ("USER", lambda row: "Unknown"),
    "w": ("WEIGHT", lambda row: "1"),
}


def run(words: Sequence[str]) -> int:
    given = SlurmOptions(
        "sinfo",
        words,
        {
            "h": "noheader", "noheader": "noheader", "N": "Node", "Node": "Node", "s": "summarize",
            "summarize": "summarize", "l": "long", "long": "long", "a": None, "all": None, "e": None, "exact": None,
            "R": "reasons", "list-reasons": "reasons", "r": None, "responding": None, "v": None, "verbose": None,
            "local": None, "json": "json", "d": "dead", "dead": "dead",
        },
        {
            "o": "format", "format": "format", "p": "partition", "partition": "partition", "n": "nodes",
            "nodes": "nodes", "t": "states", "states": "states", "S": None, "sort": None, "M": None, "clusters": None,
        },
    )  # fmt: skip
    with connect() as client:
        pools, nodes = list(client.pools()), [SlurmNode(node) for node in client.nodes.list()]
    wanted = given.listed("partition")
    rows = list(_rows([pool for pool in pools if not wanted or pool["name"] in wanted], _chosen(nodes, given), given))
    if "json" in given:
        from switchyard.slurm.commands import as_json

        of_pool = {pool["name"]: [node for node in nodes if pool["name"] in node.pools] for pool in pools}
        groups = (as_json.group(row.pool, row.nodes, of_pool[row.pool["name"]]) for row in rows)
        print(as_json.document("sinfo", groups, ["sinfo", "--json"]), flush=True)
        return 0
    text = given.get("format") or os.environ.get("SINFO_FORMAT") or _usual(given)
    # Without a width a node's own lines have the widest of its names and of its partitions.
    widest = max([8, *(len(node.name) for row in rows for node in row.nodes)]) + 1
    text = text.replace("%#N", f"%{widest}N").replace("%#P", f"%.{max([9, *(len(row.partition) for row in rows)])}P")
    fields = columns(text, LETTERS, lambda letter: f"sinfo: error: Invalid node format specification: {letter}")
    print("\n".join(table(rows, fields, headers="noheader" not in given)), flush=True)
    return 0


def _usual(given: SlurmOptions) -> str:
    if "reasons" in given:
        return REASONS
    if "Node" in given:
        return BY_NODE
    return SUMMARY if "summarize" in given else LONGER if "long" in given else USUAL


def _chosen(nodes: Sequence[SlurmNode], given: SlurmOptions) -> list[SlurmNode]:
    from switchyard.step import expand

    names = set(expand(given.get("nodes")))
    states = {word.lower() for word in given.listed("states")}
    found = [node for node in nodes if not names or node.name in names]
    if "dead" in given:
        found = [node for node in found if node.states[0].endswith("*")]
    if "reasons" in given:
        found = [node for node in found if node.node.get("reason")]
    return [node for node in found if not states or states & {state.rstrip("*") for state in node.states}]


def _rows(
    pools: Sequence[Mapping[str, Any]], nodes: Sequence[SlurmNode], given: SlurmOptions
) -> Iterator[PartitionRow]:
    """Yield a line for each partition and state; for each node with ``-N``, for each partition with ``-s``."""
    if "Node" in given:
        for node in nodes:
            for pool in pools:
                if pool["name"] in node.pools:
                    yield PartitionRow(pool, [node])
        return
    for pool in pools:
        mine = [node for node in nodes if pool["name"] in node.pools]
        groups: dict[str, list[SlurmNode]] = {}
        for node in mine:
            groups.setdefault("" if "summarize" in given else node.states[0], []).append(node)
        if not groups and not ("states" in given or "nodes" in given or "dead" in given or "reasons" in given):
            yield PartitionRow(pool)
        for group in groups.values():
            yield PartitionRow(pool, group)


def _limit(found: object) -> str:
    return clock(float(found)) if isinstance(found, int | float) and found else "infinite"
