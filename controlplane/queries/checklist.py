"""The first steps in a new cluster: which are done, and which this user may do."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from django.utils import timezone

from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit, may, submittable, visible_jobs
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.pools.models import Quota

# So long after its first job a cluster is not new, whatever is left of the list: quotas, say, are not for everybody.
NEW: Final = timedelta(days=7)


class FirstStep(NamedTuple):
    """One step: whether it ``is_done``, and whether this user ``may`` do it. ``job`` is the number of one to open."""

    name: str
    is_done: bool
    may: bool
    job: int | None = None


def checklist(user: User) -> list[FirstStep]:
    """Return the first steps; none for who has dismissed them, where all are done, and where the cluster is not new."""
    if user.has_dismissed_checklist:
        return []
    first = Job.objects.order_by("number").values_list("submitted_at", flat=True).first()
    if first is not None and first < timezone.now() - NEW:
        return []
    newest = Job.objects.filter(visible_jobs(user)).order_by("-number").values_list("number", flat=True).first()
    steps = [
        FirstStep("node", Node.objects.exists(), may(user, Permit.CHANGE_NODES)),
        FirstStep(
            "project",
            Project.objects.exists() and Quota.objects.exists(),
            may(user, Permit.ADD_PROJECTS) and may(user, Permit.ADD_QUOTAS),
        ),
        FirstStep("job", first is not None, submittable(user).exists()),
        FirstStep("result", Job.objects.filter(state="COMPLETED").exists(), newest is not None, newest),
    ]
    return [] if all(step.is_done for step in steps) else steps
