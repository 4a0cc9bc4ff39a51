"""Service accounts: users of programs such as a CI. Each belongs to one project and is viewer or member there.

They cannot sign in, and act by access tokens. The leads of a project create, change and delete its service accounts
and make their tokens. Accountants do not, although they change members: by a token they would give themselves a role.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import ProtectedError, QuerySet
from django.utils.translation import gettext as _

from controlplane.accounts import audit, members, permissions
from controlplane.accounts.members import MemberRefused
from controlplane.accounts.models import Member, Project, User, slug

MOST = 50
LONGEST_DESCRIPTION = 200
ROLES = (Member.Role.VIEWER, Member.Role.MEMBER)
CHOICES = [(role.value, role.label) for role in ROLES]


class ServiceAccountRefused(MemberRefused):
    """Raised if a service account is not made, changed or deleted; the text is for the user."""


def may_manage(user: User, project: Project) -> bool:
    """Whether this user may make and change service accounts of the project, and their tokens."""
    return user.is_superuser or permissions.led(user).filter(pk=project.pk).exists()


def manageable(user: User) -> QuerySet[User]:
    """The service accounts that this user may see and change."""
    accounts = User.objects.exclude(service_of=None).select_related("service_of")
    return accounts if user.is_superuser else accounts.filter(service_of__in=permissions.led(user))


def create(actor: User, project: Project, name: str, role: str, description: str = "") -> User:
    """Create the service account ``name@project``. Raises ServiceAccountRefused."""
    if not may_manage(actor, project):
        detail = _("only leads of project {project} may make its service accounts")
        raise ServiceAccountRefused("permission_denied", detail.format(project=project.name))
    try:
        slug(name)
    except ValidationError as error:
        raise ServiceAccountRefused("invalid_name", f"name: {error.message}", status=400) from None
    _check(role, description)
    full = f"{name}@{project.name}"
    with transaction.atomic():
        Project.objects.select_for_update().get(pk=project.pk)
        if project.service_accounts.count() >= MOST:
            detail = _("project {project} has {most} service accounts; delete one first")
            raise ServiceAccountRefused("too_many", detail.format(project=project.name, most=MOST), status=409)
        if User.objects.filter(username=full).exists():
            detail = _("there is already a user {name}").format(name=full)
            raise ServiceAccountRefused("exists", detail, status=409)
        account = User(username=full, service_of=project, default_project=project, description=description)
        account.set_unusable_password()
        account.save()
        Member.objects.create(project=project, user=account, role=role)
        after = {"project": project.name, "role": role, "description": description}
        audit.record("service_account.add", account, after=after)
    return account


def change(
    actor: User,
    account: User,
    *,
    role: str | None = None,
    is_active: bool | None = None,
    description: str | None = None,
) -> None:
    """Change what is given. An inactive account's tokens are refused at once; its jobs go on. Raises MemberRefused."""
    assert account.service_of is not None
    _check(role, description)
    with transaction.atomic():
        if role is not None:
            members.give(actor, account.service_of, account.get_username(), role)
        given = {"is_active": is_active, "description": description}
        wanted = {name: value for name, value in given.items() if value is not None and value != getattr(account, name)}
        if wanted:
            before = audit.fields(account, *wanted)
            for name, value in wanted.items():
                setattr(account, name, value)
            account.save(update_fields=[*wanted])
            audit.record("service_account.change", account, before=before, after=wanted)


def _check(role: str | None, description: str | None) -> None:
    """Refuse another role, and a description that is too long."""
    if (role is not None and role not in ROLES) or len(description or "") > LONGEST_DESCRIPTION:
        said = _("Choose the role viewer or member, and describe it in at most {most} characters.")
        raise ServiceAccountRefused("invalid", said.format(most=LONGEST_DESCRIPTION), status=422)


def delete(account: User) -> None:
    """Delete an account with its tokens. Raises ServiceAccountRefused if it ever submitted a job."""
    with transaction.atomic():
        audit.record("service_account.delete", account, before={"description": account.description})
        try:
            account.delete()
        except ProtectedError:
            detail = _("jobs belong to {name}; disable it instead").format(name=account.get_username())
            raise ServiceAccountRefused("in_use", detail, status=409) from None
