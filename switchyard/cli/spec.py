"""``yard spec``: converts job files of other systems."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import batch, clean, exits
from switchyard.problem import SpecError

if TYPE_CHECKING:
    import argparse

KINDS = ("sbatch", "k8s", "skypilot", "dstack")
EXAMPLES = """
  yard spec convert train.sbatch > job.yaml          what is dropped is told on standard error
  yard spec convert job.yaml --from k8s | yard submit -
  yard spec convert task.yaml                        which system it is of is seen by its keys
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("convert",))
    parser.add_argument("file", help="a batch script, or a YAML file; - reads standard input")
    parser.add_argument("--from", dest="kind", choices=KINDS, help="what it is; else its keys tell")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if anything is dropped")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not tell what is dropped")


def run(args: argparse.Namespace) -> int:
    from switchyard import jobfile

    text = jobfile.text_of(args.file)
    kind = args.kind or kind_of(args.file, text)
    if kind == "sbatch":
        made = batch.converted(text, args.file)
        batch.check(made, strict=False)
        spec, dropped = made.spec, bool(made.having("ignored"))
        report = list(batch.told(made, args.file))
    else:
        spec, left_out = converted(kind, document(text, args.file))
        dropped = bool(left_out)
        report = [f"{args.file}: {len(left_out)} dropped or taken with a difference" if left_out else ""]
        report += [f"  {where}: {why}" for where, why in left_out]
    if not args.quiet:
        print("\n".join(clean.line(line) for line in report if line), file=sys.stderr, flush=True)
    print(jobfile.written(spec), end="", flush=True)
    return exits.USAGE if args.strict and dropped else exits.OK


def kind_of(path: str, text: str) -> str:
    """Return which system a file is of. Raises SpecError if its keys do not tell."""
    if batch.is_meant(path, text):
        return "sbatch"
    found = document(text, path)
    if found.get("kind") == "Job" and str(found.get("apiVersion", "")).startswith("batch/"):
        return "k8s"
    if "type" in found and ("commands" in found or found["type"] == "task"):
        return "dstack"
    if "run" in found and "apiVersion" not in found and ({"resources", "num_nodes", "setup", "envs"} & found.keys()):
        return "skypilot"
    raise SpecError(f"{path}: its keys do not tell what it is; say --from {', '.join(KINDS)}")


def document(text: str, path: str) -> dict[str, Any]:
    """Return the one document of a YAML file or, of several, the one that is a Job."""
    from switchyard import jobfile

    parts = [part for part in re.split(r"^---[ \t]*(?:#.*)?$", text, flags=re.MULTILINE) if part.strip()]
    found = [jobfile.parse(part, path) for part in parts[:50]]
    jobs = [each for each in found if each.get("kind") == "Job"] or found
    if not jobs:
        raise SpecError(f"{path} is empty")
    return jobs[0]


def converted(kind: str, found: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Convert a document of a system; return the job file, and what is not in it."""
    from switchyard.convert import dstack, kubernetes, skypilot

    act = {"k8s": kubernetes.convert, "skypilot": skypilot.convert, "dstack": dstack.convert}[kind]
    made = act(found)
    return made.spec, made.dropped
