"""``yard receipt``: tells what a job held and used, what that costs, and one line of advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.panel import row

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  yard receipt 42             what job 42 held and used, by stage
  yard receipt 42 --json      the same for a program
  yard receipt 42 -o yaml
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    output.options(parser, formats=("json", "jsonl", "yaml", "name"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.jobs.receipt(args.job)
    output.one(args, found, lambda: _text(found), found["job"])
    return exits.OK


def _text(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"job {found['job']} {clean.line(found['name'])}  {output.paint(found['state'])}"
    yield row("Waited", units.span(found["wait_s"]))
    for line in found["lines"]:
        yield ""
        model = f" {line['model']}" if line["model"] else ""
        unit = "core" if line["kind"] == "cpu" else "device"
        yield f"{clean.line(line['stage'])}  {clean.line(line['kind'] + model)}"
        yield row("Held", f"{_hours(line['allocated_device_s'])} {unit}-hours in {_attempts(line['attempts'])}")
        yield row("Used", _used(line))
        lost = [
            f"{_hours(line[f'lost_{how}_device_s'])} {unit}-hours {why}"
            for how, why in (("preempted", "by preemption or a move"), ("failed", "by failure"))
            if line[f"lost_{how}_device_s"]
        ]
        if lost:
            yield row("Lost", ", ".join(lost))
        if line["cost"] is not None:
            yield row("Cost", f"{line['cost']:.2f} {found['currency']}")
    yield ""
    if found["energy_j"] is not None:
        carbon = f", {found['co2_g'] / 1000:.2f} kg CO2" if found["co2_g"] is not None else ""
        yield row("Energy", f"{found['energy_j'] / 3.6e6:.3f} kWh{carbon}")
    if found["cost"] is not None:
        rest = "" if found["is_priced_whole"] else ", and what has no price"
        yield row("In all", f"{found['cost']:.2f} {found['currency']}{rest}")
    yield row("Advice", found["advice"])


def _attempts(count: int) -> str:
    return units.counted(count, "attempt", "attempts")


def _used(line: Mapping[str, Any]) -> str:
    """Format busy and idle as shares of what was held; what was not measured is said to be unknown."""
    held = line["allocated_device_s"]
    if not held or line["unknown_device_s"] >= held:
        return "unknown, not measured"
    words = [
        f"busy {units.percent(line['busy_device_s'] / held)}",
        f"idle {units.percent(line['idle_device_s'] / held)}",
    ]
    if line["unknown_device_s"] > 0.005 * held:
        words.append(f"unknown {units.percent(line['unknown_device_s'] / held)}")
    return ", ".join(words)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.2f}" if hours >= 0.1 else f"{hours:.4f}"
