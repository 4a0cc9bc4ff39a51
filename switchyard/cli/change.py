"""``yard change``: changes jobs after their submission."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from switchyard.cli import several
from switchyard.cli.connection import connect
from switchyard.problem import SpecError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """
  yard change 42 --priority high --reason "the demo is on Friday"
  yard change 42 --stage train --time 6h --set stages.train.nodes=2
  yard change --filter label=sweep=7 --pool night --dry-run
"""

_OF_JOB = ("priority", "pool", "project", "name")
_TIMES = ("time_limit", "expected", "begin", "deadline")


def options(parser: argparse.ArgumentParser) -> None:
    several.options(parser)
    parser.add_argument("--priority", metavar="CLASS", help="urgent, high, medium, low, or a number for admins")
    parser.add_argument("--pool", help="another pool, until it has started")
    parser.add_argument("--project", help="another project to charge, until it has started")
    parser.add_argument("--name", help="another name")
    parser.add_argument("--label", action="append", default=[], metavar="K=V", help="a label; K= takes it away")
    parser.add_argument("--stage", metavar="NAME", help="the stage whose times change; all by default")
    parser.add_argument(
        "--time", dest="time_limit", metavar="SPAN", help="the longest it may run; empty for the default"
    )
    parser.add_argument("--expected", metavar="SPAN", help="how long it will probably run; empty to learn it")
    parser.add_argument("--begin", metavar="TIME", help="not before this time; empty for at once")
    parser.add_argument("--deadline", metavar="TIME", help="by when it is to be done; empty for none")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="any key of the job file that may change: nodes=2, stages.train.devices.count=4; repeat",
    )


def run(args: argparse.Namespace) -> int:
    patch = _patch(args)
    if not patch:
        raise UsageError("say what is to change, such as --priority high")
    with connect(args) as client:
        return several.run(client, args, "change", patch)


def _patch(args: argparse.Namespace) -> dict[str, Any]:
    """Return the merge patch of the job file that the options mean."""
    patch = _given(args, _OF_JOB)
    if args.priority and re.fullmatch(r"-?\d+", args.priority):
        patch["priority"] = int(args.priority)
    if args.label:
        labels = (text.partition("=") for text in args.label)
        patch["labels"] = {name: value or None for name, _equals, value in labels}
    times = _given(args, _TIMES)
    if times and args.stage:
        patch["stages"] = {args.stage: times}
    else:
        patch |= times
    for text in args.set:
        _put(patch, text)
    return patch


def _put(patch: dict[str, Any], text: str) -> None:
    """Set ``key.path=value`` in the patch; ``null`` stays, for it takes the key away."""
    from switchyard import jobfile

    path, equals, written = text.partition("=")
    *steps, last = path.strip().split(".")
    if not equals or not last:
        raise SpecError(f"--set {text!r} must be written key=value, such as nodes=2")
    place: Any = patch
    for step in steps:
        place = place.setdefault(step, {})
        if not isinstance(place, dict):
            raise SpecError(f"--set {path}: {step!r} is inside a plain value")
    place[last] = jobfile.value(written)


def _given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that were given; an empty one takes its key away."""
    return {name: getattr(args, name) or None for name in names if getattr(args, name) is not None}
