"""Roles in projects that a provider's or a directory's groups decide on."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.accounts.models import Member, Project, User
from controlplane.accounts.providers import ROLES, Grant


def follow_groups(user: User, grants: Iterable[Grant], groups: Iterable[str]) -> None:
    """Gives the user the highest role that their groups give in each project that the grants name, or none there.

    Projects that no grant names, and such as are not there, stay as they are.
    """
    held = set(groups)
    wanted: dict[str, int] = {}
    for grant in grants:
        rank = ROLES.index(grant.role) if grant.group in held else -1
        wanted[grant.project] = max(rank, wanted.get(grant.project, -1))
    for project in Project.objects.filter(name__in=wanted):
        rank = wanted[project.name]
        if rank < 0:
            Member.objects.filter(project=project, user=user).delete()
        else:
            Member.objects.update_or_create(project=project, user=user, defaults={"role": ROLES[rank]})
