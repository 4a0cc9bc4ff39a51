"""Priority classes: named priorities, and who may use them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.db.models import QuerySet

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.natural import natural_key
from controlplane.pools import access
from controlplane.pools import models as rows


class PriorityClass(msgspec.Struct, frozen=True):
    """A named number; bigger is more urgent. ``restricted`` classes are for leads of a project and for staff.
    ``projects`` are those that may use it, of which you see your own, or null for all. ``usable`` tells whether you may
    submit with it, in any project."""

    name: str
    value: int
    preemptible: bool
    restricted: bool
    projects: list[str] | None
    usable: bool


def priority_classes() -> QuerySet[rows.PriorityClass]:
    """All classes, highest priority first."""
    return rows.PriorityClass.objects.order_by("-value", "name").prefetch_related("allowed_projects")


def shown(classes: Iterable[rows.PriorityClass], user: User, project: str = "") -> list[PriorityClass]:
    """These classes as the user sees them; with a project, ``usable`` is about that one."""
    may_use, projects = access.class_usable_by(user), list(permissions.submittable(user))
    asked = [one for one in projects if project in ("", one.name)]
    return [
        PriorityClass(
            name=found.name,
            value=found.value,
            preemptible=found.preemptible,
            restricted=found.staff_only,
            projects=named(found, user),
            usable=any(may_use(found, one) for one in asked),
        )
        for found in classes
    ]


def named(found: rows.PriorityClass, user: User | None = None) -> list[str] | None:
    """The projects that a class is for, as far as this user sees them, or all of them; None if it is for all."""
    if not found.projects_only:
        return None
    projects: Iterable[Project] = found.allowed_projects.all()
    if user is not None and not permissions.may(user, Permit.SEE_CLASSES):
        own = set(permissions.visible_projects(user).values_list("pk", flat=True))
        projects = [one for one in projects if one.pk in own]
    return sorted((one.name for one in projects), key=natural_key)


def usable_names(user: User) -> list[str]:
    """The names of the classes that this user may submit with, highest priority first."""
    return [found.name for found in shown(priority_classes(), user) if found.usable]
