"""What a job is doing now, in one line: its stage, its step, or why it waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from controlplane.jobs.reasons import reason_text
from controlplane.queries.words import partition_text, told_text

ACTIVE = ("STARTING", "RUNNING", "STOPPING", "SUSPENDED")
WAITING = ("PENDING", "HELD")
FINAL = ("COMPLETED", "FAILED", "CANCELLED")


def places(stage: Mapping[str, Any]) -> str:
    """The nodes on which the newest attempt of a stage runs or ran, each once."""
    return ", ".join(dict.fromkeys(part["node"] for part in stage.get("placed") or []))


def partitions(stage: Mapping[str, Any]) -> list[str]:
    """The partitions that the newest attempt of a stage holds or held, as displayed."""
    return [
        partition_text(device["partition"], device["slot"], f"{device['kind'].upper()} {device['index']}")
        for part in stage.get("placed") or []
        for device in part["devices"]
        if device["partition"]
    ]


def explained(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The waiting stages with a reason of their own, and not only that an earlier stage has not ended."""
    return [
        stage
        for stage in job["stages"]
        if stage["state"] in WAITING and stage["reasons"] and stage["reasons"][0]["code"] != "DependencyPending"
    ]


def doing(job: Mapping[str, Any]) -> dict[str, Any]:
    """``text`` for display, ``share`` of the work done or None, ``stage`` the stage concerned, or None."""
    stages = job.get("stages") or []
    stage = next((s for s in stages if s["state"] in ACTIVE), None)
    if stage:
        progress = stage.get("progress") or {}
        steps = step_text(progress)
        substate = told_text(stage, "substate")
        where = places(stage)
        words = [stage["name"], steps or substate, _("on {nodes}").format(nodes=where) if where else ""]
        return {"text": " · ".join(word for word in words if word), "share": share(job, progress), "stage": stage}
    if job["state"] in FINAL:
        ended = next((s for s in stages if s["state"] == job["state"] and s.get("detail")), None)
        text = told_text(ended, "detail") if ended and job["state"] != "COMPLETED" else job.get("cause") or ""
        return {"text": text, "share": 1.0 if job["state"] == "COMPLETED" else job.get("progress"), "stage": ended}
    stage = next((s for s in stages if s["state"] in WAITING), None)
    return {
        "text": reason_text(job.get("reason") or (stage or {}).get("reason")),
        "share": job.get("progress"),
        "stage": stage,
    }


def main_stage(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stage that stands for a job in a list: the running one, else the first that asks for more than cores."""
    stages = job["stages"]
    running = next((stage for stage in stages if stage["state"] in ACTIVE), None)
    return running or next((stage for stage in stages if stage["device_kind"] != "cpu"), stages[0])


def step_text(progress: Mapping[str, Any]) -> str:
    step, total, phase = progress.get("step"), progress.get("total"), progress.get("phase")
    if step is None:
        return str(phase or "")
    text = (
        _("step {step} of {total}").format(step=f"{step:,}", total=f"{total:,}")
        if total
        else _("step {step}").format(step=f"{step:,}")
    )
    return f"{phase} · {text}" if phase else text


def share(job: Mapping[str, Any], progress: Mapping[str, Any]) -> float | None:
    if job.get("progress") is not None:
        return float(job["progress"])
    step, total = progress.get("step"), progress.get("total")
    return min(1.0, step / total) if step is not None and total else None
