"""``python -m bench NAME [--json FILE]``: run one measurement, print a table, write one flat JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import machine
from bench.figures import Figures

NAMES = (
    "latency",
    "throughput",
    "idle",
    "demo",
    "agent",
    "feedback_queue",
    "engine",
    "live",
    "fuzz",
    "api",
    "reports",
    "services",
    "live_pages",
    "contract",
)
WITH_ROWS = ("engine", "contract", "services")


def main() -> int:
    """Dispatch to ``bench.NAME.measure``."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure Switchyard on this machine.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as one flat object")
    parser.add_argument(
        "--only",
        metavar="ROW[,ROW]",
        default="",
        help="of the engine's, the contract's or the services' rows, only these",
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="of the live loop and of reports, how many nodes")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="of the contract, how many finished jobs (1000000; 10000 with --small)"
    )
    parser.add_argument("--small", action="store_true", help="of the contract, a quick run for a laptop")
    parser.add_argument("--inputs", type=int, metavar="N", help="of the fuzzing, how many inputs in all")
    arguments = parser.parse_args()
    if arguments.only and arguments.name not in WITH_ROWS:
        parser.error(f"--only chooses rows of {', '.join(WITH_ROWS)}; the other measurements are one row each")
    if arguments.small and arguments.name != "contract":
        parser.error("--small is a quick run of the contract")
    if arguments.inputs is not None and (arguments.name != "fuzz" or arguments.inputs < 1):
        parser.error("--inputs is how many inputs the fuzzing tries in all")
    if arguments.nodes is not None and (
        arguments.name not in ("live", "reports") or not 4 <= arguments.nodes <= 10_000
    ):
        parser.error("--nodes is a number from 4 to 10000, for the live loop and reports only")
    if arguments.jobs is not None and (arguments.name != "contract" or arguments.jobs < 1_000):
        parser.error("--jobs is how many finished jobs the contract is measured with, 1000 at least")
    module = import_module(f"bench.{arguments.name}")
    print(f"{arguments.name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
    chosen: dict[str, Any] = {}
    if arguments.name in WITH_ROWS:
        chosen["only"] = [row for row in arguments.only.split(",") if row]
    if arguments.nodes:
        chosen["nodes"] = arguments.nodes
    if arguments.inputs is not None:
        chosen["inputs"] = arguments.inputs
    jobs = arguments.jobs or (10_000 if arguments.small else None)
    if jobs is not None:
        chosen |= {"finished": jobs, "pending": max(1_000, jobs // 10)}
    if arguments.small:
        chosen["small"] = True
    figures: Figures = module.measure(**chosen)
    print(f"\n{machine.describe()}")
    print(figures.table())
    if arguments.json:
        arguments.json.write_text(json.dumps(figures.flat(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
