"""Asks stages to save ahead of a planned stop: the end of a drain's wait, or a maintenance of one of their nodes.

An allocation of another engine that ends is a maintenance of its node (:mod:`controlplane.providers.service`). How long
ahead follows from what a save of the stage costs (:func:`scheduler.predict.saving.ahead_s`), so that the work lost at
the stop is bounded by that and not by the interval between its saves.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import clause, told
from controlplane.fleet import calendar, maintenance
from controlplane.fleet.models import Node
from controlplane.jobs import saves, service
from controlplane.jobs.models import Attempt, Checkpoint, Part
from scheduler.core.model.lifecycle import NodeState, State
from scheduler.predict import saving

# Planned stops within this time are looked at; a save that takes longer is asked for late.
LOOK_AHEAD: Final = timedelta(hours=1)


def planned_stops(now: datetime) -> dict[uuid.UUID, datetime]:
    """Return when what runs on a node is going to be stopped or in the way, for nodes where that is soon."""
    until = now + LOOK_AHEAD
    draining = Node.objects.filter(state=NodeState.DRAINING, drain_stop_at__gt=now, drain_stop_at__lte=until)
    found = {node: at for node, at in draining.values_list("id", "drain_stop_at") if at is not None}
    for window in maintenance.ahead(now).filter(starts_at__lte=until):
        start = next((start for start, _end in calendar.times(window, now, until) if start > now), None)
        if start is None:
            continue
        where = {"pools": window.pool_id} if window.pool_id is not None else {"id": window.node_id}
        for node in Node.objects.filter(**where).values_list("id", flat=True):
            found[node] = min(found.get(node, start), start)
    return found


def ask_due(now: datetime | None = None) -> int:
    """Ask every stage to save whose planned stop is as near as that takes; return how many were asked."""
    at = now or timezone.now()
    stops = planned_stops(at)
    if not stops:
        return 0
    by_attempt: dict[uuid.UUID, datetime] = {}
    held = Part.objects.filter(node__in=stops, ended_at=None, attempt__ended_at=None)
    for one, node in held.values_list("attempt_id", "node_id"):
        by_attempt[one] = min(by_attempt.get(one, stops[node]), stops[node])
    running = Attempt.objects.filter(id__in=by_attempt, stop_why="", stage__state=State.RUNNING)
    attempts = list(running.select_related("stage__job"))
    own = saves.own_s([attempt.stage_id for attempt in attempts])
    newest = _newest(attempts)
    asked = 0
    for attempt in attempts:
        stop_at = by_attempt[attempt.id]
        ahead = timedelta(seconds=saving.ahead_s(saves.cost_s(attempt.stage.job, attempt.stage, own, at)[0]))
        is_saved = (saved_at := newest.get(attempt.id)) is not None and saved_at >= stop_at - ahead
        if at >= stop_at - ahead and attempt.save_for != stop_at and not is_saved:
            asked += _ask(attempt.id, stop_at, at)
    return asked


def _newest(attempts: list[Attempt]) -> Mapping[uuid.UUID, datetime]:
    rows = Checkpoint.objects.filter(attempt__in=attempts).order_by().values("attempt_id")
    return {row["attempt_id"]: row["newest"] for row in rows.annotate(newest=Max("at"))}


def _ask(attempt_id: uuid.UUID, stop_at: datetime, at: datetime) -> bool:
    """Ask one attempt to save, if it still runs and nobody did."""
    with transaction.atomic():
        job_id = Attempt.objects.values_list("stage__job_id", flat=True).get(id=attempt_id)
        job = service.lock([job_id])[job_id]
        attempt = Attempt.objects.select_related("stage").get(id=attempt_id)
        if attempt.stop_why or attempt.ended_at is not None or attempt.save_for == stop_at:
            return False
        service.touch_nodes(attempt.parts.filter(ended_at=None).values_list("node_id", flat=True))
        attempt.save_rev, attempt.save_for = attempt.save_rev + 1, stop_at
        attempt.save(update_fields=["save_rev", "save_for"])
        in_s = round(max((stop_at - at).total_seconds(), 0.0))
        said = told(clause("AskedToSave", stage=attempt.stage.name, in_s=in_s))
        note = service.Note(job, "save", said, "engine", attempt.stage.name, attempt.number)
        service.settle([job], [note], at)
        transaction.on_commit(lambda: changes.announce(f"job:{job.number}"))
    return True
