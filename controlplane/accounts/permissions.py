"""Who may see and do what. Every queryset that leaves the record passes through here; what it does not name is refused.

Staff see and do all. In a project, viewers read, members also submit and end their own jobs, leads act on all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.core.cache import cache
from django.db.models import Q, QuerySet

from controlplane.accounts.models import Member, Project, User

SUBMITTERS = (Member.Role.MEMBER, Member.Role.LEAD)


def is_staff(user: User) -> bool:
    """Whether this user runs the cluster."""
    return user.is_active and (user.is_staff or user.is_superuser)


def visible_projects(user: User) -> QuerySet[Project]:
    """The projects that this user may know of."""
    return Project.objects.all() if is_staff(user) else Project.objects.filter(member__user=user)


def submittable(user: User) -> QuerySet[Project]:
    """The projects to which this user may submit."""
    if is_staff(user):
        return Project.objects.all()
    return Project.objects.filter(member__user=user, member__role__in=SUBMITTERS)


def led(user: User) -> QuerySet[Project]:
    """The projects of which this user is a lead."""
    return Project.objects.filter(member__user=user, member__role=Member.Role.LEAD)


def visible_jobs(user: User, prefix: str = "") -> Q:
    """The condition under which a job is visible to this user: it is theirs, or of one of their projects.

    ``prefix`` leads from the filtered model to the job, such as ``stage__job__``.
    """
    if is_staff(user):
        return Q()
    projects = Member.objects.filter(user=user).values("project")
    return Q(**{f"{prefix}user": user}) | Q(**{f"{prefix}project__in": projects})


def sight(user: User) -> Callable[[int, UUID], bool]:
    """Whether this user sees a job of this owner and project: as :func:`visible_jobs`, for many jobs that were read."""
    if is_staff(user):
        return lambda owner_id, project_id: True
    projects = set(Member.objects.filter(user=user).values_list("project_id", flat=True))
    return lambda owner_id, project_id: owner_id == user.pk or project_id in projects


def audience(user: User) -> list[str]:
    """What tells which jobs a user sees: two users with the same audience see the same ones."""
    if is_staff(user):
        return ["staff"]
    projects = sorted(Member.objects.filter(user=user).values_list("project_id", flat=True))

    def has_more() -> bool:
        return user.jobs.exclude(project__in=projects).exists()

    # Where this is a minute old somebody sees less than they might, and nobody sees more.
    alone = cache.get_or_set(f"sees-own:{user.pk}", has_more, 60)
    return [*map(str, projects), *([str(user.pk)] if alone else [])]


def may_end(user: User, *, owner_id: int, project_id: UUID) -> bool:
    """Whether this user may cancel, hold and release a job of this owner in this project."""
    if is_staff(user) or user.pk == owner_id:
        return True
    return Member.objects.filter(user=user, project=project_id, role=Member.Role.LEAD).exists()
