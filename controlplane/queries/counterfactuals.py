"""Counterfactuals: which changes would let a waiting job start; the engine has tried every answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.jobs import models as rows
from controlplane.pools import access
from controlplane.pools.models import Pool
from controlplane.whatif import counterfactuals
from scheduler.core.explain.counterfactual import Counterfactual, CounterfactualChange, Findings


class OneChange(msgspec.Struct, frozen=True):
    """One thing made otherwise. ``who`` can make it: user, lead or admin."""

    kind: str
    text: str
    who: str
    params: dict[str, Any]


class CounterfactualAnswer(msgspec.Struct, frozen=True):
    """With all of ``changes`` the stage starts *now*, or *after* those in ``preempts`` have made room.

    ``instead_of`` would not start now then, though they do otherwise. ``allowed`` tells whether you may make them.
    """

    starts: str
    changes: list[OneChange]
    preempts: list[str]
    instead_of: list[str]
    allowed: bool


class StageCounterfactuals(msgspec.Struct, frozen=True):
    """The answers for one stage. ``cut`` tells that there was more to try."""

    stage: str
    id: str
    tries: int
    cut: bool
    answers: list[CounterfactualAnswer]


class JobCounterfactuals(msgspec.Struct, frozen=True):
    """The answers for the job's first waiting stages. ``too_large``: too many stages wait to try anything now."""

    number: int
    evaluated_at: datetime
    too_large: bool
    stages: list[StageCounterfactuals]


def of_job(job: rows.Job, user: User) -> JobCounterfactuals:
    """Changes with which the waiting stages of this job would start, as this user may be told of them."""
    tried = counterfactuals.tried(job, user)
    refused, may = _refused_pools(job), _powers(user, job)
    names = {str(each): name for each, name in job.stages.values_list("id", "name")}
    stages = [
        _stage(stage_id, names, findings, tried.names, may, refused) for stage_id, findings in tried.found.items()
    ]
    return JobCounterfactuals(job.number, datetime.fromtimestamp(tried.at, UTC), tried.too_large, stages)


def _stage(
    stage_id: str,
    own: dict[str, str],
    findings: Findings,
    names: dict[str, str],
    may: set[str],
    refused: set[str],
) -> StageCounterfactuals:
    # The engine knows nothing of who may use which pool: what it found in others is left out.
    allowed = [one for one in findings.answers if not any(_is_in(change, refused) for change in one.changes)]
    answers = [_answer(one, names, may) for one in allowed]
    return StageCounterfactuals(own.get(stage_id, "?"), stage_id, findings.tries, findings.cut, answers)


def _answer(one: Counterfactual, names: dict[str, str], may: set[str]) -> CounterfactualAnswer:
    return CounterfactualAnswer(
        starts="after" if one.preempts else "now",
        changes=[_change(change) for change in one.changes],
        preempts=[names.get(name, "?") for name in one.preempts],
        instead_of=[names.get(name, "?") for name in one.instead_of],
        allowed=all(change.who in may for change in one.changes),
    )


def _is_in(change: CounterfactualChange, pools: set[str]) -> bool:
    return change.kind == "pool" and change.params.get("pool") in pools


def _refused_pools(job: rows.Job) -> set[str]:
    """The pools that a job may not use."""
    may_use = access.usable_by(job.user)
    return {pool.name for pool in Pool.objects.all() if not may_use(pool, job.project)}


def _change(change: CounterfactualChange) -> OneChange:
    return OneChange(change.kind, change.text, change.who, dict(change.params))


def _powers(user: User, job: rows.Job) -> set[str]:
    """Whose changes this user may make for the job."""
    if permissions.may(user, Permit.OPERATE_NODES):
        return {"user", "lead", "admin"}
    may = {"user"} if permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id) else set()
    return may | ({"lead"} if permissions.led(user).filter(pk=job.project_id).exists() else set())
