"""``yard show``: shows all about a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, panel, units
from switchyard.cli.session import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from switchyard.client import Client, JobRecord

EXAMPLES = """
  yard show 42             the job, its stages and their attempts
  yard show 42 --json      the job as the REST interface gives it
  yard show 42 -o yaml
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
    yield f"job {job.number} {clean.line(job.name)}  {output.paint(job.state)}" + (
        f" ({clean.line(job.cause)})" if job.cause else ""
    )
    for label, text in _facts(job):
        if text:
            yield panel.row(label, text)
    attempts = client.jobs.attempts(job)
    for stage in job.stages:
        yield ""
        yield from panel.stage(stage)
        yield from _work(stage)
        mine = [a for a in attempts if a.get("stage") in (stage.get("name"), stage.get("id"))]
        for attempt in mine if len(mine) > 1 else []:
            yield f"  attempt {attempt.get('number'):<2}{clean.line(_attempt(attempt, stage))}"
        yield from _gets(mine)


def _facts(job: JobRecord) -> Iterator[tuple[str, str]]:
    priority: dict[str, Any] = job.get("priority") or {}
    labels = job.get("labels") or {}
    yield "Id", job.id
    yield "Project", f"{job.get('project', '')}, user {job.get('user', '')}, pool {job.get('pool', '')}"
    yield "Priority", f"{priority.get('class', '')} {priority.get('value', '')}".strip()
    yield "Submitted", units.clock(job.get("submitted_at"))
    yield "Started", units.clock(job.get("started_at"))
    yield "Ended", units.clock(job.get("ended_at"))
    yield "Progress", units.percent(job.get("progress"))
    yield "Labels", ", ".join(f"{key}={value}" for key, value in labels.items())
    yield "Devices", "simulated: what it shows is not the speed of real ones" if job.get("simulated") else ""


def _work(stage: dict[str, Any]) -> Iterator[str]:
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


def _gets(attempts: list[dict[str, Any]]) -> Iterator[str]:
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


def _attempt(attempt: dict[str, Any], stage: dict[str, Any]) -> str:
    ran = units.span(units.since(attempt.get("started_at"), attempt.get("ended_at")))
    words = [
        attempt.get("cause") or ("" if attempt.get("ended_at") else stage.get("state")),
        f"ran {ran}" if ran else "",
        attempt.get("detail"),
    ]
    return ", ".join(str(word) for word in words if word) or "ended"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
