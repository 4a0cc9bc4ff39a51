"""What people do with services: make, update, scale, roll back, delete. The replicas follow (``services.replicas``).

The replicas of a service are jobs of its owner, submitted with the rights that the owner has then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from controlplane.accounts import audit
from controlplane.accounts.models import Project, User
from controlplane.jobs import masked, possible, sealed
from controlplane.jobs import spec as jobfile
from controlplane.jobs.section import FieldError
from controlplane.services import file
from controlplane.services.models import InferenceService, Promotion, ServiceRevision

MOST_OF_A_PROJECT: Final = 100
MOST_REVISIONS: Final = 50
LABEL: Final = "service"


class ServiceRefused(Exception):
    """Raised where a service cannot be as asked. ``errors`` name the fields at fault."""

    def __init__(self, code: str, detail: str, pointer: str = "", status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.status = code, status
        self.errors = [FieldError(pointer, detail, code)] if pointer else []


def make(user: User, given: Mapping[str, Any], now: datetime, *, noun: str = "service") -> InferenceService:
    """Make a service of this user; the audit log calls it ``noun``. Raises :class:`ServiceRefused`, and ``InvalidSpec``
    with the file's faults."""
    read, resolved = _checked(given, user)
    with transaction.atomic():
        project = Project.objects.select_for_update().get(pk=resolved.project.pk)
        if InferenceService.objects.filter(project=project, name=read.name, deleted_at=None).exists():
            said = _("project {project} has a service or function {name} already")
            raise ServiceRefused("exists", said.format(project=project.name, name=read.name), "/name", 409)
        if InferenceService.objects.filter(project=project).count() >= MOST_OF_A_PROJECT:
            said = _("project {project} has {most} services; delete one that is not used any more")
            raise ServiceRefused("too_many", said.format(project=project.name, most=MOST_OF_A_PROJECT), "", 409)
        row = InferenceService.objects.create(
            project=project,
            name=read.name,
            user=user,
            settings=read.settings,
            wanted=max(1, read.settings["min"]),
            changed_at=now,
        )
        add_revision(row, 1, given, read, resolved.bundle, user.get_username(), now)
        audit.record(f"{noun}.add", row, after=_told(row))
    return row


def change(
    user: User, row: InferenceService, given: Mapping[str, Any], now: datetime, *, noun: str = "service"
) -> InferenceService:
    """Give a service another file. Where its replicas are to be others, that is a new revision, which is rolled out.

    Raises :class:`ServiceRefused`, also where somebody else than the owner does it, as whom the replicas are submitted;
    and ``InvalidSpec``.
    """
    if row.user_id != user.pk:
        said = _("the replicas are submitted as {user}: only they may change the file")
        raise ServiceRefused("permission_denied", said.format(user=row.user.get_username()), "", 403)
    read, resolved = _checked({"project": row.project.name, **given}, user)
    if (read.name, resolved.project.pk) != (row.name, row.project_id):
        raise ServiceRefused("invalid", _("a service keeps its name and its project"), "/name")
    with transaction.atomic():
        locked = _locked(row)
        before, newest = _told(locked), locked.revisions.first()
        current = locked.revisions.get(number=locked.revision)
        carried = _carried(current, given)
        if carried:
            read = replace(read, template=file.read(file.with_promoted(given)).template)
        was = (current.template, current.health, current.bundle, current.model)
        if was != (read.template, read.health, resolved.bundle, carried.get("model", {})):
            number = (newest.number if newest else 0) + 1
            add_revision(locked, number, given, read, resolved.bundle, user.get_username(), now, **carried)
            turn_to(locked, number, current)
        else:
            current.file = dict(given)
            current.save(update_fields=["file"])
            if locked.promotions.filter(state=Promotion.PromotionState.TRIAL).exists():
                # The trial of a promotion goes on with its share.
                read = replace(read, settings={**read.settings, "canary": locked.settings["canary"]})
        locked.settings = read.settings
        _save(locked, now, before, f"{noun}.change")
    return locked


def scale(row: InferenceService, low: int | None, high: int | None, now: datetime) -> InferenceService:
    """Change the least and the most replicas. Raises :class:`ServiceRefused`."""
    with transaction.atomic():
        locked = _locked(row)
        before = _told(locked)
        bounds = {
            "min": locked.settings["min"] if low is None else low,
            "max": locked.settings["max"] if high is None else high,
        }
        if bounds["min"] > bounds["max"]:
            raise ServiceRefused("invalid", _("max must not be less than min"), "/max")
        locked.settings = {**locked.settings, **bounds}
        _save(locked, now, before, "service.scale")
    return locked


def set_canary(row: InferenceService, share: int, now: datetime) -> InferenceService:
    """Give the present revision this share of the replicas and requests, in percent; 100 ends the trial."""
    with transaction.atomic():
        locked = _locked(row)
        before = _told(locked)
        locked.settings = {**locked.settings, "canary": share}
        _save(locked, now, before, "service.canary")
    return locked


def roll_back(row: InferenceService, number: int | None, now: datetime) -> InferenceService:
    """Return to a former revision, to that which served last if no number is given. Raises :class:`ServiceRefused`."""
    with transaction.atomic():
        locked = _locked(row)
        before = _told(locked)
        number = number or locked.former
        if number is None:
            raise ServiceRefused("no_former", _("no other revision of it has served yet"), "", 409)
        target = locked.revisions.filter(number=number).first()
        if target is None or number == locked.revision:
            said = _("there is no revision {number} to return to").format(number=number)
            raise ServiceRefused("no_revision", said, "/revision", 409)
        current = locked.revisions.get(number=locked.revision)
        target.failures, target.is_failed, target.retry_at, target.fault = 0, False, None, ""
        target.save(update_fields=["failures", "is_failed", "retry_at", "fault"])
        turn_to(locked, number, current)
        # A return is for all of the requests.
        locked.settings = {**locked.settings, "canary": 100}
        _save(locked, now, before, "service.rollback")
    return locked


def delete(row: InferenceService, now: datetime, *, noun: str = "service") -> None:
    """Delete a service: it takes no requests any more, its replicas drain and end."""
    with transaction.atomic():
        locked = _locked(row)
        audit.record(f"{noun}.delete", locked, before=_told(locked))
        locked.deleted_at = locked.changed_at = now
        locked.save(update_fields=["deleted_at", "changed_at"])


def turn_to(row: InferenceService, number: int, current: ServiceRevision) -> None:
    """Let a revision be the one that is to serve; the one before is kept in reserve if it ever served."""
    if current.ready_at is not None and not current.is_failed:
        row.former = current.number
    elif row.former == number:
        row.former = None
    row.revision, row.fault = number, ""


def _carried(current: ServiceRevision, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the promoted model that goes on being served with another file: unless that names another model."""
    if current.model_job is None or given.get("model") != current.file.get("model"):
        return {}
    return {"model_job": current.model_job, "model": current.model}


def _locked(row: InferenceService) -> InferenceService:
    locked = (
        InferenceService.objects.select_for_update(of=("self",))
        .select_related("project", "user")
        .filter(pk=row.pk, deleted_at=None)
        .first()
    )
    if locked is None:
        raise ServiceRefused("deleted", _("this service is being deleted"), "", 409)
    return locked


def _save(row: InferenceService, now: datetime, before: dict[str, Any], action: str) -> None:
    row.wanted = min(max(row.wanted, row.settings["min"]), max(row.settings["max"], row.settings["min"]))
    row.changed_at = now
    row.save()
    if (after := _told(row)) != before:
        audit.record(action, row, before=before, after=after)


def add_revision(
    row: InferenceService,
    number: int,
    given: Mapping[str, Any],
    read: file.ServiceFile,
    bundle: str,
    made_by: str,
    now: datetime,
    *,
    model_job: int | None = None,
    model: Mapping[str, Any] | None = None,
) -> None:
    """Add a revision, and delete old ones that nothing is kept for; with ``model`` it serves a promoted model."""
    row.revisions.create(
        number=number,
        file=dict(given),
        template=read.template,
        health=read.health,
        bundle=bundle,
        model_job=model_job,
        model=dict(model or {}),
        made_by=made_by,
        made_at=now,
    )
    kept = {row.revision, row.former, number}
    old = row.revisions.exclude(number__in=[each for each in kept if each]).exclude(
        replicas__ended_at=None, replicas__isnull=False
    )
    row.revisions.filter(pk__in=[one.pk for one in old.order_by("-number")[MOST_REVISIONS:]]).delete()


def _checked(given: Mapping[str, Any], user: User) -> tuple[file.ServiceFile, jobfile.Resolved]:
    """Read a service file, and check the job of a replica as this user's."""
    read = file.read(dict(given))
    spec = file.stage_of(read.template) | {"name": read.name} | ({"project": read.project} if read.project else {})
    try:
        (resolved,) = jobfile.resolve_all([spec], user)
        possible.check([resolved])
    except jobfile.InvalidSpec as refused:
        faults = [
            FieldError(f"/template{each.pointer.removeprefix('/stages/0')}", each.detail, each.code)
            for each in refused.errors
        ]
        raise jobfile.InvalidSpec(faults) from None
    if sealed.part(spec, [stage.request for stage in resolved.stages]).values:
        said = _("a service keeps no secret values; name secrets of the project under secrets")
        raise ServiceRefused("secret_value", said, "/template/env")
    return read, resolved


def _told(row: InferenceService) -> dict[str, Any]:
    """Return what an audit entry says of a service."""
    bounds = {key: row.settings[key] for key in ("min", "max", "canary")}
    return {"name": row.name, "revision": row.revision, "owner": row.user.get_username(), **bounds}


def shown_file(revision: ServiceRevision) -> dict[str, Any]:
    """Return the file of a revision as it may be shown."""
    return masked.shown(revision.file)
