"""Applies an action to several jobs, named or found by filters, and prints each outcome; a refusal does not stop the
others."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, units
from switchyard.cli.output import Row
from switchyard.problem import ApiProblem, UsageError

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord

# The statuses to which the codes of refusals in an answer belong.
STATUS = {"not_found": 404, "permission_denied": 403, "invalid_spec": 422}


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that verbs for several jobs share."""
    parser.add_argument("jobs", nargs="*", metavar="job", help="numbers or ids")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        type=_pair,
        metavar="K=V",
        help="instead of naming jobs: state=PENDING, project=nlp, user=me, label=sweep=7, q=TEXT; repeat to narrow",
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what would become of each; change nothing")
    parser.add_argument("--reason", default="", help="why; it is recorded with the job")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no filter; write it like state=PENDING")
    return name, value


def fault(args: argparse.Namespace) -> str:
    """Return what is wrong with the choice of jobs, or an empty text."""
    if bool(args.jobs) == bool(args.filter):
        return "name jobs, or say --filter, such as --filter state=PENDING"
    return ""


def run(client: Client, args: argparse.Namespace, action: str, patch: dict[str, Any] | None = None) -> int:
    """Apply the action to each job that the options choose; return the code of the first refusal, or 0."""
    if wrong := fault(args):
        raise UsageError(wrong)
    if args.filter or (args.dry_run and all(job.isdigit() for job in args.jobs)):
        return _bulk(client, args, action, patch)
    if args.dry_run:
        raise UsageError("--dry-run takes numbers of jobs, not ids")
    code = exits.OK
    for job in args.jobs:
        try:
            record = _act(client, job, action, patch, args.reason)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            _refused(job, str(problem), problem.code, problem.hint)
            code = code or exits.of_problem(problem.status, problem.code)
        else:
            if record.is_array:
                print(f"array {record.number}: {units.counts(record['counts'])}", flush=True)
            else:
                print(f"job {units.number(record)} {output.paint(record.state)}", flush=True)
    return code


def _act(client: Client, job: str, action: str, patch: dict[str, Any] | None, reason: str) -> JobRecord:
    if patch is not None:
        return client.jobs.change(job, patch, reason=reason)
    record: JobRecord = getattr(client.jobs, action)(job, reason)
    return record


def _bulk(client: Client, args: argparse.Namespace, action: str, patch: dict[str, Any] | None) -> int:
    code, done = exits.OK, 0
    chosen: dict[str, Any] = {"matching": dict(args.filter)} if args.filter else {"jobs": [int(j) for j in args.jobs]}
    found = client.jobs.bulk(action, patch=patch, reason=args.reason, dry_run=args.dry_run, **chosen)
    if "phase" in found:
        return _follow(client, found)
    for each in found["results"]:
        if each["outcome"] == "refused":
            _refused(each["number"], each["detail"], each["code"])
            code = code or exits.of_problem(STATUS.get(each["code"], 409), each["code"])
        elif each["outcome"] == "done":
            done += 1
            print(f"job {each['number']} {output.paint(each['state'])}" + (" (dry run)" if args.dry_run else ""))
    if (stops := found.get("stops")) and stops["stages"]:
        print(effect(stops))
    if queue := found.get("queue"):
        print("\n".join(moved(queue)))
    if found["left"]:
        print(f"{done} of the jobs were reached; there are more: repeat it", file=sys.stderr)
        code = code or exits.FAILURE
    elif found["more"]:
        print("these are the newest 500; the same would be done to all others that match", file=sys.stderr)
    elif not found["results"]:
        print("no job matches", file=sys.stderr)
    return code


def _follow(client: Client, operation: Row) -> int:
    """Wait for an operation, and tell what came of it; return the code of its first refusal, or 0."""
    number = operation["id"]
    matched = units.counted(operation["matched"], "job matches", "jobs match")
    print(f"operation {number}: {matched}; it goes on without this command", file=sys.stderr)
    operation = client.operations.wait(number)
    code = exits.OK if operation["phase"] == "DONE" else exits.FAILURE
    for each in operation["refusals"]:
        _refused(each["number"], each["detail"], each["code"])
        code = code or exits.of_problem(STATUS.get(each["code"], 409), each["code"])
    print(clean.line(outcome(operation)))
    return code


def outcome(operation: Row) -> str:
    """Return in one line how far an operation is, or what came of it."""
    came = f"{operation['done']:,} done, {operation['refused']:,} refused"
    told = f"operation {operation['id']} {operation['phase']}: {came}"
    return f"{told}; {operation['fault']}" if operation["fault"] else told


def effect(stops: Row) -> str:
    """Return in one line what stops: jobs, their owners, and what is lost."""
    whose = f" of {', '.join(map(clean.line, stops['owners']))}" if stops["owners"] else ""
    stopped = units.counted(stops["jobs"], "job", "jobs")
    return f"stops {stopped}{whose}, loses {units.device_hours(stops['lost_device_s'])}"


def moved(queue: Row) -> list[str]:
    """Return in lines how the starts of waiting jobs move: how many of other jobs, and each that may be seen."""
    if queue["fault"]:
        return [f"what it does to the queue could not be tried: {clean.line(queue['fault'])}"]
    hidden = f" ({queue['hidden']} of them you may not see)" if queue["hidden"] else ""
    lines = [f"moves {queue['back']} other jobs back and {queue['forward']} forward{hidden}"]
    if queue["stops"]:
        whose = ", ".join(f"#{number}" for number in queue["stopped"])
        lines.append(f"stops {queue['stops']} running stages to make room" + (f", of {whose}" if whose else ""))
    for each in queue["moves"]:
        was, then = (units.clock(each[key]) if each[key] else "not foreseen" for key in ("was_at", "then_at"))
        by = each["later_s"]
        span = "" if by is None else f" ({units.span(abs(by))} {'later' if by > 0 else 'earlier'})"
        lines.append(
            f"  #{each['number']} {clean.line(each['name'])}/{clean.line(each['stage'])}: {was} -> {then}{span}"
        )
    return lines


def _refused(job: object, detail: str, code: str, hint: str = "") -> None:
    print(f"error: job {clean.line(job)}: {clean.line(detail)} ({clean.line(code)})", file=sys.stderr)
    if hint:
        print(f"  hint: {clean.line(hint)}", file=sys.stderr)
