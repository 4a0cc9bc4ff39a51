"""One job: its state and what it does, and a tab for each of its log, measurements, attempts, checkpoints and the rest.

Every tab is a page with an address of its own, and computes only what it shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from controlplane.accounts.permissions import may_end
from controlplane.documents import to_yaml
from controlplane.jobs import logs, masked, profiling
from controlplane.jobs.log_blocks import StorageSilent
from controlplane.jobs.models import Attempt, Checkpoint, Job, Part
from controlplane.jobs.reasons import reason_text
from controlplane.jobs.traces import LONGEST_S
from controlplane.pages import gantt, time_range
from controlplane.pages.counted import counted
from controlplane.pages.device_strip import MEASURES, measure_of
from controlplane.pages.progress import ACTIVE, FINAL, WAITING, doing, explained, partitions, places, step_text
from controlplane.pages.running import released, running
from controlplane.pages.services import PROMOTION_MARKS
from controlplane.pages.shell import LIVE_HEADER, page, reader, title_of
from controlplane.queries import arrays, failures, jobs, pace, receipts, services, traces, waits, web_ports
from controlplane.queries import attempts as tries
from controlplane.queries import events as history
from controlplane.queries import logs as log_queries
from controlplane.queries.cursor import Page, page_of
from controlplane.queries.priority_classes import priority_classes
from controlplane.queries.reading import API, Representation, cursor_of, redacted
from controlplane.queries.words import told_text
from controlplane.storage import Pieces
from scheduler.core.model.lifecycle import State

EVENTS = 100
# A page with more attempts or checkpoints would be too long; the API lists all of them.
MOST_ATTEMPTS = 500
MOST_POINTS = 500
# The first tab is the job's own address; the others are a word behind it.
TABS = ("summary", "logs", "metrics", "timeline", "waits", "checkpoints", "profile", "usage", "spec")
TITLES = {
    "summary": gettext_lazy("Summary"),
    "logs": gettext_lazy("Log"),
    "metrics": gettext_lazy("Metrics"),
    "timeline": gettext_lazy("Attempts and events"),
    "waits": gettext_lazy("Waits"),
    "checkpoints": gettext_lazy("Checkpoints"),
    "profile": gettext_lazy("Profiling"),
    "usage": gettext_lazy("Usage"),
    "spec": gettext_lazy("Job file"),
}
# Kinds of reasons for waiting; see ``controlplane.queries.waits``.
KINDS_OF_WAIT = {
    "hold": gettext_lazy("on hold"),
    "dependency": gettext_lazy("dependency"),
    "time": gettext_lazy("chosen time or retry"),
    "request": gettext_lazy("what it asks for"),
    "quota": gettext_lazy("quota"),
    "limit": gettext_lazy("limit"),
    "service": gettext_lazy("nodes out of service"),
    "capacity": gettext_lazy("capacity"),
    "order": gettext_lazy("order of the queue"),
}
# Without scripts.
LOG_LINES = 200
# How many are shown by default.
FEW_ATTEMPTS, FEW_POINTS, FEW_WAITING, FEW_FAILED, FEW_VALUES = 8, 12, 3, 3, 8


def _row(request: HttpRequest, number: int) -> Job:
    """The job's row, for its file and the right to end it; everything else is shown through queries."""
    row = jobs.visible(reader(request)).select_related("project", "user", "pool").filter(number=number).first()
    if row is None:
        raise Http404(_("There is no job #{number}, or you may not see it.").format(number=number))
    return row


def _steps(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages as steps of the rail, each with a line of facts."""
    steps = []
    for stage in job["stages"]:
        facts = []
        if stage["state"] in ACTIVE and stage.get("progress"):
            facts.append(step_text(stage["progress"]))
        elif stage["state"] in WAITING:
            facts.append(reason_text(stage.get("reason")))
        elif stage["state"] == "FAILED":
            facts.append(" · ".join(word for word in (stage["cause"], told_text(stage, "detail")) if word))
        where = " · ".join(word for word in (places(stage), ", ".join(partitions(stage))) if word)
        steps.append({**stage, "where": where, "fact": next((fact for fact in facts if fact), "")})
    return steps


def _bars(job: Mapping[str, Any], attempts: list[dict[str, Any]], checkpoints: list[dict[str, Any]]) -> dict[str, Any]:
    """The attempts as a Gantt chart: one lane per attempt, and one per stage that has a plan and no attempt yet."""
    lanes: list[str] = []
    items: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    now = timezone.now()
    for stage in job["stages"]:
        own = [attempt for attempt in attempts if attempt["stage"] == stage["name"]]
        for attempt in own:
            lane = len(lanes)
            lanes.append(f"{stage['name']} {attempt['number']}" if len(own) > 1 else stage["name"])
            items += _attempt_bars(attempt, stage["state"], lane, now)
            marks += [
                {
                    "lane": lane,
                    "at": point["at"],
                    "k": "checkpoint",
                    "t": _("checkpoint, step {step}").format(step=f"{point['step']:,}"),
                }
                for point in checkpoints
                if point["stage"] == stage["name"] and point["attempt"] == attempt["number"]
            ]
            if gantt.look(attempt, stage["state"]) == "PREEMPTED":
                marks.append({"lane": lane, "at": attempt["ended_at"], "k": "preempted", "t": attempt["cause"]})
        if stage["state"] in WAITING and stage.get("planned"):
            lane = len(lanes)
            lanes.append(stage["name"])
            plan = stage["planned"]
            where = ", ".join(dict.fromkeys(device["node"] for device in plan["devices"]))
            text = _("planned on {nodes}").format(nodes=where) if where else _("planned")
            items.append({"lane": lane, "s": "PLANNED", "from": plan["start_at"], "to": plan["end_at"], "t": text})
    return {
        "lanes": lanes,
        "items": items,
        "marks": marks,
        "height": 48 + 34 * max(2, len(lanes)),
        **gantt.window(items, now),
    }


def _attempt_bars(attempt: Mapping[str, Any], state: str, lane: int, now: datetime) -> list[dict[str, Any]]:
    """A short bar for the start, a long one for the run, and a hatched one up to its expected end."""
    where = ", ".join(dict.fromkeys(part["node"] for part in attempt["placed"]))
    held = counted(
        device["kind"] for part in attempt["placed"] for device in part["devices"] if device["kind"] != "cpu"
    )
    text = f"{where} · {held}" if held else where
    tip = " · ".join(word for word in (where, attempt["cause"], attempt["detail"]) if word) or gantt.look(
        attempt, state
    )
    bars = []
    began = attempt["started_at"] or attempt["ended_at"]
    if began and attempt["started_at"]:
        bars.append(
            {"lane": lane, "s": "STARTING", "from": attempt["created_at"], "to": began, "t": "", "tip": _("starting")}
        )
    start = attempt["started_at"] or attempt["created_at"]
    bar = {
        "lane": lane,
        "s": gantt.look(attempt, state),
        "from": start,
        "to": attempt["ended_at"],
        "t": text,
        "tip": tip,
    }
    # An overdue attempt has no expected end: its hatched bar gets a seventh of its time so far.
    edge = now + (now - gantt.moment(start)) / 7
    return [*bars, *gantt.bars_of(bar, attempt, now, edge)]


@login_required
def show(request: HttpRequest, number: int, tab: str = TABS[0]) -> HttpResponse:
    return tab_page(request, number, tab)


def tab_page(request: HttpRequest, number: int, tab: str, status: int = 200, **values: Any) -> HttpResponse:
    """A tab of the page; ``values`` is what its template gets besides."""
    user = reader(request)
    if arrays.visible(user).filter(number=number).exists():
        return redirect("array", number=number)
    row = _row(request, number)
    answer = jobs.one(user, row)
    job: dict[str, Any] = answer.body
    api = f"{API}/jobs/{number}"
    return page(
        request,
        "job.html",
        {
            "job": job,
            "tab": tab,
            "tab_template": f"job/{tab}.html",
            "tabs": [
                {
                    "name": name,
                    "title": TITLES[name],
                    "href": f"/jobs/{number}" + (f"/{name}" if name != TABS[0] else ""),
                }
                for name in TABS
            ],
            "doing": doing(job),
            "steps": _steps(job),
            "reported": _reported(job),
            "notify": row.spec.get("notify") or [],
            "promotions": [(one, PROMOTION_MARKS[one.state]) for one in services.promotions_of(row.number)],
            "ports": [] if job["state"] in FINAL else web_ports.of_job(row, reader(request)).results,
            "may_end": may_end(request.user, owner_id=row.user_id, project_id=row.project_id),  # type: ignore[arg-type]
            "is_final": job["state"] in FINAL,
            "is_active": any(stage["state"] in ACTIVE for stage in job["stages"]),
            "classes": [each.name for each in priority_classes()],
            "is_held": any(stage["state"] == "HELD" for stage in job["stages"]),
            "can_hold": any(stage["state"] == "PENDING" for stage in job["stages"]),
            "effect": _effect(job),
            "cancel_stops": json.dumps({"action": "cancel", "jobs": [job["number"]]}),
            "requeue_stops": json.dumps({"action": "requeue", "jobs": [job["number"]]}),
            "api": api,
            **_SHOWN[tab](request, row, job),
            **values,
        },
        place="jobs",
        topics=[answer, Representation(f"{api}/{'traces' if tab == 'profile' else 'checkpoints'}", "", None)],
        status=status,
        every_s=2,
        crumbs=[(title_of("jobs"), "/jobs"), (f"#{number}", "")],
    )


def _telling(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stage whose progress and reported values stand for the job: what runs, else the last that reported any."""
    running = next((stage for stage in job["stages"] if stage["state"] in ACTIVE), None)
    return running or next((stage for stage in reversed(job["stages"]) if stage["values"]), None)


def _reported(job: Mapping[str, Any]) -> dict[str, Any]:
    """The newest reported values, with which a script continues the curves that it has drawn."""
    telling = _telling(job)
    if telling is None:
        return {}
    return {
        "stage": telling["name"],
        "step": (telling["progress"] or {}).get("step"),
        "values": telling["values"],
    }


def _attempts(request: HttpRequest, row: Job) -> list[dict[str, Any]]:
    return redacted(reader(request), tries.shown(tries.of_job(row).order_by("place")[:MOST_ATTEMPTS]))


def _checkpoints(request: HttpRequest, row: Job) -> list[dict[str, Any]]:
    return redacted(reader(request), tries.checkpoints(tries.checkpoints_of(row).order_by("-id")[:MOST_POINTS]))


def _summary(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    waiting = explained(job)
    by_name = {stage["name"]: stage for stage in job["stages"]}
    telling = _telling(job)
    values = [
        (name, value) for name, value in (telling or {}).get("values", {}).items() if isinstance(value, int | float)
    ]
    return {
        "waiting": waiting[:FEW_WAITING],
        "waiting_more": waiting[FEW_WAITING:],
        "failed": [(by_name[one.stage], one) for one in failures.of_job(row, FEW_FAILED).results],
        "failed_more": sum(stage["state"] == "FAILED" for stage in job["stages"]) - FEW_FAILED,
        "told": telling,
        "paces": pace.of_job(row).results,
        "values": values[:FEW_VALUES],
        "values_more": len(values) - FEW_VALUES,
        "running": running(_attempts(request, row), {name: stage["state"] for name, stage in by_name.items()}, API),
    }


def _logs(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    """The last lines of one log, for a browser without scripts; with them the page reads logs by itself."""
    if LIVE_HEADER in request.headers:
        return {}
    known = dict.fromkeys((each.stage, each.attempt, each.rank) for each in log_queries.streams(row).results)
    choices = [("|".join(map(str, (*each, "both"))), each) for each in known]
    if not known:
        return {"log_choices": [], "log_lines": ""}
    asked = dict(choices).get(request.GET.get("log", ""))
    stage, attempt, rank = asked or next(reversed(known))
    query = log_queries.LogQuery(stage, attempt, rank, tail=LOG_LINES)
    try:
        said = log_queries.plain(log_queries.of_job(row, query)[0])
    except log_queries.LogGone as gone:
        said = str(gone)
    except StorageSilent:
        said = _("the storage of logs does not answer; try again")
    return {"log_choices": choices, "log_shown": (stage, attempt, rank), "log_lines": said}


def _metrics(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    return {
        "attempts": Attempt.objects.filter(stage__job=row).exists(),
        **time_range.asked(request, "15m"),
        "measures": list(MEASURES.items()),
        "measure": measure_of(request),
    }


def _timeline(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    attempts = _attempts(request, row)
    newest = sorted(attempts, key=lambda a: a["created_at"], reverse=True)
    asked = {"cursor": request.GET["events"]} if request.GET.get("events") else {}
    path = f"{API}/jobs/{row.number}/events"
    found, links = page_of(history.of_job(row), "-seq", path, {"limit": str(EVENTS), **asked})
    events = redacted(reader(request), Page(history.shown(found, reader(request)), **links))
    states = {stage["name"]: stage["state"] for stage in job["stages"]}
    return {
        "attempts": attempts,
        "attempts_newest": [
            {
                **attempt,
                "where": places(attempt),
                "released": released(attempt),
                "state": states[attempt["stage"]],
            }
            for attempt in (newest if request.GET.get("all") == "attempts" else newest[:FEW_ATTEMPTS])
        ],
        "bars": _bars(job, attempts, _checkpoints(request, row)),
        "attempt_count": Attempt.objects.filter(stage__job=row).count(),
        "events": events["results"],
        "event_count": row.event_seq,
        "events_next": cursor_of(events["next"]),
        "events_previous": cursor_of(events["previous"]),
    }


def _waits(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    found = waits.of_job(row).results
    return {
        "waits": [
            {"stage": each, "causes": [(cause, KINDS_OF_WAIT[cause.of]) for cause in each.causes]} for each in found
        ],
        "waiting": explained(job)[:FEW_WAITING],
    }


def _saved(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    checkpoints = _checkpoints(request, row)
    all_of = request.GET.get("all", "")
    return {
        "checkpoints": checkpoints if all_of == "checkpoints" else checkpoints[:FEW_POINTS],
        "checkpoint_count": Checkpoint.objects.filter(stage__job=row).count(),
        "all_of": all_of,
    }


def _profile(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    running = row.stages.filter(state=State.RUNNING).order_by("index")
    return {
        "traces": redacted(reader(request), traces.of_job(row))["results"],
        "traceable": [(stage.name, stage.request["profiling"]) for stage in running if stage.request.get("profiling")],
        "tools": profiling.TOOLS,
        "longest_s": LONGEST_S,
    }


def _usage(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": redacted(reader(request), receipts.receipt(row))}


def _spec(request: HttpRequest, row: Job, job: dict[str, Any]) -> dict[str, Any]:
    return {"spec": to_yaml(masked.shown(row.spec))}


_SHOWN = {
    "summary": _summary,
    "logs": _logs,
    "metrics": _metrics,
    "timeline": _timeline,
    "waits": _waits,
    "checkpoints": _saved,
    "profile": _profile,
    "usage": _usage,
    "spec": _spec,
}


def _effect(job: Mapping[str, Any]) -> str:
    """The stages that a cancellation would stop, for the dialog."""
    active = [stage for stage in job["stages"] if stage["state"] in ACTIVE]
    if not active:
        return _("Nothing of it runs. Its waiting stages will not start.")
    held = [device["kind"] for stage in active for part in stage["placed"] for device in part["devices"]]
    devices = counted(kind for kind in held if kind != "cpu") or counted(held)
    names = ", ".join(stage["name"] for stage in active)
    kept = next((stage["checkpoint"] for stage in active if stage.get("checkpoint")), None)
    saved = (
        _("its newest checkpoint is of step {step}").format(step=f"{kept['step']:,}")
        if kept
        else _("it has no checkpoint")
    )
    return _("Stops {stages} on {devices}; {saved}.").format(stages=names, devices=devices, saved=saved)


@login_required
def log(request: HttpRequest, number: int) -> Pieces:
    """One whole log as a file of any size. It is sent as a download, so that a browser never shows it as a page."""
    row = _row(request, number)
    asked = {key: request.GET.get(key, "") for key in ("stage", "attempt", "rank", "stream")}
    if not (re.fullmatch(r"[0-9]{1,9} [0-9]{1,9}", f"{asked['attempt']} {asked['rank']}")):
        raise Http404(_("A log is named by stage, attempt, rank and stream."))
    part = Part.objects.filter(
        attempt__stage__job=row,
        attempt__stage__name=asked["stage"],
        attempt__number=int(asked["attempt"]),
        rank=int(asked["rank"]),
    ).first()
    if part is None:
        raise Http404(_("There is no such attempt."))
    stream = asked["stream"] if asked["stream"] in logs.STREAMS else "both"
    response = Pieces(logs.pieces(part, stream), content_type="text/plain; charset=utf-8")
    name = "-".join(["job", str(number), *(value for value in asked.values() if value)])
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in name)
    response["Content-Disposition"] = f'attachment; filename="{safe}.log"'
    return response
