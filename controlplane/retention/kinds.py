"""The kinds of records that retention removes, each with its rows and its removal: a new kind is one more entry.

``rows`` are those that may be removed at all, of a project if the kind has projects, with ``age`` (since when) and
``size`` (bytes). None of them is in use: no job that has not ended, no bundle of such a job, no log that may still
grow. ``remove`` takes ids that were chosen shortly before, and checks again, under lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.core.files.storage import storages
from django.db import connection
from django.db.models import Exists, F, Model, OuterRef, QuerySet, Value
from django.db.models.functions import Now
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.models import AuditEntry, IdempotencyKey, Project
from controlplane.accounts.service import KEY_LIFE
from controlplane.jobs import logs
from controlplane.jobs.models import Array, Bundle, Decision, Dependency, Job, Part, PartLog, StageTrace
from controlplane.retention.models import Removal
from controlplane.schedules.models import Schedule
from controlplane.services.models import ServiceRevision
from controlplane.simulations.models import OPEN, Simulation
from scheduler.core.model.lifecycle import FINAL

Rows = Callable[[Project | None], "QuerySet[Any]"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of records. ``step`` of them are removed in one transaction."""

    name: str
    title: Promise
    has_projects: bool
    rows: Rows
    remove: Callable[[Sequence[Any]], None]
    step: int = 500


def _deleting(model: type[Model]) -> Callable[[Sequence[Any]], None]:
    def remove(ids: Sequence[Any]) -> None:
        model._default_manager.filter(pk__in=ids).delete()

    return remove


# An agent may still send the end of a log after the stage has ended.
_SETTLED: Final = timedelta(hours=1)


def _logs(project: Project | None) -> QuerySet[Any]:
    ended = PartLog.objects.filter(
        project=project, gone_at=None, part__ended_at__lt=Now() - _SETTLED, part__attempt__ended_at__isnull=False
    )
    return ended.annotate(age=F("written_at"), size=F("size_bytes")).order_by("written_at")


def _remove_logs(ids: Sequence[Any]) -> None:
    # Appenders hold the same locks.
    logs.remove([part.id for part in Part.objects.select_for_update().filter(id__in=ids).order_by("id")])


def _seen(ended: QuerySet[Job]) -> QuerySet[Job]:
    """Those of the jobs whose end nobody that depends on them has still to see, and whose models nothing serves."""
    awaited = Dependency.objects.filter(verdict="")
    ended = ended.exclude(Exists(awaited.filter(on_job=OuterRef("pk"))))
    # A service has a model of it, which its replicas get from it.
    ended = ended.exclude(Exists(ServiceRevision.objects.filter(model_job=OuterRef("number"))))
    return ended.exclude(Exists(awaited.filter(on_array=OuterRef("array"))))


def _ended_jobs(project: Project | None) -> QuerySet[Job]:
    ended = Job.objects.filter(project=project, state__in=sorted(FINAL), ended_at__isnull=False)
    return _seen(ended).annotate(age=F("ended_at"), size=Value(0)).order_by("ended_at")


def _remove_jobs(ids: Sequence[Any]) -> None:
    # A submission that begins to depend on one of them holds these locks.
    rows = list(Job.objects.select_for_update().filter(pk__in=ids).order_by("id"))
    arrays = {job.array_id for job in rows if job.array_id is not None}
    list(Array.objects.select_for_update().filter(number__in=arrays).order_by("number"))
    ids = list(_seen(Job.objects.filter(pk__in=ids)).values_list("pk", flat=True))
    logs.unlink(list(Part.objects.filter(attempt__stage__job__in=ids, log__gone_at=None).values_list("id", flat=True)))
    Job.objects.filter(pk__in=ids).delete()
    Array.objects.filter(~Exists(Job.objects.filter(array=OuterRef("number"))), number__in=arrays).delete()


def _jobs_with_events(project: Project | None) -> QuerySet[Any]:
    return _ended_jobs(project).filter(events_gone=0)


# All events before the one about the job's end; that one and later ones stay.
_FORGET_EVENTS: Final = """
WITH last AS (
    SELECT j.id, min(e.seq) - 1 AS until FROM jobs_job j JOIN jobs_event e ON e.job_id = j.id
    WHERE j.id = ANY(%s) AND e.stage = '' AND e.kind IN ('completed', 'failed', 'cancelled') GROUP BY j.id
), marked AS (
    UPDATE jobs_job j SET events_gone = last.until FROM last WHERE j.id = last.id RETURNING j.id, j.events_gone
)
DELETE FROM jobs_event e USING marked WHERE e.job_id = marked.id AND e.seq <= marked.events_gone
"""


def _remove_events(ids: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_EVENTS, [list(ids)])


def _bundles(project: Project | None) -> QuerySet[Any]:
    needed = Job.objects.filter(bundle=OuterRef("sha256")).exclude(state__in=sorted(FINAL))
    planned = Schedule.objects.filter(bundle=OuterRef("sha256"))
    served = ServiceRevision.objects.filter(bundle=OuterRef("sha256"))
    unused = Bundle.objects.filter(~Exists(needed), ~Exists(planned), ~Exists(served))
    return unused.annotate(age=F("used_at"), size=F("size_bytes")).order_by("used_at")


def _remove_bundles(ids: Sequence[Any]) -> None:
    # A concurrent upload or use waits for this lock, and finds row and bytes gone.
    locked = list(Bundle.objects.select_for_update().filter(pk__in=ids, used_at__lt=Now() - timedelta(hours=2)))
    unused = list(_bundles(None).filter(pk__in=[row.pk for row in locked]).values_list("pk", flat=True))
    for sha256 in unused:
        storages["bundles"].delete(Bundle.place(sha256))
    Bundle.objects.filter(pk__in=unused).delete()


def _simulations(project: Project | None) -> QuerySet[Any]:
    ended = Simulation.objects.exclude(phase__in=OPEN).filter(ended_at__isnull=False)
    return ended.annotate(age=F("ended_at"), size=F("trace_bytes") + F("result_bytes")).order_by("ended_at")


def _traces(project: Project | None) -> QuerySet[Any]:
    ended = StageTrace.objects.filter(ended_at__isnull=False)
    return ended.annotate(age=F("ended_at"), size=F("size_bytes")).order_by("ended_at")


def _decisions(project: Project | None) -> QuerySet[Any]:
    return Decision.objects.annotate(age=F("at"), size=Value(0)).order_by("at")


def _keys(project: Project | None) -> QuerySet[Any]:
    return IdempotencyKey.objects.annotate(age=F("created_at"), size=Value(0)).order_by("created_at")


def _remove_keys(ids: Sequence[Any]) -> None:
    # An expired key may have been used again meanwhile, in the same row.
    IdempotencyKey.objects.filter(pk__in=ids, created_at__lt=Now() - KEY_LIFE).delete()


def _audited(project: Project | None) -> QuerySet[Any]:
    return AuditEntry.objects.annotate(age=F("at"), size=Value(0)).order_by("at")


def _removals(project: Project | None) -> QuerySet[Any]:
    return Removal.objects.annotate(age=F("at"), size=Value(0)).order_by("at")


KINDS: Final = (
    Kind("logs", _("Logs"), True, _logs, _remove_logs, step=100),
    Kind("events", _("Events of ended jobs"), True, _jobs_with_events, _remove_events, step=100),
    Kind("jobs", _("Ended jobs"), True, _ended_jobs, _remove_jobs, step=20),
    Kind("decisions", _("Decisions"), False, _decisions, _deleting(Decision)),
    Kind("bundles", _("Bundles"), False, _bundles, _remove_bundles, step=10),
    Kind("simulations", _("Simulations"), False, _simulations, _deleting(Simulation), step=20),
    Kind("traces", _("Traces of stages"), False, _traces, _deleting(StageTrace), step=20),
    Kind("idempotency", _("Answers kept for repeated requests"), False, _keys, _remove_keys),
    Kind("audit", _("Audit entries"), False, _audited, _deleting(AuditEntry)),
    Kind("removals", _("What retention removed"), False, _removals, _deleting(Removal)),
)
NAMED: Final = {kind.name: kind for kind in KINDS}
