"""Templates as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from controlplane.accounts.models import User
from controlplane.job_templates import service


class JobTemplate(msgspec.Struct, frozen=True):
    """A job file with parameters. ``project`` is empty if it is everybody's; ``changed_at`` is null for one that is
    part of Switchyard. A parameter has ``name``, ``type``, and where they apply ``title``, ``default``, ``min``,
    ``max`` and ``choices``."""

    name: str
    project: str
    title: str
    description: str
    parameters: list[dict[str, Any]]
    job: dict[str, Any]
    made_by: str
    changed_at: datetime | None


class JobTemplateList(msgspec.Struct, frozen=True):
    """Templates by name."""

    results: list[JobTemplate]


class FilledTemplate(msgspec.Struct, frozen=True):
    """The job file of a template with values in its places, to be submitted."""

    job: dict[str, Any]


def shown(template: service.Template) -> JobTemplate:
    """This template, with its job file."""
    return JobTemplate(
        template.name,
        template.project,
        template.title,
        template.description,
        [dict(each) for each in template.parameters],
        dict(template.job),
        template.made_by,
        template.changed_at,
    )


def of_user(user: User, project: str = "") -> JobTemplateList:
    """The templates that this user sees."""
    return JobTemplateList([shown(each) for each in service.visible(user, project)])
