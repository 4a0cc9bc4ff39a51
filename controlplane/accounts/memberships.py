"""Roles in projects from a provider's or a directory's groups."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from controlplane.accounts import audit
from controlplane.accounts.models import Member, Project, User
from controlplane.accounts.providers import ROLES, Grant


@transaction.atomic
def follow_groups(user: User, grants: Iterable[Grant], groups: Iterable[str], source: str) -> None:
    """Give the user the highest role that their groups at ``source`` give in each project of the grants, or none there.

    Changes are recorded in the audit log, in the name of the user who signs in. Projects without a grant, and missing
    ones, stay as they are.
    """
    held = set(groups)
    wanted: dict[str, int] = {}
    for grant in grants:
        rank = ROLES.index(grant.role) if grant.group in held else -1
        wanted[grant.project] = max(rank, wanted.get(grant.project, -1))
    if not wanted:
        return
    # Concurrent sign-ins of the same user create the role once.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    # Nobody is signed in yet, so the request has no user.
    with audit.acting(audit.Origin(user.get_username(), audit.Via.PAGE, user.pk, f"groups of {source}")):
        for project in Project.objects.filter(name__in=wanted):
            rank = wanted[project.name]
            _give(user, project, ROLES[rank] if rank >= 0 else None)


def _give(user: User, project: Project, role: str | None) -> None:
    member = Member.objects.filter(project=project, user=user).first()
    if role is None:
        if member is not None:
            audit.record("member.delete", member, before={"role": member.role})
            member.delete()
    elif member is None:
        audit.record("member.add", Member.objects.create(project=project, user=user, role=role), after={"role": role})
    elif member.role != role:
        was, member.role = member.role, role
        member.save(update_fields=["role"])
        audit.record("member.change", member, before={"role": was}, after={"role": role})
