"""Access to pools and priority classes: those that are restricted are for the projects (and, of pools, the members of
the groups) that they name.

They stay restricted when the last of them is deleted: then nobody may use them, until somebody changes that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction

from controlplane import changes
from controlplane.accounts import audit, permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.pools.models import Pool, PriorityClass


def usable_by(user: User) -> Callable[[Pool, Project], bool]:
    """Return a function that tells whether a job of this user in a project may use a pool. Reads once, for restricted
    pools only."""

    @cache
    def allowed() -> tuple[dict[object, set[object]], dict[object, set[int]], set[int]]:
        projects: dict[object, set[object]] = defaultdict(set)
        for pool_id, project_id in Pool.allowed_projects.through.objects.values_list("pool_id", "project_id"):
            projects[pool_id].add(project_id)
        groups: dict[object, set[int]] = defaultdict(set)
        for pool_id, group_id in Pool.allowed_groups.through.objects.values_list("pool_id", "group_id"):
            groups[pool_id].add(group_id)
        return projects, groups, set(user.groups.values_list("pk", flat=True)) if groups else set()

    def may_use(pool: Pool, project: Project) -> bool:
        if not pool.restricted:
            return True
        projects, groups, own = allowed()
        return project.pk in projects[pool.pk] or bool(own & groups[pool.pk])

    return may_use


def usable_to(user: User) -> Callable[[Pool], bool]:
    """Return a function that tells whether this user may submit to a pool, in any project."""
    may_use, projects = usable_by(user), list(permissions.submittable(user))

    def is_usable(pool: Pool) -> bool:
        return any(may_use(pool, project) for project in projects)

    return is_usable


def class_usable_by(user: User) -> Callable[[PriorityClass, Project], bool]:
    """Return a function that tells whether a job of this user in a project may use a priority class. Who may use any
    priority may use every class. Reads once, for classes only that are not open to all."""
    any_priority, is_for = permissions.may(user, Permit.USE_ANY_PRIORITY), class_is_for()
    led = cache(lambda: set(permissions.led(user).values_list("pk", flat=True)))

    def may_use(found: PriorityClass, project: Project) -> bool:
        return any_priority or ((not found.staff_only or project.pk in led()) and is_for(found, project))

    return may_use


def class_is_for() -> Callable[[PriorityClass, Project], bool]:
    """Return a function that tells whether a priority class is for all projects, or names this one. Reads once."""
    named = cache(lambda: set(PriorityClass.allowed_projects.through.objects.values_list("priorityclass", "project")))
    return lambda found, project: not found.projects_only or (found.pk, project.pk) in named()


@transaction.atomic
def allow(pool: Pool, projects: Sequence[Project], groups: Sequence[Group], *, restricted: bool = False) -> None:
    """Restrict the pool to these projects and groups; if both are empty, open it to everybody, or to nobody if it is to
    be ``restricted``.

    Running stages go on; waiting ones that may not use the pool any more wait with that reason.
    """
    before = plain(pool)
    pool.restricted = restricted or bool(projects or groups)
    pool.save(update_fields=["restricted"])
    pool.allowed_projects.set(projects)
    pool.allowed_groups.set(groups)
    audit.record("pool.allow", pool, before=before, after=plain(pool))
    transaction.on_commit(changes.wake)
    transaction.on_commit(lambda: changes.announce("fleet"))


def plain(pool: Pool) -> dict[str, Any]:
    """The names of the projects and groups that may use the pool, and whether it is restricted to them."""
    return {
        "restricted": pool.restricted,
        "projects": sorted(pool.allowed_projects.values_list("name", flat=True)),
        "groups": sorted(pool.allowed_groups.values_list("name", flat=True)),
    }
