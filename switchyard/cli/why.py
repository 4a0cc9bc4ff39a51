"""``yard why``: shows why a job waits, why it runs where it does, or why it failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, panel
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.problem import ApiProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from switchyard.client import Client

EXAMPLES = """
  yard why 42              what job 42 waits for, and when it will probably start
  yard why 42 --watch      the same, again whenever it changes
  yard why 42 --json       for programs
"""

_WAIT = {"PENDING", "HELD"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    parser.add_argument("--stage", help="only this stage")
    parser.add_argument("--watch", action="store_true", help="tell it again whenever it changes, until the job ends")
    output.options(parser, formats=("json", "yaml"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        before: list[str] | None = None
        while True:
            found = client.jobs.why(args.job)
            told = list(_text(client, args, found)) if not args.output else []
            if told != before:
                output.one(args, found, lambda told=told: told)  # type: ignore[misc]
                sys.stdout.flush()
            if not args.watch or client.jobs.get(args.job).is_final:
                return exits.OK
            before = told
            time.sleep(2.0)


def _text(client: Client, args: argparse.Namespace, found: Row) -> Iterator[str]:
    job = client.jobs.get(args.job)
    said = {stage.get("stage"): stage for stage in found.get("stages") or []}
    yield f"job {job.number} {clean.line(job.name)}  {output.paint(job.state)}"
    stages = [{**stage, **said.get(stage["name"], {})} for stage in job.stages]
    chosen = [stage for stage in stages if args.stage in (None, stage.get("name"))]
    if not chosen:
        yield f"  no stage {clean.line(args.stage)}; it has {', '.join(clean.line(s.get('name')) for s in stages)}"
    states = {stage.get("state") for stage in chosen}
    tried = _by_stage(lambda: client.jobs.counterfactuals(args.job).get("stages") or []) if states & _WAIT else {}
    failed = _by_stage(lambda: client.jobs.failures(args.job)) if "FAILED" in states else {}
    waited = _by_stage(lambda: client.jobs.waits(args.job))
    for stage in chosen:
        yield ""
        yield from panel.stage(stage)
        yield from panel.waited(waited.get(str(stage.get("name")), {}))
        yield from panel.failure(failed.get(str(stage.get("name")), {}))
        yield from panel.counterfactuals(tried.get(str(stage.get("name")), {}))


def _by_stage(ask: Callable[[], Iterable[Row]]) -> dict[str, Row]:
    """Return what is told of each stage, by its name; empty if the server does not support it."""
    try:
        return {str(one.get("stage")): one for one in ask()}
    except ApiProblem:
        return {}
