"""The same action on many jobs: each by itself, with an outcome for each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.db import transaction
from django.utils.translation import gettext as _
from rest_framework import serializers

from controlplane.accounts.models import User
from controlplane.api.body import check_bounds
from controlplane.api.problem import Fault, RequestRefused, refusal
from controlplane.api.serializers import StrictSerializer, refuse_unknown
from controlplane.bulk import service
from controlplane.bulk.action import ACTIONS, CHANGE, STOPPING, Action
from controlplane.jobs import models as rows
from controlplane.jobs.refusal import JobRefusal
from controlplane.jobs.section import FieldError
from controlplane.queries import jobs, reordering, stopping
from controlplane.queries.priority_classes import priority_classes
from controlplane.whatif import reorder

MOST: Final = 500
# What is left after this time is told as not tried; a client asks again.
LONGEST_S: Final = 20.0


class BulkSerializer(StrictSerializer):
    """An action, and either the numbers of jobs or filters of the list of jobs."""

    action = serializers.ChoiceField([*ACTIONS, CHANGE])
    jobs = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**63 - 1), default=None, max_length=MOST
    )
    filter = serializers.DictField(
        child=serializers.CharField(max_length=200),
        default=None,
        help_text="Filters as in the list of jobs, such as {state: PENDING, project: nlp}.",
    )
    patch = serializers.DictField(default=None, help_text="The merge patch, where the action is change.")
    reason = serializers.CharField(default="", allow_blank=True, max_length=500)
    dry_run = serializers.BooleanField(default=False)


class BulkItem(msgspec.Struct, frozen=True):
    """What came of one job: ``outcome`` is done, refused or left; with its state after the action, or why not."""

    number: int
    outcome: str
    state: str
    code: str = ""
    detail: str = ""
    errors: list[Fault] = []


class BulkAnswer(msgspec.Struct, frozen=True):
    """What came of each job, in the order asked for.

    ``left`` of them were not tried, because it took too long; ``more`` says that the filter of a dry run matches
    further ones. ``stops`` tells what runs of the jobs, in a dry run that stops them; ``queue`` how the starts of
    waiting jobs move, in a dry run that changes a priority, holds or releases.
    """

    action: str
    dry_run: bool
    done: int
    refused: int
    left: int
    more: bool
    results: list[BulkItem]
    stops: stopping.Stopping | None = None
    queue: reordering.QueueEffect | None = None


def apply(user: User, asked: Mapping[str, Any]) -> BulkAnswer | rows.Operation:
    """Apply an action, as validated by :class:`BulkSerializer`, to each of the jobs in a transaction of its own.

    A dry run does the same, and rolls each back. Where a filter matches more than :data:`MOST` jobs, an operation
    begins that goes on in the background. Raises RequestRefused if the request itself makes no sense.
    """
    act = _action(asked)
    numbers, more = _chosen(user, asked)
    if more and not asked["dry_run"]:
        return service.begin(user, act, asked["filter"])
    until = time.monotonic() + LONGEST_S
    found = {job.number: job for job in jobs.visible(user).filter(number__in=numbers).select_related("project", "user")}
    results = [
        _one(user, number, found.get(number), act, dry_run=asked["dry_run"])
        if time.monotonic() < until
        else BulkItem(number, "left", "")
        for number in numbers
    ]
    count = {outcome: sum(1 for each in results if each.outcome == outcome) for outcome in ("done", "refused", "left")}
    done = [found[each.number] for each in results if each.outcome == "done"]
    stops = queue = None
    if asked["dry_run"] and done and _reorders(act):
        queue = reordering.effect(user, done, act.name, _priority(act))
    if asked["dry_run"] and act.name in STOPPING:
        stops = stopping.of_jobs(done, user)
    return BulkAnswer(act.name, asked["dry_run"], **count, more=more, results=results, stops=stops, queue=queue)


def _reorders(act: Action) -> bool:
    """Whether the action changes the order of the queue."""
    return act.name in reorder.ACTIONS and (act.name != CHANGE or _priority(act) is not None)


def _priority(act: Action) -> int | None:
    """The number of the priority that a change gives; None if it gives none."""
    given = (act.patch or {}).get("priority")
    if isinstance(given, str):
        return next((each.value for each in priority_classes() if each.name == given), None)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _action(asked: Mapping[str, Any]) -> Action:
    if (asked["action"] == CHANGE) != (asked["patch"] is not None):
        detail = _("patch says what changes, and goes with the action change only")
        raise RequestRefused(422, "invalid", detail, errors=[FieldError("/patch", detail, "invalid")])
    if asked["patch"] is not None:
        check_bounds(asked["patch"])
    return Action(asked["action"], asked["patch"], asked["reason"].strip())


def _chosen(user: User, asked: Mapping[str, Any]) -> tuple[list[int], bool]:
    """Return the numbers of the jobs, at most :data:`MOST`, and whether the filter matches more."""
    if (asked["jobs"] is None) == (asked["filter"] is None):
        detail = _("name either jobs or a filter")
        raise RequestRefused(422, "invalid", detail, errors=[FieldError("/jobs", detail, "invalid")])
    if asked["jobs"] is not None:
        return list(dict.fromkeys(asked["jobs"])), False
    known = [name for name in jobs.JobFilter.base_filters if name != "sort"]
    refuse_unknown(asked["filter"], known)
    if not any(asked["filter"].values()):
        detail = _("a filter needs at least one of {names}").format(names=", ".join(known))
        raise RequestRefused(422, "invalid", detail, errors=[FieldError("/filter", detail, "invalid")])
    numbers = list(service.matching(user, asked["filter"]).values_list("number", flat=True)[: MOST + 1])
    return numbers[:MOST], len(numbers) > MOST


def _one(user: User, number: int, job: rows.Job | None, act: Action, *, dry_run: bool) -> BulkItem:
    if job is None:
        return BulkItem(
            number, "refused", "", "not_found", _("there is no job {number} that you may see").format(number=number)
        )
    try:
        with transaction.atomic():
            refused: JobRefusal | RequestRefused | None = act.apply(job, user)
            state = rows.Job.objects.values_list("state", flat=True).get(id=job.id)
            if dry_run:
                transaction.set_rollback(True)
    except Exception as error:
        refused, state = refusal(error), job.state
        if refused.status >= 500:
            raise
    if refused is None:
        return BulkItem(number, "done", state)
    faults = [Fault(each.pointer, each.detail, each.code) for each in refused.errors[:10]]
    return BulkItem(number, "refused", job.state, refused.code, refused.detail, faults)
