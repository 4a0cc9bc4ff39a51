"""Projects that the user may see, with their members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta

import msgspec
from django.db.models import OuterRef, Subquery, Sum
from django.utils import timezone

from controlplane.accounts import models as rows
from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs.models import Attempt, Stage
from controlplane.natural import natural_key

LEDGER = timedelta(days=30)


class ProjectMember(msgspec.Struct, frozen=True):
    """A person's role in a project: viewer, member or lead."""

    user: str
    role: str


class Project(msgspec.Struct, frozen=True):
    """The tenant that owns jobs, quota and fair share. ``role`` is yours in it, if you have one.

    Over the last 30 days, in device-seconds: ``lost_device_s`` is the work that its stages lost by preemption or moves,
    ``cost_device_s`` what others lost because they were stopped for its stages.
    """

    name: str
    weight: float
    description: str
    role: str | None
    members: list[ProjectMember]
    lost_device_s: float
    cost_device_s: float


def shown(projects: Iterable[rows.Project], user: User) -> list[Project]:
    """These projects by name, as this user sees them."""
    projects = sorted(projects, key=lambda project: natural_key(project.name))
    members: dict[object, list[rows.Member]] = defaultdict(list)
    for member in rows.Member.objects.filter(project__in=projects).select_related("user").order_by("user__username"):
        members[member.project_id].append(member)
    lost, cost = _ledger("stage__job__project"), _ledger("stop_for_project")
    return [
        Project(
            name=project.name,
            weight=project.weight,
            description=project.description,
            role=next((member.role for member in members[project.id] if member.user_id == user.pk), None),
            members=[ProjectMember(member.user.get_username(), member.role) for member in members[project.id]],
            lost_device_s=lost.get(project.id, 0.0),
            cost_device_s=cost.get(project.id, 0.0),
        )
        for project in projects
    ]


def _ledger(whose: str) -> dict[object, float]:
    """Device-seconds lost to evictions in that time, by the id of the project that ``whose`` names."""
    of_whom = Stage.objects.filter(id=OuterRef("stop_for")).values("job__project")
    priced = Attempt.objects.filter(price__gt=0, ended_at__gt=timezone.now() - LEDGER)
    sums = priced.annotate(stop_for_project=Subquery(of_whom)).values(whose).annotate(sum=Sum("price"))
    return {row[whose]: round(row["sum"], 3) for row in sums}


def names(user: User) -> list[str]:
    """The names of the projects that this user may see, in natural order."""
    return sorted(permissions.visible_projects(user).values_list("name", flat=True), key=natural_key)
