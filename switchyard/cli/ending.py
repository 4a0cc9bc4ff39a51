"""Waits for the end of jobs, prints a sentence about it and returns the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, panel, units
from switchyard.problem import SwitchyardError, WaitTimeout

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord


def wait(client: Client, jobs: Sequence[int | str], *, timeout_s: float | None, tell: bool, quiet: bool = False) -> int:
    """Return the exit code of the first job, in the order given, that did not complete; else 0."""
    begun, code = time.monotonic(), exits.OK
    for job in jobs:
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - begun))
        try:
            record = client.jobs.wait(job, left_s, told=_tell if tell else None)
        except WaitTimeout:
            raise WaitTimeout(f"job {job} has not ended after {timeout_s:g} s; it goes on") from None
        if not quiet:
            print(sentence(record), file=sys.stderr, flush=True)
        code = code or code_of(client, record)
    return code


def code_of(client: Client, record: JobRecord) -> int:
    """Return the exit code of an ended job; reads its attempts only if a signal may have ended it."""
    code = exits.of_job(record)
    if record.state != "FAILED" or code != exits.FAILURE:
        return code
    try:
        return exits.of_job(record, client.jobs.attempts(record))
    except SwitchyardError:
        return code


def sentence(record: JobRecord) -> str:
    """Describe its end: ``job 12 FAILED after 3m12s: stage train EXIT_CODE, exit code 3``."""
    if record.is_array:
        return f"array {record.number} {output.paint(record.state, sys.stderr)}: {units.counts(record['counts'])}"
    took = units.span(units.since(record.get("submitted_at"), record.get("ended_at")))
    text = f"job {record.number} {output.paint(record.state, sys.stderr)} after {took}"
    bad = next((s for s in record.stages if s.get("state") in ("FAILED", "CANCELLED")), None)
    if record.state == "COMPLETED" or bad is None:
        return text + (f": {clean.line(record.cause)}" if record.cause and not bad else "")
    return f"{text}: stage {clean.line(bad.get('name'))} {clean.line(panel.fault(bad))}"


def _tell(record: JobRecord) -> None:
    reason = units.reason(record.get("reason"))
    print(
        f"job {record.number} {record.state}" + (f": {clean.line(reason)}" if reason else ""),
        file=sys.stderr,
        flush=True,
    )
