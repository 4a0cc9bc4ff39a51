"""Shadow profiles: replays recorded decisions under another profile, without any effect on the cluster."""

from __future__ import annotations

import time
from typing import Any, Final

from django.conf import settings
from django.db import connection

from controlplane.clauses import Told, clause, told, verbatim
from controlplane.fleet import alarms
from controlplane.jobs.models import Decision, Shadow
from controlplane.pools import profiles
from controlplane.pools.models import Pool
from scheduler.core.model.clauses import plain
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan
from scheduler.decisions import difference, log, replay
from scheduler.decisions.log import Record

MOST_CYCLES: Final = 1_000


def evaluate_shadows(decision_id: int) -> Shadow | None:
    """Record what the pools' shadow profiles would have decided.

    Returns ``None`` if no pool has one, the decision's inputs are gone, or it was done before.
    """
    beside = dict(Pool.objects.exclude(shadow_profile="").values_list("name", "shadow_profile"))
    if not beside or not Decision.objects.filter(pk=decision_id, shadow=None).exists():
        return None
    record = log.find(settings.DECISIONS, decision_id)
    if record is None:
        return None
    others: dict[str, Profile] = {}
    unknown: dict[str, Told] = {}
    for pool, name in beside.items():
        try:
            others[pool] = profiles.named(name)
        except ValueError as error:
            unknown[pool] = told(clause("ShadowUnusable", profile=name, fault=verbatim(str(error))))
    alarms.raised(alarms.SHADOW, unknown)
    began = time.perf_counter()
    plan = replay.under(record, replay.profiles_of(record) | others)
    took_s = time.perf_counter() - began
    seen = difference.compare(record.plan, plan)
    return Shadow.objects.create(
        decision_id=decision_id,
        profile="+".join(sorted({beside[pool] for pool in others}))[:100],
        duration_ms=round(took_s * 1000, 3),
        differs=seen.any,
        difference=in_words(record, seen, plan),
        by_pool={pool: _counted(record, plan, pool, beside[pool]) for pool in sorted(others)},
    )


def _counted(record: Record, plan: Plan, pool: str, profile: str) -> dict[str, Any]:
    """Count the stages of one pool that the two plans treat differently; ``earlier_s`` is a mean over pending ones."""
    among = {one.id for one in record.snapshot.waiting if one.pool == pool}
    among |= {one.id for one in record.snapshot.running if one.pool == pool}
    seen = difference.compare(record.plan, plan, among)
    return {
        "profile": profile,
        "differs": seen.any,
        "only_active": len(seen.only_first),
        "only_other": len(seen.only_second),
        "elsewhere": len(seen.elsewhere),
        "spared": len(seen.spared),
        "evicted": len(seen.evicted),
        "earlier_s": seen.earlier_s,
    }


_OUTCOMES = """
SELECT p.key, p.value->>'profile', count(*) AS cycles, count(*) FILTER (WHERE (p.value->>'differs')::bool) AS differing,
       sum((p.value->>'only_active')::int) AS only_active, sum((p.value->>'only_other')::int) AS only_other,
       sum((p.value->>'elsewhere')::int) AS elsewhere, sum((p.value->>'spared')::int) AS spared,
       sum((p.value->>'evicted')::int) AS evicted,
       round(avg((p.value->>'earlier_s')::numeric), 3)::float8 AS earlier_s
FROM (SELECT by_pool FROM jobs_shadow ORDER BY decision_id DESC LIMIT %s) s, jsonb_each(s.by_pool) p
GROUP BY 1, 2
"""


def outcomes() -> dict[tuple[str, str], dict[str, Any]]:
    """Return, by pool and profile, what a shadow profile would have done in the last :data:`MOST_CYCLES` recorded
    cycles.

    These are the numbers of cycles it was tried in and in which it decided differently, the stages by sort of
    difference, and by how much earlier it expected the starts of waiting stages on average.
    """
    with connection.cursor() as cursor:
        cursor.execute(_OUTCOMES, [MOST_CYCLES])
        _pool, _profile, *named = (column.name for column in cursor.description)
        return {(pool, profile): dict(zip(named, row, strict=True)) for pool, profile, *row in cursor.fetchall()}


def in_words(record: Record, seen: difference.Difference, plan: Plan) -> dict[str, Any]:
    """Return the difference with display names of the stages, and why each would start where it would."""
    numbers = difference.named(record.snapshot)
    whys = {start.stage: {"why": start.why, "why_said": plain(start.said)} for start in plan.starts}
    prices = {one.victim: one for one in plan.stops}
    return {
        "only_active": [{"stage": numbers[name]} for name in seen.only_first],
        "only_other": [{"stage": numbers[name], **whys[name]} for name in seen.only_second],
        "elsewhere": [{"stage": numbers[name], **whys[name]} for name in seen.elsewhere],
        "spared": [{"stage": numbers[name]} for name in seen.spared],
        "evicted": [
            {
                "stage": numbers[name],
                "for": numbers.get(prices[name].stage or name),
                "price": prices[name].price,
                "gain": prices[name].gain,
            }
            for name in seen.evicted
        ],
        "earlier_s": seen.earlier_s,
    }
