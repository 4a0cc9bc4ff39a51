"""``yard hardware``: lists the models of devices in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits, output, units
from switchyard.cli.output import Column, Row
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard hardware            every model: how many are free, memory, bandwidth and peak rates
  yard hardware -o wide    with rates for a watt, links, and the stages that it suits
  yard hardware --json     the same for a program
"""


def options(parser: argparse.ArgumentParser) -> None:
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        output.many(args, client.hardware(), COLUMNS, name=lambda model: model["model"])
    return exits.OK


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
