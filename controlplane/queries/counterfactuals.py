"""Counterfactuals: changes that would let a waiting job start, each verified by a planning cycle."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.jobs import models as rows
from controlplane.pools import access
from controlplane.pools.models import Pool, PriorityClass
from controlplane.queries.counterfactual_patches import patch_of
from controlplane.whatif import counterfactuals
from scheduler.core.explain.counterfactual import Counterfactual, CounterfactualChange, Findings


class OneChange(msgspec.Struct, frozen=True):
    """One change of the stage or the cluster. ``who`` can make it: user, lead or admin."""

    kind: str
    text: str
    who: str
    params: dict[str, Any]


class CounterfactualAnswer(msgspec.Struct, frozen=True):
    """With all of ``changes`` the stage starts *now*, or *after* the stages in ``preempts`` were stopped.

    The stages in ``instead_of`` start now without the changes but not with them. ``allowed`` tells whether you may make
    them, and ``patch`` is the merge patch of the job that makes them, null if they are not made by changing the job.
    """

    starts: str
    changes: list[OneChange]
    preempts: list[str]
    instead_of: list[str]
    allowed: bool
    patch: dict[str, Any] | None


class StageCounterfactuals(msgspec.Struct, frozen=True):
    """The counterfactuals of one stage. ``cut`` tells that not all candidates were tried."""

    stage: str
    id: str
    tries: int
    cut: bool
    answers: list[CounterfactualAnswer]


class JobCounterfactuals(msgspec.Struct, frozen=True):
    """The counterfactuals of the job's first waiting stages. ``too_large`` tells that too many stages wait to try
    any."""

    number: int
    evaluated_at: datetime
    too_large: bool
    stages: list[StageCounterfactuals]


def of_job(job: rows.Job, user: User) -> JobCounterfactuals:
    """Compute changes with which the waiting stages of this job would start, as far as this user may see them."""
    tried = counterfactuals.tried(job, user)
    refused, may = {"pool": _refused_pools(job), "priority": _refused_classes(job)}, _roles(user, job)
    names = {str(each): name for each, name in job.stages.values_list("id", "name")}
    stages = [
        _stage(job, stage_id, names, findings, tried.names, may, refused) for stage_id, findings in tried.found.items()
    ]
    return JobCounterfactuals(job.number, datetime.fromtimestamp(tried.at, UTC), tried.too_large, stages)


def _stage(
    job: rows.Job,
    stage_id: str,
    own: dict[str, str],
    findings: Findings,
    names: dict[str, str],
    may: set[str],
    refused: Mapping[str, set[str]],
) -> StageCounterfactuals:
    # The engine does not know who may use which pool and class, so answers with others are left out.
    allowed = [one for one in findings.answers if not any(_is_in(change, refused) for change in one.changes)]
    name = own.get(stage_id, "?")
    answers = [_answer(one, names, may, patch_of(one.changes, job.spec, name)) for one in allowed]
    return StageCounterfactuals(name, stage_id, findings.tries, findings.cut, answers)


def _answer(
    one: Counterfactual, names: dict[str, str], may: set[str], patch: dict[str, Any] | None
) -> CounterfactualAnswer:
    return CounterfactualAnswer(
        starts="after" if one.preempts else "now",
        changes=[_change(change) for change in one.changes],
        preempts=[names.get(name, "?") for name in one.preempts],
        instead_of=[names.get(name, "?") for name in one.instead_of],
        allowed=all(change.who in may for change in one.changes),
        patch=patch,
    )


def _is_in(change: CounterfactualChange, refused: Mapping[str, set[str]]) -> bool:
    name = {"pool": "pool", "priority": "name"}.get(change.kind, "")
    return change.params.get(name) in refused.get(change.kind, ())


def _refused_pools(job: rows.Job) -> set[str]:
    """The pools that a job may not use."""
    may_use = access.usable_by(job.user)
    return {pool.name for pool in Pool.objects.all() if not may_use(pool, job.project)}


def _refused_classes(job: rows.Job) -> set[str]:
    """The priority classes that are for other projects than the job's."""
    is_for = access.class_is_for()
    return {found.name for found in PriorityClass.objects.all() if not is_for(found, job.project)}


def _change(change: CounterfactualChange) -> OneChange:
    return OneChange(change.kind, change.text, change.who, dict(change.params))


def _roles(user: User, job: rows.Job) -> set[str]:
    """Return which of user, lead and admin this user is for the job."""
    if permissions.may(user, Permit.OPERATE_NODES):
        return {"user", "lead", "admin"}
    may = {"user"} if permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id) else set()
    return may | ({"lead"} if permissions.led(user).filter(pk=job.project_id).exists() else set())
