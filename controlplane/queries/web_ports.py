"""The named ports of stages: where each listens, and who may open it in a browser."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec
from django.db.models import QuerySet

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs import models as rows
from controlplane.jobs import web_sessions
from controlplane.queries import jobs
from scheduler.core.model.lifecycle import FINAL

MOST: Final = 200


class WebPort(msgspec.Struct, frozen=True):
    """A port that a stage names in its job file, on one node, that of ``rank``.

    ``state`` is the stage's; ``node`` is empty before it runs. ``listens`` is whether it was listened on when the agent
    last looked, a few seconds ago. ``may_open`` is whether you may open it in a browser. With ``idle_timeout_s`` the
    stage is stopped once nobody used its ports for so long; ``visited_at`` is when somebody last did.
    """

    job: int
    job_name: str
    project: str
    user: str
    stage: str
    rank: int
    node: str
    name: str
    port: int
    state: str
    listens: bool
    may_open: bool
    idle_timeout_s: float | None
    visited_at: datetime | None


class WebPortList(msgspec.Struct, frozen=True):
    """Named ports; those of the newest jobs first."""

    results: list[WebPort]


class OpenedPort(msgspec.Struct, frozen=True):
    """A port that was opened. ``url`` lets a browser in once, before ``expires_at``."""

    session: uuid.UUID
    url: str
    expires_at: datetime


def of_job(job: rows.Job, user: User) -> WebPortList:
    """The ports that the stages of this job name."""
    return WebPortList(_shown(job.stages.filter(request__has_key="ports").order_by("index"), user))


def of_user(user: User) -> WebPortList:
    """The ports of the stages that have not ended, of all jobs that this user may see, at most ``MOST``."""
    stages = rows.Stage.objects.filter(job__in=jobs.visible(user), request__has_key="ports")
    return WebPortList(
        _shown(stages.exclude(state__in=sorted(FINAL)).order_by("-job__number", "index")[:MOST], user)[:MOST]
    )


def opened(ticket: web_sessions.Ticket) -> OpenedPort:
    """A ticket as it is told."""
    return OpenedPort(ticket.session, ticket.url, ticket.expires_at)


def _shown(found: QuerySet[rows.Stage], user: User) -> list[WebPort]:
    stages = list(found.select_related("job__project", "job__user"))
    placed: dict[uuid.UUID, list[rows.Part | None]] = defaultdict(list)
    running = rows.Part.objects.filter(attempt__stage__in=[stage.pk for stage in stages], ended_at=None)
    for part in running.select_related("node", "attempt").order_by("rank"):
        placed[part.attempt.stage_id].append(part)
    may = _openable(user, {stage.job for stage in stages})
    return [
        WebPort(
            job=stage.job.number,
            job_name=stage.job.name,
            project=stage.job.project.name,
            user=stage.job.user.get_username(),
            stage=stage.name,
            rank=part.rank if part else 0,
            node=part.node.name if part else "",
            name=port["name"],
            port=port["port"],
            state=stage.state,
            listens=part is not None and port["port"] in part.listens,
            may_open=stage.job_id in may,
            idle_timeout_s=stage.request.get("idle_timeout_s"),
            visited_at=part.visited_at if part else None,
        )
        for stage in stages
        for part in placed[stage.pk] or [None]
        for port in stage.request["ports"]
    ]


def _openable(user: User, found: Iterable[rows.Job]) -> set[uuid.UUID]:
    return {job.pk for job in found if permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id)}
