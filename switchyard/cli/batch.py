"""Submits a batch script for Slurm: converts it, prints what became of each directive, and refuses what must be."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean
from switchyard.problem import SpecError

if TYPE_CHECKING:
    import argparse

    from switchyard.slurm.sbatch import Batch

SUFFIXES = (".sbatch", ".slurm", ".sh")
MOST_WORDS = 20_000


def is_meant(path: str, text: str) -> bool:
    """Whether a file is a batch script: it has ``#SBATCH`` lines, and begins with ``#!`` or is named like one."""
    from switchyard.slurm import options

    return options.is_batch(text) or (path.endswith(SUFFIXES) and next(options.directives(text), None) is not None)


def spec_of(args: argparse.Namespace, text: str) -> dict[str, Any]:
    """Return the job file of a script, print the report, and set options that the script gives for ``args``."""
    batch = converted(text, args.file, key=step_key(args))
    if not (args.quiet or batch.is_parsable):
        print("\n".join(told(batch, args.file)), file=sys.stderr, flush=True)
    check(batch, strict=args.strict)
    for option, is_set in (("wait", batch.waits), ("dry_run", batch.is_test), ("quiet", batch.is_parsable)):
        if is_set and hasattr(args, option):
            setattr(args, option, True)
    add_folder(batch.spec, text, args.file, quiet=args.quiet)
    return batch.spec


def step_key(args: argparse.Namespace) -> str:
    """Return the secret by which the nodes of a job know each other: a new one, but the same for the same
    ``--idempotency-key`` of the same person, so that submitting twice sends the same job."""
    import hashlib
    import hmac

    from switchyard import address

    if args.idempotency_key and (token := address.find(args.url, args.token, profile=args.profile).token):
        return hmac.new(token.encode(), f"step {args.idempotency_key}".encode(), hashlib.sha256).hexdigest()
    return _new_key()


def _new_key() -> str:
    import secrets

    return secrets.token_hex(32)


def converted(
    text: str, path: str, given: Sequence[str] = (), arguments: Sequence[str] = (), *, key: str = ""
) -> Batch:
    """Convert a script here and now: with this environment, and ``key`` or a new secret for its nodes."""
    from switchyard.slurm import sbatch

    name = "sbatch" if path == "-" else Path(path).name
    return sbatch.convert(text, name=name, given=given, environ=os.environ, key=key or _new_key(), arguments=arguments)


def told(batch: Batch, path: str) -> Iterator[str]:
    """Yield the report: a sentence with numbers, then a line for each option."""
    from switchyard.slurm.sbatch import DIFFERS, IGNORED, REFUSED, TAKEN

    words = {TAKEN: "taken", DIFFERS: "taken with a difference", IGNORED: "ignored", REFUSED: "refused"}
    counts = Counter(one.verdict for line in batch.report for one in line.findings)
    sums = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict])
    yield clean.line(f"{path}: {sums or 'no directives'}")
    for line in batch.report:
        where = f"line {line.number}" if line.number else "option"
        for one in line.findings:
            yield clean.line(f"  {where:<9} {one.option:<18} {one.verdict:<8} {one.said}").rstrip()


def check(batch: Batch, *, strict: bool) -> None:
    """Raise SpecError for a script of which something is refused or, if ``strict``, ignored."""
    from switchyard.slurm.sbatch import IGNORED, REFUSED

    bad = batch.having(REFUSED) or (batch.having(IGNORED) if strict else [])
    if bad:
        line, one = bad[0]
        where = f"line {line.number}: " if line.number else ""
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise SpecError(f"{where}{one.option}: {one.said or one.verdict}{more}")


def add_folder(spec: dict[str, Any], text: str, path: str, *, quiet: bool) -> None:
    """Send the current folder along if the script names something in it, or a folder in it to start in."""
    from switchyard.cli import demand

    if re.search(r" --chdir '?/", spec["run"].split("<<", 1)[0]):
        return
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = islice((word for line in lines for word in re.split(r"[\s\"'();|&<>=]+", line)), MOST_WORDS)
    own = Path(path).name
    named = demand.uses_file_of([word for word in words if word and word not in (own, path)], Path.cwd())
    if named:
        spec["workdir"] = "."
        if not quiet:
            print(
                f"sends this folder along, because {clean.line(named)} is in it (--no-workdir sends nothing)",
                file=sys.stderr,
            )
