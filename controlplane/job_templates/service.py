"""Makes, changes, deletes and fills templates.

What somebody submits from a template runs as they: so only leads of a project and operators change those of a project,
and only operators those of everybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.accounts import audit, permissions
from controlplane.accounts.models import Project, User, slug
from controlplane.accounts.permissions import Permit
from controlplane.job_templates import parameters as declared
from controlplane.job_templates.models import JobTemplate
from controlplane.job_templates.shipped import shipped
from controlplane.jobs import sealed
from controlplane.jobs import spec as jobfile
from controlplane.jobs.section import FieldError

MOST_OF_A_PROJECT: Final = 100
LARGEST: Final = 64 * 2**10


class TemplateRefused(Exception):
    """Raised where a template, or values for one, cannot be as asked. ``errors`` name the fields at fault."""

    def __init__(self, code: str, detail: str, errors: Sequence[FieldError] = (), status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.status, self.errors = code, status, list(errors)


@dataclass(frozen=True, slots=True)
class Template:
    """A template, whoever it is of. ``project`` is empty for everybody's; shipped ones have no ``changed_at``."""

    name: str
    project: str
    title: str
    description: str
    parameters: Sequence[Mapping[str, Any]]
    job: Mapping[str, Any]
    made_by: str = ""
    changed_at: datetime | None = None


def may_change(user: User, project: Project | None) -> bool:
    """Whether this user may change the templates of this project, or those of everybody."""
    if permissions.may(user, Permit.CHANGE_TEMPLATES):
        return True
    return project is not None and permissions.led(user).filter(pk=project.pk).exists()


def visible(user: User, project: str = "") -> list[Template]:
    """Return the templates that this user sees, by name; with a project only those that are offered in it."""
    rows = JobTemplate.objects.select_related("project")
    if not permissions.may(user, Permit.SEE_JOBS):
        rows = rows.filter(project=None) | rows.filter(project__in=permissions.joined(user))
    if project:
        rows = rows.filter(project=None) | rows.filter(project__name=project)
    found = {(row.name, row.project.name if row.project else ""): _of_row(row) for row in rows}
    for name, each in shipped().items():
        found.setdefault((name, ""), Template(name, "", **_in_words(each)))
    return [found[key] for key in sorted(found)]


def _in_words(each: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template that is part of Switchyard with its titles and description in the reader's language."""
    parameters = [{**one, "title": _(one["title"])} if one.get("title") else one for one in each["parameters"]]
    return {**each, "title": _(each["title"]), "description": _(each["description"]), "parameters": parameters}


def find(user: User, name: str, project: str = "") -> Template | None:
    """Return the template of this name: that of the project, else that of everybody, else the only one."""
    named = [one for one in visible(user) if one.name == name]
    for of in (project, "") if project else ("",):
        if found := next((one for one in named if one.project == of), None):
            return found
    return named[0] if len(named) == 1 and not project else None


def _of_row(row: JobTemplate) -> Template:
    return Template(
        row.name,
        row.project.name if row.project else "",
        row.title,
        row.description,
        row.parameters,
        row.job,
        row.made_by,
        row.changed_at,
    )


def put(
    user: User,
    project: Project | None,
    name: str,
    *,
    title: str,
    description: str,
    parameters: Sequence[Any],
    job: Mapping[str, Any],
) -> tuple[Template, bool]:
    """Make a template, or replace the one of this name; return whether it is new. Raises :class:`TemplateRefused`."""
    check(user, project, name, parameters, job)
    with transaction.atomic():
        if project is not None:
            Project.objects.select_for_update().get(pk=project.pk)
        row = JobTemplate.objects.select_for_update().filter(project=project, name=name).first()
        before = _told(row) if row is not None else None
        if row is None:
            if JobTemplate.objects.filter(project=project).count() >= MOST_OF_A_PROJECT:
                said = _("there are {most} templates already; delete one that is not used any more")
                raise TemplateRefused("too_many", said.format(most=MOST_OF_A_PROJECT), status=409)
            row = JobTemplate(project=project, name=name)
        row.title, row.description, row.parameters, row.job = title, description, list(parameters), dict(job)
        row.made_by, row.changed_at = user.get_username(), timezone.now()
        row.save()
        audit.record("template.set", row, before=before, after=_told(row))
    return _of_row(row), before is None


def delete(project: Project | None, name: str) -> bool:
    """Delete a template that somebody made; return whether there was one."""
    with transaction.atomic():
        row = JobTemplate.objects.select_for_update().filter(project=project, name=name).first()
        if row is None:
            return False
        audit.record("template.delete", row, before=_told(row))
        row.delete()
    return True


def fill(template: Template, given: Mapping[str, Any], project: str = "") -> dict[str, Any]:
    """Return the job file of a template with these values. Raises :class:`TemplateRefused` with every faulty value."""
    job, faults = declared.filled(template.job, template.parameters, given)
    if faults:
        raise TemplateRefused("invalid", faults[0].detail, faults)
    if project or template.project:
        job["project"] = project or template.project
    return job


def _told(row: JobTemplate) -> dict[str, Any]:
    return {"title": row.title, "project": row.project.name if row.project else "", "job": json.dumps(row.job)}


def check(user: User, project: Project | None, name: str, parameters: Sequence[Any], job: Mapping[str, Any]) -> None:
    """Check a template as this user's in a project. Raises :class:`TemplateRefused` with every fault."""
    try:
        slug(name)
    except ValidationError as error:
        raise TemplateRefused(
            "invalid_name", error.messages[0], [FieldError("/name", error.messages[0], "invalid_name")]
        ) from None
    faults = declared.check(parameters) or declared.check_places(job, parameters)
    if not faults and len(json.dumps([job, parameters], default=str)) > LARGEST:
        said = _("a template may have {n} KiB; put scripts into a bundle (workdir)").format(n=LARGEST // 1024)
        faults = [FieldError("/job", said, "too_large")]
    if faults:
        raise TemplateRefused("invalid", faults[0].detail, faults)
    filled, _none = declared.filled(job, parameters, declared.sample(parameters))
    if project is not None:
        filled["project"] = project.name
    try:
        (resolved,) = jobfile.resolve_all([filled], user)
    except jobfile.InvalidSpec as refused:
        errors = [FieldError(f"/job{each.pointer}", each.detail, each.code) for each in refused.errors]
        raise TemplateRefused("invalid", str(refused), errors) from None
    if sealed.part(filled, [stage.request for stage in resolved.stages]).values:
        said = _("a template keeps no secret values; name secrets of the project under secrets")
        raise TemplateRefused("secret_value", said, [FieldError("/job", said, "secret_value")])
