"""Another profile thinks beside the active one: on the same recorded world, later, and without deciding anything."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings

from controlplane.jobs.models import Decision, Shadow
from controlplane.pools.models import Pool
from scheduler import profiles
from scheduler.core.clauses import plain
from scheduler.core.types import Plan
from scheduler.decisions import difference, log, replay
from scheduler.decisions.log import Record


def think_beside(decision_id: int) -> Shadow | None:
    """Writes down what the pools' shadow profiles would have decided; ``None`` where there is nothing to do: no pool
    has one, the record is gone, or it was done before."""
    beside = dict(Pool.objects.exclude(shadow_profile="").values_list("name", "shadow_profile"))
    if not beside or not Decision.objects.filter(pk=decision_id, shadow=None).exists():
        return None
    record = log.find(settings.DECISIONS, decision_id)
    if record is None:
        return None
    chosen = replay.profiles_of(record) | {name: profiles.named(beside[name]) for name in beside}
    began = time.perf_counter()
    plan = replay.under(record, chosen)
    took_s = time.perf_counter() - began
    seen = difference.compare(record.plan, plan)
    return Shadow.objects.create(
        decision_id=decision_id,
        profile="+".join(sorted(set(beside.values())))[:100],
        duration_ms=round(took_s * 1000, 3),
        differs=seen.any,
        difference=in_words(record, seen, plan),
    )


def in_words(record: Record, seen: difference.Difference, plan: Plan) -> dict[str, Any]:
    """The difference with the stages by the names that people know, and why each would start where it would."""
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
