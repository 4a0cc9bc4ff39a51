"""The queue of calls: left by people, taken and ended by routers, shown, and forgotten after a while.

A router that takes a call has it for the handler's time and a margin. Whoever tells of a call that was taken again
meanwhile is not heard: the newer delivery counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Count, Q, Sum
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.functions import queue
from controlplane.functions.models import CallState, DeployedFunction, FunctionCall
from controlplane.services.service import ServiceRefused
from router.protocol import LARGEST_RESULT, CallEnd, QueuedCall

# Of one project: calls that have not ended, and their bytes.
MOST_OPEN: Final = 10_000
MOST_BYTES: Final = 64 * 2**20
LARGEST_EVENT: Final = 256 * 1024
# Of one function, how many a router runs at once, and how many that ended are kept, for so long.
MOST_RUNNING: Final = 32
MOST_KEPT: Final = 10_000
KEPT: Final = timedelta(days=7)
# Longer than a request waits for a replica, and what routers and clocks are late.
MARGIN_S: Final = 120.0
LONGEST_FAULT: Final = 500

_TAKE: Final = """
WITH due AS (
    SELECT c.id, c.due_at, c.function_id,
           row_number() OVER (PARTITION BY c.function_id ORDER BY c.due_at, c.id) AS place
    FROM functions_functioncall c WHERE c.ended_at IS NULL AND c.state = 'QUEUED' AND c.due_at <= %(now)s
), busy AS (
    SELECT function_id, count(*) AS number FROM functions_functioncall
    WHERE ended_at IS NULL AND state = 'RUNNING' GROUP BY function_id
), chosen AS (
    SELECT d.id, d.place, d.due_at FROM due d LEFT JOIN busy b ON b.function_id = d.function_id
    JOIN services_inferenceservice s ON s.id = d.function_id AND s.deleted_at IS NULL
    WHERE d.place + coalesce(b.number, 0) <= %(each)s ORDER BY d.place, d.due_at LIMIT %(most)s
), locked AS (
    SELECT c.id FROM functions_functioncall c JOIN chosen USING (id) WHERE c.state = 'QUEUED' AND c.ended_at IS NULL
    ORDER BY chosen.place, chosen.due_at FOR UPDATE OF c SKIP LOCKED
)
UPDATE functions_functioncall c SET state = 'RUNNING', takes = c.takes + 1, taken_at = %(now)s,
       due_at = %(now)s + make_interval(secs => %(margin)s + (f.options->>'timeout_s')::float8)
FROM locked, functions_deployedfunction f, services_inferenceservice s, access_project p
WHERE c.id = locked.id AND f.service_id = c.function_id AND s.id = c.function_id AND p.id = s.project_id
RETURNING c.id, c.takes, p.name, s.name, c.event
"""


def leave(user: User, row: DeployedFunction, event: Any, key: str, now: datetime) -> tuple[FunctionCall, bool]:
    """Leave a call; return it, and whether it is new: with the key of one that is there, it is that one.

    Raises ``ServiceRefused``.
    """
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    size = len(text.encode())
    if size > LARGEST_EVENT:
        said = _("the event of a queued call has at most {most} KiB").format(most=LARGEST_EVENT // 1024)
        raise ServiceRefused("too_large", said, "/event", 413)
    with transaction.atomic():
        # One at a time of each function, so that bounds and keys hold.
        DeployedFunction.objects.select_for_update().get(pk=row.pk)
        if key and (known := row.calls.filter(key=key).first()) is not None:
            return known, False
        open_ = FunctionCall.objects.filter(function__service__project=row.service.project_id, ended_at=None)
        count, held = open_.count(), open_.aggregate(sum=Sum("size_bytes"))["sum"] or 0
        if count >= MOST_OPEN or held + size > MOST_BYTES:
            said = _("project {project} has {count} calls in queues, which is as much as one may have")
            raise ServiceRefused("too_many", said.format(project=row.service.project.name, count=count), "", 429)
        call = row.calls.create(user=user, key=key, event=text, size_bytes=size, made_at=now, due_at=now)
    return call, True


def due_count(now: datetime, most: int = 64) -> int:
    """Return how many calls a router may take, up to ``most``."""
    due = FunctionCall.objects.filter(ended_at=None, state=CallState.QUEUED, due_at__lte=now)
    return due[:most].count()


def take(most: int, now: datetime) -> list[QueuedCall]:
    """Give up to so many calls to a router, of each function in turn."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_TAKE, {"now": now, "each": MOST_RUNNING, "most": most, "margin": MARGIN_S})
        return [QueuedCall(*row) for row in cursor.fetchall()]


def end(told: Iterable[CallEnd], now: datetime) -> None:
    """Write down what became of deliveries."""
    for one in told:
        with transaction.atomic():
            call = (
                FunctionCall.objects.select_for_update(of=("self",))
                .select_related("function")
                .filter(pk=one.id, state=CallState.RUNNING, takes=one.number)
                .first()
            )
            if call is not None:
                _settle(call, one.status, one.body.replace("\x00", "�")[:LARGEST_RESULT], now)


def _settle(call: FunctionCall, status: int, body: str, now: datetime) -> None:
    age_s = (now - call.made_at).total_seconds()
    most = call.function.options["tries"]
    _apply(call, queue.after(status, call.tries, call.takes, most, age_s), status, body, now)


def _apply(call: FunctionCall, verdict: queue.CallVerdict, status: int, body: str, now: datetime) -> None:
    call.state, call.tries, call.status = verdict.state, verdict.tries, status or None
    is_good = verdict.state == CallState.DONE
    call.result = body if is_good else ""
    call.fault = "" if is_good else _fault(body)
    call.due_at = now + timedelta(seconds=verdict.pause_s)
    call.ended_at = None if verdict.state == CallState.QUEUED else now
    call.save()


def _fault(body: str) -> str:
    """Return the sentence in the body of an error."""
    try:
        return str(json.loads(body)["error"]["message"])[:LONGEST_FAULT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:LONGEST_FAULT]


def recover(now: datetime) -> None:
    """Let calls be due again whose router told nothing in time."""
    overdue = FunctionCall.objects.filter(state=CallState.RUNNING, ended_at=None, due_at__lt=now)
    with transaction.atomic():
        for call in overdue.select_for_update(skip_locked=True, of=("self",)).select_related("function")[:500]:
            age_s = (now - call.made_at).total_seconds()
            verdict = queue.lost(call.tries, call.takes, call.function.options["tries"], age_s)
            _apply(call, verdict, 0, "its router told nothing in time", now)


def again(call: FunctionCall, now: datetime) -> FunctionCall:
    """Queue a call that was given up once more, with all its tries. Raises ``ServiceRefused``."""
    with transaction.atomic():
        rows = FunctionCall.objects.select_for_update(of=("self",)).select_related("function__service")
        locked = rows.get(pk=call.pk)
        if locked.state != CallState.DEAD:
            raise ServiceRefused("not_dead", _("only a call that was given up can be queued again"), "", 409)
        locked.state, locked.tries, locked.made_at, locked.due_at = CallState.QUEUED, 0, now, now
        locked.ended_at, locked.fault, locked.status = None, "", None
        locked.save()
        audit.record("function.retry", locked.function.service, after={"call": locked.pk})
    return locked


def counts(rows: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return how many calls of these functions there are, by state."""
    found: dict[int, dict[str, int]] = {}
    told = FunctionCall.objects.filter(function__in=list(rows)).order_by().values_list("function_id", "state")
    for function, state, number in told.annotate(number=Count("id")):
        found.setdefault(function, {})[state] = number
    return found


def forget_old(now: datetime) -> None:
    """Delete calls that ended long ago, and of each function those beyond the newest."""
    ended = FunctionCall.objects.filter(ended_at__isnull=False)
    ended.filter(ended_at__lt=now - KEPT).delete()
    for row in DeployedFunction.objects.all():
        newest = ended.filter(function=row).order_by("-ended_at", "-id")[MOST_KEPT : MOST_KEPT + 1]
        if (first := newest.first()) is not None:
            beyond = Q(ended_at__lt=first.ended_at) | Q(pk=first.pk)
            ended.filter(beyond, function=row).delete()
