"""``yard show``: shows all about a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, panel, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Row
from switchyard.problem import ApiProblem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from switchyard.client import Client, JobRecord

EXAMPLES = """
  yard show 42             the job, its stages and their attempts; or an array
  yard show 42_7           the element of array 42 with the index 7
  yard show 42 --json      the job as the REST interface gives it
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="its number or id")
    output.options(parser, formats=("json", "yaml", "name"))


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        job = client.jobs.get(args.job)
        output.one(args, job, lambda: _text(client, job), job.number)
    return exits.OK


def _text(client: Client, job: JobRecord) -> Iterator[str]:
    if job.is_array:
        yield from _array(client, job)
        return
    yield f"job {units.number(job)} {clean.line(job.name)}  {output.paint(job.state)}" + (
        f" ({clean.line(job.cause)})" if job.cause else ""
    )
    for label, text in _facts(job):
        if text:
            yield panel.row(label, text)
    attempts = client.jobs.attempts(job)
    paces = {pace["stage"]: pace for pace in _paces(client, job)}
    for stage in job.stages:
        yield ""
        yield from panel.stage(stage)
        yield from _work(stage)
        if pace := paces.get(stage.get("name")):
            yield panel.row("Speed", _speed(pace))
        mine = [a for a in attempts if a.get("stage") in (stage.get("name"), stage.get("id"))]
        for attempt in mine if len(mine) > 1 else []:
            yield f"  attempt {attempt.get('number'):<2}{clean.line(_attempt(attempt, stage))}"
        yield from _gets(mine)


def _paces(client: Client, job: JobRecord) -> Sequence[Row]:
    """Return the speeds of its running stages; none if the server does not support them."""
    try:
        return client.jobs.pace(job) if job.state == "RUNNING" else []
    except ApiProblem:
        return []


def _speed(pace: Row) -> str:
    rate = pace["steps_per_s"]
    text = f"{rate:.3g} steps/s" if rate >= 0.1 else f"{units.span(1 / rate)} for a step"
    text += f" over the last {units.span(pace['over_s'])}"
    if pace["low_at"]:
        low, high = units.clock(pace["low_at"]), units.clock(pace["high_at"])
        text += f"; all steps done {low}" + (f" to {high}" if high != low else "")
    return text


def _array(client: Client, array: JobRecord) -> Iterator[str]:
    """Yield the text about an array: its elements by state, and its best ones by what they report."""
    yield f"array {array.number} {clean.line(array.name)}  {output.paint(array.state)}"
    yield panel.row("Project", f"{array['project']}, user {array['user']}, pool {array['pool']}")
    yield panel.row("Submitted", units.clock(array.get("submitted_at")))
    yield panel.row("Elements", f"{units.counts(array['counts'])}; {array['count']} submitted")
    if array.get("max_parallel"):
        yield panel.row("At once", f"at most {array['max_parallel']}")
    for name, declared in (array.get("parameters") or {}).items():
        yield panel.row("Parameter", f"{name}: {_declared(declared)}")
    yield from _halving(array)
    for metric in array.get("metrics") or []:
        for goal, label in (("min", "Smallest"), ("max", "Largest")):
            if best := client.jobs.best(array.number, metric, goal):
                point = ", ".join(f"{name} {_short(value)}" for name, value in best["parameters"].items())
                where = f"{array.number}_{best['index']}" + (f" ({point})" if point else "")
                yield panel.row(label, f"{metric} {_short(best['value'])}: {where}")


def _halving(array: JobRecord) -> Iterator[str]:
    """Yield the rungs of a sweep whose worse elements are stopped early."""
    if not (halving := array.get("halving")):
        return
    rule = f"the best 1/{halving['reduction_factor']} go on, {halving['goal']} {clean.line(halving['metric'])}"
    yield panel.row("Halving", f"{rule}; {array['stopped_early']} stopped so far")
    for rung in halving["rungs"]:
        best = "" if rung["best"] is None else f", best {_short(rung['best'])}"
        reached = f"{rung['reached']} reached it, {rung['stopped']} stopped{best}"
        yield panel.row(f"Rung {rung['rung']}", f"step {rung['step']}: {reached}")


def _declared(values: Any) -> str:
    """Return what a file declares of a parameter, at most some of many values."""
    if isinstance(values, list):
        more = f" and {len(values) - 10} more" if len(values) > 10 else ""
        return ", ".join(_short(value) for value in values[:10]) + more
    return ", ".join(f"{kind} from {ends[0]:g} to {ends[1]:g}" for kind, ends in values.items())


def _facts(job: JobRecord) -> Iterator[tuple[str, str]]:
    priority: dict[str, Any] = job.get("priority") or {}
    labels = job.get("labels") or {}
    yield "Id", job.id
    if place := job.get("array"):
        yield "Array", f"element {place['index']} of array {place['number']}; its own number is {job.number}"
    yield "Parameter", ", ".join(f"{name} {_short(value)}" for name, value in (job.get("parameters") or {}).items())
    waits = [
        " ".join(filter(None, (one.get("when"), str(one.get("job") or ""), one.get("verdict"))))
        for one in job.get("depends_on") or []
    ]
    yield "After", ", ".join(waits)
    yield "Code", _code(job.get("source"))
    yield "Project", f"{job.get('project', '')}, user {job.get('user', '')}, pool {job.get('pool', '')}"
    yield "Priority", f"{priority.get('class', '')} {priority.get('value', '')}".strip()
    yield "Submitted", units.clock(job.get("submitted_at"))
    yield "Started", units.clock(job.get("started_at"))
    yield "Ended", units.clock(job.get("ended_at"))
    yield "Progress", units.percent(job.get("progress"))
    yield "Labels", ", ".join(f"{key}={value}" for key, value in labels.items())
    yield "Devices", "simulated: what it shows is not the speed of real ones" if job.get("simulated") else ""


def _code(source: dict[str, Any] | None) -> str:
    """Return from which commit of which repository a job has its code."""
    if not source:
        return ""
    commit = source["commit"] or ("not fetched: " + source["fault"] if source["fault"] else "being fetched")
    return clean.line(f"{source['url']} at {source['rev']}: {commit}")


def _work(stage: Row) -> Iterator[str]:
    progress = stage.get("progress") or {}
    if progress.get("step") is not None:
        of = f" of {progress['total']}" if progress.get("total") else ""
        phase = f", {progress['phase']}" if progress.get("phase") else ""
        yield panel.row("Step", f"{progress['step']}{of}{phase}")
    if values := stage.get("values"):
        yield panel.row("Values", ", ".join(f"{key} {_short(value)}" for key, value in values.items()))
    if saved := stage.get("checkpoint"):
        age = units.span(units.since(saved.get("at")))
        yield panel.row("Saved", f"step {saved.get('step')}, {age} ago, {saved.get('path')}")
    every_s = stage.get("checkpoint_every_s")
    if every_s and (saved or stage.get("kind") == "train"):
        yield panel.row("To save", f"every {units.span(every_s)}: {stage.get('checkpoint_every_why')}")
    if stage.get("needs"):
        yield panel.row("Needs", ", ".join(stage["needs"]))


def _gets(attempts: Sequence[Row]) -> Iterator[str]:
    """Yield the changed resources of running parts, and settings that could not be applied."""
    for attempt in attempts:
        for part in (attempt.get("parts") or []) if not attempt.get("ended_at") else []:
            where = f"rank {part.get('rank')} on {part.get('node')}"
            if share := part.get("share"):
                given = ", ".join(f"{name} {value}" for name, value in sorted(share.items()))
                late = "" if part.get("seen_rev", 0) >= part.get("spec_rev", 0) else ", not applied yet"
                yield panel.row("Gets", f"{where}: {given}{late}")
            for note in part.get("notes") or []:
                yield panel.row("Note", f"{where}: {note}")


def _attempt(attempt: Row, stage: Row) -> str:
    ran = units.span(units.since(attempt.get("started_at"), attempt.get("ended_at")))
    words = [
        attempt.get("cause") or ("" if attempt.get("ended_at") else stage.get("state")),
        f"ran {ran}" if ran else "",
        attempt.get("detail"),
    ]
    return ", ".join(str(word) for word in words if word) or "ended"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
