"""``yard submit``: queues a job and prints its number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, demand, ending, exits, panel, units
from switchyard.cli.connection import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

TAKES_COMMAND = True
EXAMPLES = """
  yard submit job.yaml                                    queue what the file describes
  yard submit --devices gpu:2 --time 4h -- python train.py --lr 3e-4
  yard submit job.yaml --set stages.train.time_limit=1h --dry-run
"""


VERDICTS = {
    "starts_now": "would start now",
    "queued": "would wait",
    "never": "could never start as written",
}
IMPOSSIBLE = "never"


def options(parser: argparse.ArgumentParser) -> None:
    demand.options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the job's number only")
    parser.add_argument(
        "--dry-run", action="store_true", help="tell where and when it would start; queue nothing; exit 2 if never"
    )
    parser.add_argument("--wait", action="store_true", help="wait for its end and exit with its code")
    parser.add_argument("--watch", action="store_true", help="the same, and tell every change of state")
    parser.add_argument("-o", "--output", choices=("json", "yaml", "name"), metavar="FORMAT", help="json, yaml or name")
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")


def run(args: argparse.Namespace) -> int:
    spec = demand.spec_of(args)
    with connect(args) as client:
        if args.dry_run:
            found = client.preview(spec)
            _print(args, found, preview(found))
            return exits.USAGE if found.get("verdict") == IMPOSSIBLE else exits.OK
        bundle = demand.pack(spec, quiet=args.quiet)
        job = client.jobs.submit(spec, workdir=bundle, idempotency_key=args.idempotency_key)
        if args.quiet or args.output == "name":
            print(job.number, flush=True)
        else:
            kind = f"array {job.number} of {job['count']} jobs" if job.is_array else f"job {job.number}"
            _print(args, job, iter([f"submitted {kind} ({clean.line(job.name)})"]))
        if not (args.wait or args.watch):
            return exits.OK
        return ending.wait(client, [job.number], timeout_s=None, tell=args.watch)


def preview(found: dict[str, Any]) -> Iterator[str]:
    """Yield a dry run as text: the verdict, each stage with its placement or its reasons, and stages that would be
    stopped."""
    if found.get("verdict"):
        yield VERDICTS.get(found["verdict"], clean.line(found["verdict"]))
    for fault in found.get("refused") or []:
        yield clean.line(f"a submit is refused: {fault.get('pointer')}: {fault.get('detail')}")
    for stage in found.get("stages") or []:
        yield ""
        yield clean.line(f"{stage.get('name')} ({stage.get('kind')})")
        where = ", ".join(f"{d.get('node')} {d.get('kind')}{d.get('index')}" for d in stage.get("devices") or [])
        if stage.get("starts_now"):
            yield panel.row("Starts", f"now on {where}" if where else "now")
            yield panel.row("Because", stage.get("why") or "it fits")
        else:
            yield from panel.waiting(stage)
            if where:
                yield panel.row("Planned", where)
        if stage.get("starts_now") and (lasts := stage.get("expected_s")):
            yield panel.row("Runs", panel.runs(lasts))
        if memory := stage.get("memory"):
            yield panel.row("Memory", _memory(memory))
        if memory := stage.get("device_memory"):
            yield panel.row("Device", f"memory of each {clean.line(memory.get('kind'))}: {_memory(memory)}")
    for other in found.get("preempts") or []:
        yield clean.line(f"would stop {other.get('stage')}: {other.get('price'):.0f} weighted device-seconds are lost")
    for other in found.get("resizes") or []:
        was, size = other.get("sizes") or (0, 0)
        lost = f"{other.get('price'):.0f} weighted device-seconds are lost"
        yield clean.line(f"{other.get('stage')} would go on with {size} of its {was} nodes: {lost}")
    for warning in found.get("warnings") or []:
        yield clean.line(f"warning: {warning.get('pointer')}: {warning.get('detail')}")


def _memory(advice: dict[str, Any]) -> str:
    """Return the advice on memory from past runs."""
    sizes = {name: units.size(advice.get(f"{name}_bytes")) for name in ("asked", "largest", "suggested")}
    if advice.get("verdict") == "tight":
        said = f"{sizes['asked']} may not do; stages like it needed {sizes['largest']}: ask {sizes['suggested']}"
    else:
        said = f"{sizes['suggested']} would do instead of {sizes['asked']}; at most {sizes['largest']} was used"
    return f"{said} ({advice.get('basis')})"


def _print(args: argparse.Namespace, thing: dict[str, Any], text: Iterator[str]) -> None:
    if args.output in ("json", "yaml"):
        from switchyard.cli import output

        output.one(args, thing, list)
        return
    lines = list(text)
    print("\n".join(lines) if lines else clean.escaped(thing, indent=2), flush=True)
