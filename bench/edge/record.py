"""The record's side: the functions that the gateway calls for each report, on a real database, and a restore of it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from django.db import connection
from django.utils import timezone

from agents.protocol import Desired, Report
from controlplane.accounts.models import Project, User
from controlplane.dispatch import desired
from controlplane.fleet.identity import Caller, ReportVerdict
from controlplane.fleet.models import Node
from controlplane.jobs import record
from controlplane.jobs.models import Attempt, Job
from controlplane.local_jobs.join import join
from controlplane.local_jobs.models import LocalGrant, LocalJob
from scheduler.core.model.lifecycle import FINAL

# What is open on a device after rows were removed as a restore removes them.
_RECOUNT = """
UPDATE fleet_device d SET
    claimed_milli = (SELECT coalesce(sum(milli), 0) FROM jobs_claim c WHERE c.device_id = d.id AND closed_at IS NULL),
    claimed_memory_bytes =
        (SELECT coalesce(sum(memory_bytes), 0) FROM jobs_claim c WHERE c.device_id = d.id AND closed_at IS NULL)
WHERE d.node_id = %s
"""


class EdgeRecord:
    """The rows of one node, and what becomes of its reports."""

    def __init__(self, node: Node, project: Project, user: User) -> None:
        self.node, self.project = node, project
        LocalGrant.objects.create(node=node, project=project, user=user)
        self.caller = Caller()
        self.restores = 0

    def exchange(self, report: Report) -> Desired | None:
        """Return the orders that answer a report, as the gateway does."""
        answer = record.report(self.node.id, report, self.caller)
        if answer.verdict is not ReportVerdict.TAKEN:
            return None
        return desired.compose(
            self.node.id,
            {item.part: item.phase for item in report.here},
            answers_seq=report.seq,
            accepted=answer.accepted,
            refused=answer.refused,
            unknown=answer.unknown,
            forget=answer.forget,
            leftovers=answer.leftovers,
            local=join(self.node.id, report.local),
        )

    def restore(self, since: datetime) -> None:
        """Lose what came after a backup that was made then."""
        self.restores += 1
        Job.objects.filter(id__in=LocalJob.objects.filter(joined_at__gt=since).values("job")).delete()
        LocalJob.objects.filter(joined_at__gt=since).delete()
        with connection.cursor() as cursor:
            cursor.execute(_RECOUNT, [self.node.id])

    def ended(self) -> set[str]:
        return {
            str(one) for one in Job.objects.filter(project=self.project, state__in=FINAL).values_list("id", flat=True)
        }

    def doubled(self, asked: set[str]) -> int:
        """How many jobs nobody asked for, and how many attempts are more than one of a job."""
        jobs = {str(one) for one in Job.objects.filter(project=self.project).values_list("id", flat=True)}
        tries = Counter(Attempt.objects.filter(stage__job__project=self.project).values_list("stage__job", flat=True))
        return len(jobs - asked) + sum(count - 1 for count in tries.values())


def now() -> datetime:
    return timezone.now()
