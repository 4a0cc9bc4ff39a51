"""One action on one job, as one of many: with an outcome instead of an exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from django.db import transaction
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs import change, service
from controlplane.jobs import models as rows
from controlplane.jobs.refusal import JobRefusal, refusal

ACTIONS: Final[Mapping[str, Callable[[rows.Job, str, str], object]]] = {
    "cancel": service.cancel,
    "hold": service.hold,
    "release": service.release,
    "requeue": service.requeue,
}
CHANGE: Final = "change"
STOPPING: Final = frozenset({"cancel", "requeue"})


class Action(msgspec.Struct, frozen=True):
    """What is done to each job: the name of an action, the merge patch where it is ``change``, and the reason."""

    name: str
    patch: dict[str, Any] | None = None
    reason: str = ""

    def apply(self, job: rows.Job, user: User) -> JobRefusal | None:
        """Do it as this user; return why not. Needs a transaction, of which a refusal undoes only this action."""
        if not permissions.may_end(user, owner_id=job.user_id, project_id=job.project_id):
            detail = _("only {user}, a lead of project {project} or staff may do this")
            detail = detail.format(user=job.user.get_username(), project=job.project.name)
            return JobRefusal(403, "permission_denied", detail, [])
        try:
            with transaction.atomic():
                if self.name == CHANGE:
                    change.change(job, self.patch or {}, user, self.reason)
                else:
                    ACTIONS[self.name](job, user.get_username(), self.reason)
        except Exception as error:
            if (refused := refusal(error)) is None:
                raise
            return refused
        return None
