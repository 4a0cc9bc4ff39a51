"""Who may see and do what. Every queryset for users is restricted here; what is not allowed is refused.

Cluster-wide actions need a permission of Django's, which the groups in :mod:`controlplane.accounts.roles` have;
superusers have all. In a project, viewers read, members also submit and end their own jobs, leads act on all of it.
``is_staff`` only opens the administration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from uuid import UUID

from django.contrib.auth.models import Group
from django.contrib.auth.models import Permission as Granted
from django.core.cache import cache
from django.db.models import Q, QuerySet

from controlplane.accounts.models import Member, Project, User

SUBMITTERS = (Member.Role.MEMBER, Member.Role.LEAD)
_RANK = {str(role): rank for rank, role in enumerate(Member.Role)}


class Permit(StrEnum):
    """The permissions, by their names in Django."""

    SEE_JOBS = "jobs.view_job"
    SEE_DECISIONS = "jobs.view_decision"
    SUBMIT_ANYWHERE = "jobs.add_job"
    END_JOBS = "jobs.change_job"
    MOVE_ATTEMPTS = "jobs.change_attempt"
    USE_ANY_PRIORITY = "pools.use_any_priority"
    SEE_NODES = "fleet.view_node"
    SEE_ALARMS = "fleet.view_alarm"
    SEE_METRICS = "observability.view_tally"
    CHANGE_NODES = "fleet.change_node"
    OPERATE_NODES = "fleet.operate_node"
    OPERATE_DEVICES = "fleet.operate_device"
    END_SURVIVORS = "fleet.end_survivor"
    RELEASE_FUSE = "fleet.release_fuse"
    PLAN_MAINTENANCE = "fleet.add_maintenancewindow"
    CANCEL_MAINTENANCE = "fleet.change_maintenancewindow"
    PLAN_RESERVATIONS = "fleet.add_reservation"
    CANCEL_RESERVATIONS = "fleet.change_reservation"
    SEE_PROVIDERS = "providers.view_nodeprovider"
    ADD_PROVIDERS = "providers.add_nodeprovider"
    CHANGE_PROVIDERS = "providers.change_nodeprovider"
    DELETE_PROVIDERS = "providers.delete_nodeprovider"
    SEE_SITES = "sites.view_site"
    ADD_SITES = "sites.add_site"
    CHANGE_SITES = "sites.change_site"
    DELETE_SITES = "sites.delete_site"
    SEE_POOLS = "pools.view_pool"
    ADD_POOLS = "pools.add_pool"
    CHANGE_POOLS = "pools.change_pool"
    DELETE_POOLS = "pools.delete_pool"
    ADD_PROFILES = "pools.add_profile"
    CHANGE_PROFILES = "pools.change_profile"
    DELETE_PROFILES = "pools.delete_profile"
    SEE_PROJECTS = "access.view_project"
    ADD_PROJECTS = "access.add_project"
    CHANGE_PROJECTS = "access.change_project"
    DELETE_PROJECTS = "access.delete_project"
    CHANGE_MEMBERS = "access.change_member"
    ADD_QUOTAS = "pools.add_quota"
    CHANGE_QUOTAS = "pools.change_quota"
    DELETE_QUOTAS = "pools.delete_quota"
    ADD_BUDGETS = "pools.add_budget"
    CHANGE_BUDGETS = "pools.change_budget"
    DELETE_BUDGETS = "pools.delete_budget"
    SEE_LIMITS = "pools.view_limit"
    ADD_LIMITS = "pools.add_limit"
    CHANGE_LIMITS = "pools.change_limit"
    DELETE_LIMITS = "pools.delete_limit"
    SEE_CLASSES = "pools.view_priorityclass"
    ADD_CLASSES = "pools.add_priorityclass"
    CHANGE_CLASSES = "pools.change_priorityclass"
    DELETE_CLASSES = "pools.delete_priorityclass"
    SEE_RETENTION = "retention.view_override"
    CHANGE_RETENTION = "retention.change_override"
    DELETE_SECRETS = "access.delete_secret"
    CHANGE_WEBHOOKS = "notifications.change_webhook"
    CHANGE_TEMPLATES = "job_templates.change_jobtemplate"
    SEE_SIMULATIONS = "simulations.view_simulation"
    SEE_AUDIT = "access.view_auditentry"
    SEE_PEOPLE = "access.view_user"
    CANCEL_SIMULATIONS = "simulations.change_simulation"
    SEE_USAGE = "usage.view_ledgerentry"


# The permissions that decide what a user sees: two users with the same of these, and the same projects, see the same.
SEEING = frozenset({Permit.SEE_JOBS, Permit.SEE_DECISIONS, Permit.SEE_NODES, Permit.SEE_ALARMS, Permit.SEE_PROJECTS})


def may(user: User, permit: Permit) -> bool:
    """Whether this user has the permission, by a group, by themselves or as a superuser."""
    return user.has_perm(permit)


def runs_cluster(user: User) -> bool:
    """Whether this user has any permission beyond those of projects."""
    return user.is_active and (user.is_superuser or bool(user.get_all_permissions()))


def roles(user: User) -> list[str]:
    """The names of the groups that this user is in."""
    return sorted(user.groups.values_list("name", flat=True))


def held(users: Collection[int]) -> dict[int, frozenset[str]]:
    """The permissions of many users, by user id, as Django's own backend finds them; superusers' are not listed."""
    found: dict[int, set[str]] = defaultdict(set)
    granted = Granted.objects.order_by()
    for ways in ("user", "group__user"):
        rows = granted.filter(**{f"{ways}__in": users})
        for holder, label, codename in rows.values_list(ways, "content_type__app_label", "codename"):
            found[holder].add(f"{label}.{codename}")
    return {user: frozenset(names) for user, names in found.items()}


def visible_projects(user: User) -> QuerySet[Project]:
    """The projects that this user may see."""
    return Project.objects.all() if may(user, Permit.SEE_PROJECTS) else Project.objects.filter(member__user=user)


def submittable(user: User) -> QuerySet[Project]:
    """The projects to which this user may submit."""
    if may(user, Permit.SUBMIT_ANYWHERE):
        return Project.objects.all()
    return Project.objects.filter(member__user=user, member__role__in=SUBMITTERS)


def led(user: User) -> QuerySet[Project]:
    """The projects of which this user is a lead."""
    return Project.objects.filter(member__user=user, member__role=Member.Role.LEAD)


def joined(user: User) -> list[UUID]:
    """The ids of the projects of which this user is a member, in any role."""
    return list(Member.objects.filter(user=user).values_list("project_id", flat=True))


def visible_jobs(user: User, prefix: str = "") -> Q:
    """The condition under which a job is visible to this user: it is theirs, or of one of their projects.

    ``prefix`` leads from the filtered model to the job, such as ``stage__job__``.
    """
    if may(user, Permit.SEE_JOBS):
        return Q()
    projects = Member.objects.filter(user=user).values("project")
    return Q(**{f"{prefix}user": user}) | Q(**{f"{prefix}project__in": projects})


def sight(user: User) -> Callable[[int, UUID], bool]:
    """Return a function that tells whether this user sees a job of an owner and project, like :func:`visible_jobs`, for
    many jobs that were already read."""
    if may(user, Permit.SEE_JOBS):
        return lambda owner_id, project_id: True
    projects = set(joined(user))
    return lambda owner_id, project_id: owner_id == user.pk or project_id in projects


def audience(user: User) -> list[str]:
    """Return a key of what a user sees: two users with the same audience see the same."""
    sees = sorted(map(str, SEEING if user.is_superuser else SEEING & user.get_all_permissions()))
    if Permit.SEE_JOBS in sees:
        return sees
    projects = sorted(joined(user))

    def has_more() -> bool:
        return user.jobs.exclude(project__in=projects).exists()

    # If this is a minute old a user may see less than they could, but never more.
    alone = cache.get_or_set(f"sees-own:{user.pk}", has_more, 60)
    return [*sees, *map(str, projects), *([str(user.pk)] if alone else [])]


def may_end(user: User, *, owner_id: int, project_id: UUID) -> bool:
    """Whether this user may cancel, hold, release, adjust and enter a job of this owner in this project."""
    if may(user, Permit.END_JOBS) or (user.is_active and user.pk == owner_id):
        return True
    return led(user).filter(pk=project_id).exists()


# -- delegation: nobody gives, to themselves or through others, what they do not have


def grantable(user: User) -> QuerySet[Granted]:
    """The permissions that this user may give to others: their own."""
    if user.is_superuser:
        return Granted.objects.all()
    names = [name.partition(".") for name in user.get_all_permissions()]
    condition = Q(pk__in=())
    for label, _dot, codename in names:
        condition |= Q(content_type__app_label=label, codename=codename)
    return Granted.objects.filter(condition)


def covers_group(user: User, group: Group) -> bool:
    """Whether this user has all that the group gives."""
    return user.is_superuser or not group.permissions.exclude(pk__in=grantable(user).values("pk")).exists()


def grantable_groups(user: User) -> QuerySet[Group]:
    """The groups to which this user may add others: those without permissions beyond their own."""
    if user.is_superuser:
        return Group.objects.all()
    beyond = Granted.objects.exclude(pk__in=grantable(user).values("pk"))
    return Group.objects.exclude(permissions__in=beyond)


def covers(user: User, other: User) -> bool:
    """Whether this user may do all that ``other`` may, so that acting as them gives no further rights.

    Compares permissions, the superuser and administration flags, and the roles in projects.
    """
    if user.is_superuser or user.pk == other.pk:
        return True
    if other.is_superuser or (other.is_staff and not user.is_staff):
        return False
    theirs = held([other.pk]).get(other.pk, frozenset())
    return theirs <= user.get_all_permissions() and _covers_roles(user, other)


def _covers_roles(user: User, other: User) -> bool:
    def ranks(of: User) -> Iterable[tuple[UUID, str]]:
        return Member.objects.filter(user=of).values_list("project_id", "role")

    mine = dict(ranks(user))
    return all(project in mine and _RANK[mine[project]] >= _RANK[role] for project, role in ranks(other))
