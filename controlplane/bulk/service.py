"""Begins, advances, cancels and forgets operations. The only writer of their rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Count, F, Max, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _

from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.background import BackgroundPhase
from controlplane.bulk.action import Action
from controlplane.jobs.models import Job, Operation
from controlplane.jobs.refusal import JobRefusal
from controlplane.queries import job_rows, jobs

log = logging.getLogger(__name__)

MOST_OPEN: Final = 5
MOST_REFUSALS: Final = 100
KEPT: Final = timedelta(days=7)
# A worker has an operation for so long, and works on it for so long at a time, between other duties.
LEASE: Final = timedelta(seconds=60)
SLICE_S: Final = 5.0
SLICE: Final = 200


class TooManyOperations(Exception):
    """The user has as many operations under way as one may have."""


class _Overtaken(Exception):
    """The operation was cancelled, or another worker has gone on with it."""


def matching(user: User, filters: Mapping[str, str]) -> QuerySet[Job]:
    """Return the jobs that this user may see and that the filters choose, newest first."""
    return jobs.JobFilter(dict(filters), job_rows.whole(jobs.visible(user)), user=user).qs.order_by("-number")


@transaction.atomic
def begin(user: User, action: Action, filters: Mapping[str, str]) -> Operation:
    """Begin an operation on what matches now. Raises :class:`TooManyOperations`."""
    # One after the other, so that the count is right.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if Operation.objects.filter(user=user, ended_at=None).count() >= MOST_OPEN:
        raise TooManyOperations(
            _("{most} operations of yours are under way; wait for one, or cancel one").format(most=MOST_OPEN)
        )
    found = matching(user, filters).order_by().aggregate(newest=Max("number"), matched=Count("pk"))
    origin = audit.current()
    return Operation.objects.create(
        user=user,
        action=action.name,
        patch=action.patch,
        filter=dict(filters),
        reason=action.reason,
        language=get_language() or "en",
        via=origin.via if origin else audit.Via.SYSTEM,
        credential=origin.credential[:120] if origin else "",
        request_id=origin.request_id[:64] if origin else "",
        newest=found["newest"] or 0,
        matched=found["matched"],
    )


def cancel(row: Operation) -> None:
    """End an operation after the job that it is at; what was done stays done. Twice is the same as once."""
    with transaction.atomic():
        if _end(row, BackgroundPhase.CANCELLED):
            audit.record("operation.cancel", row)


def run(most_s: float) -> None:
    """Go on with operations in turn, for a while."""
    until = time.monotonic() + most_s
    while time.monotonic() < until and advance():
        pass
    Operation.objects.filter(ended_at__lt=Now() - KEPT).delete()


def advance() -> bool:
    """Go on with the operation that waits longest, for a while; return whether there was one."""
    row = _leased()
    if row is None:
        return False
    origin = audit.Origin(
        row.user.get_username(), audit.Via(row.via), row.user_id, credential=row.credential, request_id=row.request_id
    )
    try:
        with audit.acting(origin), override(row.language):
            _go_on(row)
    except _Overtaken:
        return True
    except (OperationalError, InterfaceError) as error:
        # Its lease ends by itself.
        log.warning("operation %s goes on later: %s", row.pk, type(error).__name__)
        return False
    except Exception as error:
        log.exception("operation %s failed", row.pk)
        # Its text may hold what only the server's log should.
        _end(row, BackgroundPhase.FAILED, fault=type(error).__name__)
    Operation.objects.filter(pk=row.pk).update(leased_until=None)
    return True


def _leased() -> Operation | None:
    """Lease the open operation that was worked on longest ago."""
    free = Q(leased_until=None) | Q(leased_until__lt=Now())
    with transaction.atomic():
        waits = Operation.objects.filter(free, ended_at=None).select_for_update(skip_locked=True, of=("self",))
        row = waits.select_related("user").order_by(F("worked_at").asc(nulls_first=True), "id").first()
        if row is None:
            return None
        Operation.objects.filter(pk=row.pk).update(
            phase=BackgroundPhase.RUNNING,
            started_at=Coalesce("started_at", Now()),
            worked_at=Now(),
            leased_until=Now() + LEASE,
        )
    return row


def _go_on(row: Operation) -> None:
    """Act on jobs for a while; end the operation when none is left."""
    if not row.user.is_active:
        _end(row, BackgroundPhase.FAILED, fault=_("user {user} is deactivated").format(user=row.user.get_username()))
        return
    action = Action(row.action, row.patch, row.reason)
    until = time.monotonic() + SLICE_S
    while time.monotonic() < until:
        after = row.newest + 1 if row.reached is None else row.reached
        chosen = list(matching(row.user, row.filter).filter(number__lt=after)[:SLICE])
        if not chosen:
            _end(row, BackgroundPhase.DONE)
            return
        for job in chosen:
            _act(row, action, job)
            if time.monotonic() >= until:
                changes.announce("operations")
                return


def _act(row: Operation, action: Action, job: Job) -> None:
    """Act on a job and note it, both or neither."""
    with transaction.atomic():
        try:
            refused = action.apply(job, row.user)
        except (OperationalError, InterfaceError):
            raise
        except DatabaseError:
            refused = JobRefusal(409, "conflict", _("somebody else changed this at the same moment"), [])
        noted: dict[str, Any] = {"reached": job.number, "done": F("done") + 1}
        if refused is not None:
            noted = {"reached": job.number, "refused": F("refused") + 1}
            if len(row.refusals) < MOST_REFUSALS:
                row.refusals.append({"number": job.number, "code": refused.code, "detail": refused.detail[:500]})
                noted["refusals"] = row.refusals
        if not Operation.objects.filter(pk=row.pk, reached=row.reached, ended_at=None).update(**noted):
            raise _Overtaken
    row.reached = job.number


def _end(row: Operation, phase: BackgroundPhase, fault: str = "") -> bool:
    """End an operation that has not ended; return whether it had not."""
    changed = Operation.objects.filter(pk=row.pk, ended_at=None)
    has_changed = changed.update(phase=phase, fault=fault[:200], ended_at=Now(), leased_until=None) > 0
    transaction.on_commit(lambda: changes.announce("operations"))
    return has_changed
