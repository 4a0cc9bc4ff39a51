"""The roles of people in projects: who may give and take them.

Accountants (those who may change members) give any role. Leads give and take *viewer* and *member* in their projects.
Nobody but a superuser changes their own role, so that nobody raises themselves.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from controlplane.accounts import audit, permissions
from controlplane.accounts.models import Member, Project, User
from controlplane.accounts.permissions import Permit


class MemberRefused(Exception):
    """Raised if a role is not given or taken; the text is for the user, ``code`` is stable."""

    def __init__(self, code: str, detail: str, status: int = 403) -> None:
        super().__init__(detail)
        self.code, self.status = code, status


def give(actor: User, project: Project, name: str, role: str) -> tuple[Member, bool]:
    """Give a user a role in a project; the second value tells whether they are new in it. Raises MemberRefused."""
    with transaction.atomic():
        user, member = _found(actor, project, name)
        _check(actor, project, user, {role, member.role if member else role})
        if member is None:
            member = Member.objects.create(project=project, user=user, role=role)
            audit.record("member.add", member, after={"role": role})
            return member, True
        if member.role != role:
            before, member.role = member.role, role
            member.save(update_fields=["role"])
            audit.record("member.change", member, before={"role": before}, after={"role": role})
    return member, False


def take(actor: User, project: Project, name: str) -> None:
    """Take a user's role in a project away; nothing if they have none. Raises MemberRefused."""
    with transaction.atomic():
        user, member = _found(actor, project, name)
        _check(actor, project, user, {member.role if member else Member.Role.VIEWER})
        if member is not None:
            audit.record("member.delete", member, before={"role": member.role})
            member.delete()


def _found(actor: User, project: Project, name: str) -> tuple[User, Member | None]:
    """Return the user and their present role, locked. Whoever may give no role learns of no user."""
    if not (permissions.may(actor, Permit.CHANGE_MEMBERS) or _leads(actor, project)):
        detail = _("only leads of project {project} and accountants may change its members")
        raise MemberRefused("permission_denied", detail.format(project=project.name))
    Project.objects.select_for_update().get(pk=project.pk)
    # A service account may get another role before it is enabled again.
    user = User.objects.filter(Q(is_active=True) | ~Q(service_of=None), username=name).first()
    if user is None:
        raise MemberRefused("unknown_user", _("there is no user {name}").format(name=name[:150]), status=404)
    return user, Member.objects.filter(project=project, user=user).first()


def _check(actor: User, project: Project, user: User, roles: set[str]) -> None:
    """Refuse one's own role, for leads that of other leads, and what no service account may have."""
    home = user.service_of
    if home is not None and (home != project or Member.Role.LEAD in roles):
        detail = _("a service account is viewer or member of its own project, {project}, and of no other")
        raise MemberRefused("service_account", detail.format(project=home.name), status=409)
    if user.pk == actor.pk and not actor.is_superuser:
        raise MemberRefused("permission_denied", _("you may not change your own role; ask somebody else"))
    if Member.Role.LEAD in roles and not permissions.may(actor, Permit.CHANGE_MEMBERS):
        detail = _("only accountants may make or change a lead of project {project}")
        raise MemberRefused("permission_denied", detail.format(project=project.name))


def _leads(user: User, project: Project) -> bool:
    return permissions.led(user).filter(pk=project.pk).exists()
