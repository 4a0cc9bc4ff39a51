"""``yard ps``: lists jobs."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, spans, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from switchyard.client import Client

EXAMPLES = """
  yard ps                        your jobs that have not ended
  yard ps -a -u all -n 20        the newest 20 jobs of everybody
  yard ps -r -s FAILED --json    your failed jobs, each element of an array too, as JSON
"""

LONGEST_AGO_S = 50 * 365 * 86_400.0
OPEN = ("HELD", "PENDING", "STARTING", "RUNNING", "STOPPING", "SUSPENDED")
STATES = (*OPEN, "COMPLETED", "FAILED", "CANCELLED")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="ended jobs too")
    parser.add_argument("-u", "--user", default="me", help="whose: a name, me (the default) or all")
    parser.add_argument("-w", "--watch", action="store_true", help="show the list again every two seconds")
    parser.add_argument(
        "-s", "--state", action="append", type=_state, metavar="STATE", help="only these states; repeat or use commas"
    )
    parser.add_argument("-p", "--project", help="only jobs of this project")
    parser.add_argument("-l", "--label", metavar="K[=V]", help="only jobs with this label")
    parser.add_argument(
        "--since", metavar="SPAN", type=spans.seconds, help="only jobs submitted within this time, such as 2h or 7d"
    )
    parser.add_argument("--search", metavar="TEXT", help="only jobs whose name or number holds this")
    parser.add_argument("-n", "--limit", type=int, default=200, metavar="N", help="at most N jobs (200)")
    parser.add_argument(
        "-r", "--array", action="store_true", help="a line for each element of an array, not one for all of them"
    )
    parser.add_argument("-q", "--quiet", action="store_const", const="name", dest="output", help="numbers only")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if not args.watch:
            _once(args, client)
            return exits.OK
        while True:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            _once(args, client)
            sys.stdout.flush()
            time.sleep(2.0)


def _once(args: argparse.Namespace, client: Client) -> None:
    states = [state for text in args.state or [] for state in text] or (None if args.all else OPEN)
    user = None if args.user == "all" else args.user
    wanted: dict[str, Any] = {
        "state": states, "user": user, "project": args.project, "q": args.search, "label": args.label,
        "limit": args.limit + 1, "submitted_after": _ago(args.since),
    }  # fmt: skip
    rows = client.jobs.list(**wanted) if args.array else _with_arrays(client, wanted)
    count = output.many(args, _first(args.limit, rows), COLUMNS, name=units.number)
    if count == 0 and args.output in (None, "wide"):
        print(_none(args), file=sys.stderr)


def _with_arrays(client: Client, wanted: dict[str, Any]) -> Iterator[Row]:
    """Yield single jobs and arrays, the newest first; the arrays are read in a thread of their own meanwhile."""
    from heapq import merge

    arrays: list[Row] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            arrays.extend(client.jobs.arrays(**wanted))
        except BaseException as error:  # noqa: BLE001 - raised again where it can be answered
            failed.append(error)

    def awaited() -> Iterator[Row]:
        thread.join()
        for error in failed:
            raise error
        yield from arrays

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield from merge(client.jobs.list(**wanted, array="none"), awaited(), key=lambda row: -row["number"])
    finally:
        thread.join()  # the client outlives what it reads


def _ago(span_s: float | None) -> datetime | None:
    from datetime import UTC, datetime, timedelta

    return None if span_s is None else datetime.now(UTC) - timedelta(seconds=min(span_s, LONGEST_AGO_S))


def _none(args: argparse.Namespace) -> str:
    """Return that the list is empty, and which options would list more."""
    wider = [] if args.all or args.state else ["-a shows ended ones"]
    wider += ["-u all shows everybody's"] if args.user == "me" else []
    return "no such jobs" + (f"; {', '.join(wider)}" if wider else "")


def _first(limit: int, rows: Iterable[Row]) -> Iterable[Row]:
    """Yield the first ``limit`` rows; tell on standard error if there are more."""
    for at, row in enumerate(rows):
        if at >= limit:
            print(f"the newest {limit} are shown; -n shows more", file=sys.stderr)
            return
        yield row


def _state(text: str) -> list[str]:
    import argparse

    wanted = [word.strip().upper().replace("CANCELED", "CANCELLED") for word in text.split(",")]
    for word in wanted:
        if word not in STATES:
            raise argparse.ArgumentTypeError(f"{clean.line(word)} is no state; the states are {', '.join(STATES)}")
    return wanted


def _time(job: Row) -> str:
    """Return how long it has run, or has waited."""
    return units.span(units.since(job.get("started_at") or job.get("submitted_at"), job.get("ended_at")))


def _where(job: Row) -> str:
    """Return why it waits, where it runs, or how it ended."""
    if "counts" in job:
        return units.counts(job["counts"])
    stages: list[dict[str, Any]] = job.get("stages") or []
    if job["state"] in ("PENDING", "HELD"):
        return units.reason(job.get("reason"))
    if job["state"] in ("FAILED", "CANCELLED"):
        return str(job.get("cause") or "")
    active = [s for s in stages if s.get("state") in ("STARTING", "RUNNING", "STOPPING", "SUSPENDED")]
    running = "; ".join(f"{s.get('name')}: {units.placed(s)}" if len(stages) > 1 else units.placed(s) for s in active)
    return running or units.reason(job.get("reason"))


def _progress(job: Row) -> str:
    if "counts" in job:
        done = job["counts"].get("COMPLETED", 0) + job.get("stopped_early", 0)
        return units.percent(done / max(1, sum(job["counts"].values())))
    return units.percent(job.get("progress"))


COLUMNS = (
    Column("JOB", units.number, right=True),
    Column("NAME", lambda j: j.get("name")),
    Column("STATE", lambda j: j["state"]),
    Column("PROJECT", lambda j: j.get("project")),
    Column("USER", lambda j: j.get("user")),
    Column("POOL", lambda j: j.get("pool"), wide=True),
    Column("PRIORITY", lambda j: (j.get("priority") or {}).get("class"), wide=True),
    Column("SUBMITTED", lambda j: units.clock(j.get("submitted_at")), wide=True),
    Column("TIME", _time, right=True),
    Column("DONE", _progress, right=True),
    Column("SIMULATED", lambda j: "yes" if j.get("simulated") else "", wide=True),
    Column("WHERE OR WHY", _where),
)
