"""Why an action on a job was refused: the exceptions of this package as a status, a code and a sentence."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.translation import gettext as _

from controlplane.jobs.change import Unchangeable
from controlplane.jobs.section import FieldError
from controlplane.jobs.signals import NothingRuns
from controlplane.jobs.spec import InvalidSpec
from controlplane.sentences import in_language
from scheduler.core.model.lifecycle import IllegalTransition
from scheduler.core.model.sentences import said


class JobRefusal(NamedTuple):
    """A refusal: the HTTP status and stable ``code`` that it becomes, the sentence, and the fields at fault."""

    status: int
    code: str
    detail: str
    errors: list[FieldError]


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
        case IllegalTransition():
            return JobRefusal(409, "illegal_transition", in_language(said(error)), [])
    return None
