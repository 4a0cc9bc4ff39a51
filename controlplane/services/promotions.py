"""Promotes the models that stages leave to services: notes what completed, judges its gate, and watches its trial.

A row is written once for each attempt that completed a stage with ``promote``, with what it had reported. The
promotions of a service follow each other: one is judged when the trial of the one before is over, under the lock of the
service, in the name of the job's owner and with the rights that this person has then. What passes is a new revision,
which the replicas follow as any other; one that cannot serve, or whose answers are worse than the bounds of its canary,
is taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.db.models import Exists, F, OuterRef
from django.utils.translation import override

from controlplane import changes
from controlplane.accounts import audit, permissions
from controlplane.accounts.audit import Origin, Via
from controlplane.clauses import Told, clause, joined, told, verbatim
from controlplane.jobs import curves, left_outputs
from controlplane.jobs import service as jobs
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.service import Note
from controlplane.jobs.spec import InvalidSpec
from controlplane.pools.models import Pool
from controlplane.services import file, gate
from controlplane.services.first_bytes import added
from controlplane.services.models import InferenceService, Promotion, ServiceRevision
from controlplane.services.service import add_revision, turn_to
from scheduler.core.model.lifecycle import State

log = logging.getLogger(__name__)

# What completed longer ago, and was not noted for so long, is not promoted by surprise.
RECENT: Final = timedelta(days=7)
AT_ONCE: Final = 100
# So long a new revision may wait for its first replica, whatever it waits for.
LONGEST_START: Final = timedelta(hours=6)
KEPT: Final = timedelta(days=365)
LONGEST_DETAIL: Final = 500
# Kinds of events on the job, by how the promotion ended; ``notify`` of a job file names them.
EVENTS: Final = {
    Promotion.PromotionState.PROMOTED: "promoted",
    Promotion.PromotionState.REFUSED: "gate_refused",
    Promotion.PromotionState.ROLLED_BACK: "rolled_back",
    Promotion.PromotionState.REPLACED: "rolled_back",
}


def note_completed(now: datetime) -> int:
    """Note the attempts that completed a stage with ``promote`` and were not noted before; return how many."""
    noted = Promotion.objects.filter(attempt=OuterRef("pk"))
    found = list(
        Attempt.objects.filter(
            ~Exists(noted),
            stage__state=State.COMPLETED,
            stage__request__has_key="promote",
            stage__ended_at__gt=now - RECENT,
            number=F("stage__attempt_count"),
        )
        .select_related("stage__job__user")
        .order_by("stage__ended_at", "stage__job__number", "stage__index")[:AT_ONCE]
    )
    rows = []
    for attempt in found:
        stage, job = attempt.stage, attempt.stage.job
        asked = stage.request["promote"]
        service = InferenceService.objects.filter(
            project=job.project_id, name=asked["service"], deleted_at=None, function__isnull=True
        ).first()
        rows.append(
            Promotion(
                attempt=attempt.pk,
                project_id=job.project_id,
                service=service,
                name=asked["service"],
                job=job.number,
                stage=stage.name,
                user=job.user.get_username(),
                asked=asked,
                reported=_reported(stage.values, asked["metric"]),
                made_at=now,
            )
        )
    # Another worker may have noted some of them meanwhile: an attempt has one row.
    Promotion.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _reported(values: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the numbers that were reported, and the metric of the gate, whatever it is."""
    found: dict[str, Any] = dict(curves.numbers(values))
    if metric in values:
        found[metric] = values[metric] if gate.finite(values[metric]) is not None else str(values[metric])[:40]
    return found


def refuse_homeless(now: datetime) -> None:
    """End the promotions whose service is there no more."""
    for number in Promotion.objects.filter(ended_at=None, service=None).values_list("pk", flat=True)[:AT_ONCE]:
        with transaction.atomic():
            row = Promotion.objects.select_for_update().filter(pk=number, ended_at=None).first()
            if row is not None:
                _end(row, Promotion.PromotionState.REFUSED, told(clause("PromotionNoService", service=row.name)), now)


def advance(
    row: InferenceService, revisions: Mapping[int, ServiceRevision], ready: int, most_failures: int, now: datetime
) -> bool:
    """Look at the promotions of a locked service, of whose present revision so many replicas are ready.

    A revision with so many failures in a row is taken back. Returns whether the service or its revisions changed.
    """
    open_ = row.promotions.select_for_update(of=("self",)).filter(ended_at=None).order_by("id")
    one = open_.filter(state=Promotion.PromotionState.TRIAL).first() or open_.first()
    if one is None:
        return False
    if row.deleted_at is not None:
        _end(one, Promotion.PromotionState.REPLACED, told(clause("PromotionServiceDeleted")), now)
        return False
    try:
        with transaction.atomic():
            if one.state == Promotion.PromotionState.TRIAL:
                return _watch(one, row, revisions, ready, most_failures, now)
            return _judge(one, row, revisions, now)
    except DatabaseError:
        raise
    except Exception as error:
        # One that cannot be judged holds up no other.
        log.exception("%s could not be judged", one)
        row.refresh_from_db()
        why = verbatim(f"{type(error).__name__}: {error}")
        _end(one, Promotion.PromotionState.REFUSED, told(clause("PromotionFaulty", why=why)), now)
        return True


def _judge(one: Promotion, row: InferenceService, revisions: Mapping[int, ServiceRevision], now: datetime) -> bool:
    """Judge the gate of a promotion that waits, and begin its trial if it passes."""
    job = Job.objects.select_related("user", "project").filter(number=one.job).first()
    if job is None:
        return _refused(one, told(clause("PromotionJobGone", job=one.job)), now)
    user = job.user
    one.user = user.get_username()
    is_member = user.is_active and permissions.submittable(user).filter(pk=row.project_id).exists()
    is_own = job.project_id == row.project_id
    if not (is_member and is_own and permissions.may_end(user, owner_id=row.user_id, project_id=row.project_id)):
        said = {"user": one.user, "service": row.name, "project": row.project.name}
        return _refused(one, told(clause("PromotionNotAllowed", **said)), now)
    if not row.settings["max"]:
        return _refused(one, told(clause("PromotionServiceStopped")), now)
    serves = _serving(row, revisions)
    verdict = gate.judge(one.asked, one.reported, _known(serves, one.asked["metric"]))
    one.value = gate.finite(one.reported.get(one.asked["metric"]))
    why = told(clause(verdict.code, **verdict.params))
    if not verdict.passes:
        return _refused(one, why, now)
    # The newest file holds, also where its replicas do not answer yet.
    base = revisions[row.revision] if not revisions[row.revision].is_failed else serves
    pool = Pool.objects.filter(name=base.template.get("pool") or "default").first()
    if pool is None:
        return _refused(one, told(clause("PromotionNoModel", why=verbatim("the pool of the service is gone"))), now)
    with override("en"):
        left = left_outputs.left(job.project, pool, job.number, one.asked["from"], one.asked["output"], "")
        if not left.digest:
            return _refused(one, told(clause("PromotionNoModel", why=verbatim(left.fault))), now)
        try:
            read = file.read(file.with_promoted(base.file))
        except InvalidSpec as error:
            return _refused(one, told(clause("PromotionNoModel", why=verbatim(str(error)))), now)
    _begin(one, row, revisions, read, base, left.digest, why, now)
    return True


def _serving(row: InferenceService, revisions: Mapping[int, ServiceRevision]) -> ServiceRevision:
    """Return the revision that answers, or is to if none does."""
    present = revisions[row.revision]
    former = revisions.get(row.former or 0)
    return former if former is not None and (present.is_failed or present.ready_at is None) else present


def _known(revision: ServiceRevision, metric: str) -> float | None:
    """Return the metric with which the model of a revision was promoted."""
    return gate.finite((revision.model.get("reported") or {}).get(metric))


def _begin(
    one: Promotion,
    row: InferenceService,
    revisions: Mapping[int, ServiceRevision],
    read: file.ServiceFile,
    base: ServiceRevision,
    digest: str,
    why: Told,
    now: datetime,
) -> None:
    """Make the new revision the one that is to serve; its replicas start, and the former goes when they answer."""
    number = max(revisions) + 1
    model = {
        "stage": one.asked["from"],
        "output": one.asked["output"],
        "digest": digest,
        "reported": curves.numbers(one.reported),
    }
    add_revision(row, number, base.file, read, base.bundle, one.user, now, model_job=one.job, model=model)
    # What did not serve is nothing to come back to.
    turn_to(row, number, revisions[row.revision])
    if row.former not in revisions or revisions[row.former or 0].is_failed:
        row.former = None
    if canary := one.asked.get("canary"):
        row.settings = {**row.settings, "canary": max(1, round(canary["percent"]))}
    row.changed_at = now
    row.save(update_fields=["revision", "former", "settings", "fault", "changed_at"])
    one.state, one.revision, one.former = Promotion.PromotionState.TRIAL, number, row.former
    one.detail, one.said = why.text[:LONGEST_DETAIL], why.said
    one.save()
    _audit(one, row, "service.promote", {"revision": one.former}, {"revision": number, "job": one.job}, why.text)
    begun = told(clause("PromotionBegun", service=row.name, revision=number, why=why))
    _tell(one, "promotion", begun, now)


def _watch(
    one: Promotion,
    row: InferenceService,
    revisions: Mapping[int, ServiceRevision],
    ready: int,
    most_failures: int,
    now: datetime,
) -> bool:
    """Look how the revision of a promotion does, and end its trial one way or the other."""
    revision = revisions.get(one.revision or 0)
    if revision is None or row.revision != one.revision:
        _end(one, Promotion.PromotionState.REPLACED, told(clause("PromotionReplaced", revision=row.revision)), now)
        return False
    if revision.is_failed or revision.failures >= most_failures:
        return _take_back(one, row, revisions, told(clause("TrialNotReady", why=verbatim(revision.fault))), now)
    if revision.ready_at is not None and one.trial_at is None:
        one.trial_at = now
        one.save(update_fields=["trial_at"])
    if (canary := one.asked.get("canary")) is not None:
        # What fails whatever it is asked is never ready: routers leave it alone once it has answered its first probe.
        answers = gate.TrialAnswers(one.answers, one.errors, one.first_bytes)
        lasted_s = (now - one.trial_at).total_seconds() if one.trial_at else 0.0
        verdict, why = gate.judge_trial(canary, answers, lasted_s)
        if verdict is gate.Trial.FAILED:
            return _take_back(one, row, revisions, told(clause(why.code, **why.params)), now)
        if verdict is gate.Trial.PASSED and one.trial_at is not None:
            row.settings = {**row.settings, "canary": 100}
            row.changed_at = now
            row.save(update_fields=["settings", "changed_at"])
            return _succeed(one, row, told(clause(why.code, **why.params)), now)
    is_late = now - one.made_at > LONGEST_START
    if revision.ready_at is None:
        if is_late:
            hours = round(LONGEST_START.total_seconds() / 3600)
            return _take_back(one, row, revisions, told(clause("TrialNeverReady", hours=hours)), now)
        return False
    if canary is None and (ready >= row.wanted or is_late):
        return _succeed(one, row, told(clause("PromotionServes", revision=one.revision)), now)
    return False


def _succeed(one: Promotion, row: InferenceService, why: Told, now: datetime) -> bool:
    gate_said = Told(one.detail, one.said)
    _end(one, Promotion.PromotionState.PROMOTED, joined([gate_said, why], "Semicolon"), now)
    return True


def _take_back(
    one: Promotion, row: InferenceService, revisions: Mapping[int, ServiceRevision], why: Told, now: datetime
) -> bool:
    """Return to the revision that served before, if there is one; that of the promotion is not tried again."""
    bad, former = revisions[row.revision], revisions.get(one.former or 0)
    if not bad.is_failed or not bad.fault:
        bad.is_failed, bad.fault = True, why.text[:LONGEST_DETAIL]
        bad.save(update_fields=["is_failed", "fault"])
    if former is not None and not former.is_failed:
        row.revision, row.former = former.number, None
        why = joined([why, told(clause("PromotionTakenBack", revision=former.number))], "Semicolon")
    else:
        why = joined([why, told(clause("PromotionNoWayBack"))], "Semicolon")
    row.settings = {**row.settings, "canary": 100}
    row.changed_at = now
    row.save(update_fields=["revision", "former", "settings", "changed_at"])
    _end(one, Promotion.PromotionState.ROLLED_BACK, why, now)
    _audit(one, row, "service.rollback", {"revision": one.revision}, {"revision": row.revision}, why.text)
    return True


def _refused(one: Promotion, why: Told, now: datetime) -> bool:
    _end(one, Promotion.PromotionState.REFUSED, why, now)
    return False


def _end(one: Promotion, state: Promotion.PromotionState, why: Told, now: datetime) -> None:
    """End a promotion, and tell it to the job."""
    one.state, one.ended_at = state, now
    one.detail, one.said = why.text[:LONGEST_DETAIL], why.said
    one.save()
    codes = {
        Promotion.PromotionState.PROMOTED: "PromotionDone",
        Promotion.PromotionState.REFUSED: "PromotionRefused",
        Promotion.PromotionState.ROLLED_BACK: "PromotionRolledBack",
        Promotion.PromotionState.REPLACED: "PromotionOver",
    }
    said = clause(codes[state], stage=one.stage, service=one.name, why=why)
    _tell(one, EVENTS[state], told(said), now)


def _tell(one: Promotion, kind: str, what: Told, now: datetime) -> None:
    """Append a fact to the job, if it is still there. The service is locked already, and jobs after it."""
    job = Job.objects.filter(number=one.job).values_list("pk", flat=True).first()
    if job is None:
        return
    for locked in jobs.lock([job]).values():
        params = {"service": one.name, "revision": one.revision, "state": str(one.state)}
        attempt = Attempt.objects.filter(pk=one.attempt).values_list("number", flat=True).first()
        fact = Note(locked, kind, what, f"service {one.name}"[:150], one.stage, attempt, params)
        jobs.settle([locked], [fact], now)
        number = locked.number
        transaction.on_commit(lambda number=number: changes.announce("jobs", f"job:{number}"))  # type: ignore[misc]


def _audit(
    one: Promotion, row: InferenceService, action: str, before: dict[str, Any], after: dict[str, Any], reason: str
) -> None:
    """Record a change of a service that a job of this person makes."""
    with audit.acting(Origin(one.user, Via.SYSTEM, credential=f"job #{one.job}, stage {one.stage}"[:120])):
        audit.record(action, row, before=before, after=after, reason=reason)


def on_trial() -> dict[tuple[int, int], int]:
    """Return the promotions on trial by the service and the revision whose answers are counted."""
    rows = Promotion.objects.filter(state=Promotion.PromotionState.TRIAL, service__isnull=False)
    found = rows.values_list("service_id", "revision", "pk")
    return {(service, revision): pk for service, revision, pk in found if service is not None and revision is not None}


def count(number: int, answers: int, errors: int, first_bytes: list[int]) -> None:
    """Add what a router counted of the replicas of a promotion on trial."""
    with transaction.atomic():
        row = Promotion.objects.select_for_update().filter(pk=number, state=Promotion.PromotionState.TRIAL).first()
        if row is None:
            return
        row.answers, row.errors = row.answers + answers, row.errors + errors
        row.first_bytes = added(row.first_bytes, first_bytes)
        row.save(update_fields=["answers", "errors", "first_bytes"])


def forget_old(now: datetime) -> None:
    """Delete the promotions that ended more than a year ago."""
    Promotion.objects.filter(ended_at__lt=now - KEPT).delete()
