"""Applies an action to several jobs and prints each outcome; a refusal does not stop the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from switchyard.cli import clean, exits, output, units
from switchyard.problem import ApiProblem

if TYPE_CHECKING:
    from switchyard.client import JobRecord


def each(jobs: Sequence[str], act: Callable[[str], JobRecord]) -> int:
    """Call ``act`` for each job; return the code of the first refusal, or 0."""
    code = exits.OK
    for job in jobs:
        try:
            record = act(job)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            print(f"error: job {clean.line(job)}: {clean.line(problem)} ({clean.line(problem.code)})", file=sys.stderr)
            if problem.hint:
                print(f"  hint: {clean.line(problem.hint)}", file=sys.stderr)
            code = code or exits.of_problem(problem.status, problem.code)
        else:
            if record.is_array:
                print(f"array {record.number}: {units.counts(record['counts'])}", flush=True)
            else:
                print(f"job {units.number(record)} {output.paint(record.state)}", flush=True)
    return code
