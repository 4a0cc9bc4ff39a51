"""Why an action on a job was refused: the exceptions of this package as a status, a code and a sentence."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs.change import Unchangeable
from controlplane.jobs.section import FieldError
from controlplane.jobs.sessions import NotOpened
from controlplane.jobs.signals import NothingRuns
from controlplane.jobs.spec import InvalidSpec
from controlplane.jobs.traces import NotTraced
from controlplane.sentences import in_language
from scheduler.core.model.lifecycle import IllegalTransition
from scheduler.core.model.sentences import said


class JobRefusal(NamedTuple):
    """A refusal: the HTTP status and stable ``code`` that it becomes, the sentence, and the fields at fault."""

    status: int
    code: str
    detail: str
    errors: list[FieldError]


def of_others(user: User, row: Any, said: str) -> JobRefusal | None:
    """Return the refusal, ``said`` with ``{user}`` and ``{project}``, unless this user may act on a job, or on what has
    an owner and a project as jobs have, as its owner, a lead of its project or staff may."""
    if permissions.may_end(user, owner_id=row.user_id, project_id=row.project_id):
        return None
    detail = said.format(user=row.user.get_username(), project=row.project.name)
    return JobRefusal(403, "permission_denied", detail, [])


def refusal(error: Exception) -> JobRefusal | None:
    """Return why an action on a job was refused; None if the exception is not a refusal of one."""
    match error:
        case InvalidSpec():
            count = len(error.errors)
            detail = str(error) if count == 1 else _("the job file has {count} faults").format(count=count)
            return JobRefusal(422, "invalid_spec", detail, list(error.errors))
        case Unchangeable():
            at = FieldError(error.pointer, str(error), "unchangeable")
            return JobRefusal(409, "unchangeable", str(error), [at])
        case NothingRuns():
            return JobRefusal(409, "nothing_runs", str(error), [])
        case NotTraced() | NotOpened():
            return JobRefusal(error.status, error.code, str(error), [])
        case IllegalTransition():
            return JobRefusal(409, "illegal_transition", in_language(said(error)), [])
    return None
