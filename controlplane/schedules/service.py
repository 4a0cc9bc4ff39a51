"""The only writer of schedules: made, changed and removed by people, submitted when they are due.

A schedule is submitted as its owner, with the rights that the owner has then. Its row is locked meanwhile, and each of
its times has one row of what became of it, so that a time is submitted once, however many workers look.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _

from controlplane import cron
from controlplane.accounts import audit
from controlplane.accounts.models import Project, User
from controlplane.jobs import possible, sealed, service
from controlplane.jobs import spec as jobfile
from controlplane.jobs.models import Array, Job
from controlplane.jobs.section import FieldError
from controlplane.schedules.models import Schedule, ScheduleRun
from scheduler.core.model.lifecycle import FINAL

log = logging.getLogger(__name__)

MOST_OF_A_PROJECT: Final = 100
# A time that is older than this when it is looked at was missed.
LATE: Final = timedelta(minutes=5)
# So many missed times are caught up; older ones are left out.
MOST_CAUGHT_UP: Final = 24
MOST_RUNS_KEPT: Final = 100
MOST_IN_A_LOOK: Final = 50
# After so many refusals in a row a schedule is paused.
PATIENCE: Final = 10
LABEL: Final = "schedule"


class ScheduleRefused(Exception):
    """Raised where a schedule cannot be as asked. ``errors`` name the fields at fault."""

    def __init__(self, code: str, detail: str, pointer: str = "", status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.status = code, status
        self.errors = [FieldError(pointer, detail, code)] if pointer else []


def make(user: User, now: datetime, **given: Any) -> Schedule:
    """Make a schedule of this user. Raises :class:`ScheduleRefused`, and ``InvalidSpec`` with the job file's faults."""
    row = Schedule(user=user, language=_language(), **given)
    resolved = _checked(row, now)
    with transaction.atomic():
        project = Project.objects.select_for_update().get(pk=resolved.project.pk)
        if Schedule.objects.filter(project=project, name=row.name).exists():
            said = _("project {project} has a schedule {name} already").format(project=project.name, name=row.name)
            raise ScheduleRefused("exists", said, "/name", 409)
        if Schedule.objects.filter(project=project).count() >= MOST_OF_A_PROJECT:
            said = _("project {project} has {most} schedules; delete one that is not used any more")
            raise ScheduleRefused("too_many", said.format(project=project.name, most=MOST_OF_A_PROJECT), "", 409)
        row.save()
        audit.record("schedule.add", row, after=_told(row))
    return row


def change(user: User, row: Schedule, now: datetime, **given: Any) -> Schedule:
    """Change what is named of a schedule. Its fault is forgotten, and its next time is computed anew.

    Raises :class:`ScheduleRefused`, also where somebody else than its owner changes the job file, which is submitted
    as the owner; and ``InvalidSpec``.
    """
    if "job" in given and row.user_id != user.pk:
        said = _("the job file is submitted as {user}: only they may change it").format(user=row.user.get_username())
        raise ScheduleRefused("permission_denied", said, "/job", 403)
    with transaction.atomic():
        locked = Schedule.objects.select_for_update().get(pk=row.pk)
        before = _told(locked)
        for name, value in given.items():
            setattr(locked, name, value)
        if locked.is_paused and set(given) <= {"is_paused"}:
            locked.next_at = None
        else:
            _checked(locked, now)
        locked.fault, locked.refusals, locked.language = "", 0, _language()
        locked.save()
        if (after := _told(locked)) != before:
            audit.record("schedule.change", locked, before=before, after=after)
    return locked


def delete(row: Schedule) -> None:
    """Delete a schedule; jobs that it has submitted stay."""
    with transaction.atomic():
        audit.record("schedule.delete", row, before=_told(row))
        row.delete()


def run_now(row: Schedule, now: datetime) -> ScheduleRun:
    """Submit a schedule now, beside its times, whether its job before has ended or not."""
    with transaction.atomic():
        locked = Schedule.objects.select_for_update().select_related("user", "project").get(pk=row.pk)
        with override(locked.language):
            done = _submitted(locked, now, now)
        locked.save()
    return done


def submit_due(now: datetime) -> int:
    """Submit all schedules that are due; return how many times were looked at."""
    count = 0
    due = Schedule.objects.filter(next_at__lte=now, is_paused=False).order_by("next_at")
    for number in list(due.values_list("pk", flat=True)[:MOST_IN_A_LOOK]):
        with transaction.atomic():
            row = (
                Schedule.objects.select_for_update(skip_locked=True, of=("self",))
                .select_related("user", "project")
                .filter(pk=number, next_at__lte=now, is_paused=False)
                .first()
            )
            if row is not None:
                with override(row.language):
                    count += _follow(row, now)
    return count


def _follow(row: Schedule, now: datetime) -> int:
    """Submit the times of a schedule that have come, and set its next one."""
    assert row.next_at is not None, "only those with a next time are due"
    try:
        come = cron.newest(row.cron, row.zone, row.next_at, min(now, row.ends_at or now), MOST_CAUGHT_UP)
    except cron.CronFault as fault:
        _give_up(row, str(fault))
        row.save()
        return 0
    missed = [at for at in come if at < now - LATE]
    caught = {"none": 0, "last": 1 if come == missed else 0, "all": MOST_CAUGHT_UP}[row.catch_up]
    left_out = missed[:-caught] if caught else missed
    for at in left_out:
        _note(row, at, now, ScheduleRun.RunOutcome.MISSED, detail=_("the server was away"))
    for at in come[len(left_out) :]:
        _submitted_unless_busy(row, at, now)
        if row.is_paused:
            break
    _set_next(row, now)
    row.save()
    _forget_old(row)
    return len(come)


def _submitted_unless_busy(row: Schedule, due_at: datetime, now: datetime) -> None:
    if row.overlap != Schedule.Overlap.ALLOW and (before := _running(row)):
        numbers = ", ".join(f"#{job.number}" for job in before[:3])
        if row.overlap == Schedule.Overlap.SKIP:
            said = _("job {numbers} has not ended").format(numbers=numbers)
            _note(row, due_at, now, ScheduleRun.RunOutcome.SKIPPED, detail=said)
            return
        service.cancel_many([job.id for job in before], _actor(row), f"schedule {row.name} comes again")
    _submitted(row, due_at, now)


def _running(row: Schedule) -> list[Job]:
    """Return the jobs of the newest submission that have not ended."""
    last = row.runs.filter(outcome=ScheduleRun.RunOutcome.SUBMITTED).first()
    if last is None or last.number is None:
        return []
    mine = Job.objects.filter(array_id=last.number) if last.is_array else Job.objects.filter(number=last.number)
    return list(mine.exclude(state__in=FINAL).order_by("number")[:10_000])


def _submitted(row: Schedule, due_at: datetime, now: datetime) -> ScheduleRun:
    """Submit the job file of a schedule, and note what became of it; its row is saved by the caller."""
    try:
        with transaction.atomic():
            if not row.user.is_active:
                raise ScheduleRefused("inactive", _("user {user} is deactivated").format(user=row.user.get_username()))
            (made,) = service.submit_many([_file(row)], row.user, actor=_actor(row))
    except (jobfile.InvalidSpec, ScheduleRefused) as refused:
        said = "; ".join(f"{each.pointer}: {each.detail}" for each in getattr(refused, "errors", ())) or str(refused)
    except Exception as error:
        log.exception("schedule %s could not be submitted", row)
        # Its text may hold what only the server's log should: the log has it.
        said = type(error).__name__
    else:
        row.fault, row.refusals = "", 0
        return _note(
            row, due_at, now, ScheduleRun.RunOutcome.SUBMITTED, number=made.number, is_array=isinstance(made, Array)
        )
    row.fault, row.refusals = said[:500], row.refusals + 1
    if row.refusals >= PATIENCE:
        _give_up(row, said)
    return _note(row, due_at, now, ScheduleRun.RunOutcome.REFUSED, detail=said[:500])


def _give_up(row: Schedule, said: str) -> None:
    row.is_paused, row.next_at, row.fault = True, None, said[:500]
    audit.record("schedule.pause", row, reason=said[:200])


def _note(row: Schedule, due_at: datetime, now: datetime, outcome: str, **more: Any) -> ScheduleRun:
    return ScheduleRun.objects.create(schedule=row, due_at=due_at, at=now, outcome=outcome, **more)


def _forget_old(row: Schedule) -> None:
    kept = row.runs.order_by("-due_at").values("pk")[:MOST_RUNS_KEPT]
    row.runs.exclude(pk__in=kept).delete()


def _language() -> str:
    """Return the language of who asks, in which later refusals are told."""
    return get_language() or "en"


def _actor(row: Schedule) -> str:
    return f"schedule {row.name}"[:150]


def _file(row: Schedule) -> dict[str, Any]:
    """Return the job file as it is submitted: labelled, and in the project of the schedule if it names none."""
    labels = row.job.get("labels") or {}
    if isinstance(labels, Mapping):
        labels = {LABEL: row.name, **labels}
    project = row.job.get("project") or (row.project.name if row.project_id else None)
    return {**row.job, **({"project": project} if project else {}), "labels": labels}


def _checked(row: Schedule, now: datetime) -> jobfile.Resolved:
    """Check all of a schedule as its owner's, and set its project, its bundle and its next time."""
    try:
        row.clean_fields(exclude={"project", "user", "job"})
    except ValidationError as error:
        field, (said, *_more) = next(iter(error.message_dict.items()))
        raise ScheduleRefused("invalid", f"{field}: {said}", f"/{field}") from None
    try:
        cron.check(row.cron, row.zone)
    except cron.CronFault as fault:
        raise ScheduleRefused(
            "invalid_cron", str(fault), "/zone" if row.zone not in cron.zones() else "/cron"
        ) from None
    if row.starts_at and row.ends_at and row.ends_at <= row.starts_at:
        raise ScheduleRefused("invalid", _("ends_at must be after starts_at"), "/ends_at")
    try:
        (resolved,) = jobfile.resolve_all([_file(row)], row.user)
        possible.check([resolved])
    except jobfile.InvalidSpec as refused:
        faults = [FieldError(f"/job{each.pointer}", each.detail, each.code) for each in refused.errors]
        raise jobfile.InvalidSpec(faults) from None
    if sealed.part(row.job, [stage.request for stage in resolved.stages]).values:
        said = _("a schedule keeps no secret values; name secrets of the project under secrets")
        raise ScheduleRefused("secret_value", said, "/job")
    row.project, row.bundle = resolved.project, resolved.bundle
    _set_next(row, now)
    if row.next_at is None and not row.is_paused:
        raise ScheduleRefused("invalid", _("no time of it is left before ends_at"), "/ends_at")
    return resolved


def _set_next(row: Schedule, now: datetime) -> None:
    after = max(now, row.starts_at - timedelta(seconds=1)) if row.starts_at else now
    following = next(cron.times(row.cron, row.zone, after), None)
    is_over = following is None or (row.ends_at is not None and following > row.ends_at)
    row.next_at = None if row.is_paused or is_over else following


def _told(row: Schedule) -> dict[str, Any]:
    """Return what an audit entry says of a schedule."""
    return audit.fields(row, "name", "cron", "zone", "overlap", "catch_up", "starts_at", "ends_at", "is_paused") | {
        "owner": row.user.get_username()
    }
