"""Attempts: one by its id, and in-place adjustments of its running processes, under the same pid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.mixins import RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from agents.protocol import Share
from controlplane.accounts import permissions
from controlplane.accounts.permissions import Permit
from controlplane.api.permissions import owned
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs import adjust
from controlplane.jobs import models as rows
from controlplane.jobs.section import FieldError
from controlplane.queries import attempts

LONGEST_REASON = 500


class Adjustment(Share, frozen=True, omit_defaults=True):
    """A change of the resources of a running attempt's processes. Absent fields stay; null resets a field to its value
    at the start.

    ``cpus_milli`` are cores in thousandths; ``cpus`` names them by the kernel's numbers instead. Weights are from 1 to
    10000; 100 is the default. ``memory_bytes`` is the limit. On a time-shared device, ``queue_class`` *short* keeps a
    stage on the top level and *long* on the last; ``quantum_s`` is the length of its turns in seconds. ``ranks`` are
    the parts to change; all of them if absent.
    """

    ranks: list[int] | None = None
    reason: str = ""


class AttemptSerializer(ReadModelSerializer):
    class Meta:
        model = attempts.Attempt

    def shown(self, rows: Iterable[Any]) -> Sequence[Any]:
        return attempts.shown(rows)


@extend_schema_view(retrieve=extend_schema(description="An attempt by its id."))
class AttemptViewSet(RetrieveModelMixin, ResourceViewSet):
    """Attempts at running a stage."""

    lookup_value_converter = "uuid"
    examples = {"name": "00000000-0000-4000-8000-000000000000"}
    queryset = rows.Attempt.objects.none()
    serializer_class = AttemptSerializer

    def get_object(self) -> rows.Attempt:
        return attempts.found(self.user, self.kwargs["name"])

    @extend_schema(
        request=Adjustment,
        examples=[
            OpenApiExample("Pause", {"suspended": True, "reason": "makes room for a demonstration"}, request_only=True),
            OpenApiExample("Behind others", {"cpu_weight": 20, "queue_class": "long"}, request_only=True),
        ],
    )
    @action(detail=True, methods=["post"])
    def adjust(self, request: Request, name: str) -> Response:
        """Changes the running processes in place, under the same pids and without a restart. The agent applies it
        within two seconds; ``seen_rev`` of a part tells that it did, and ``notes`` what it could not apply. Only staff
        may give more than the stage asked for, or precedence over others."""
        user, attempt = self.user, self.get_object()
        job = attempt.stage.job
        owned(user, job, _("only {user}, a lead of project {project} or staff may adjust this attempt"))
        given, reason, ranks = _wish(request.data)
        if not permissions.may(user, Permit.MOVE_ATTEMPTS) and (field := adjust.beyond(attempt, given)):
            detail = _(
                "{field} would give it more than its stage has asked for, or a place before others: only staff may"
            ).format(field=field)
            raise RequestRefused(
                403, "permission_denied", detail, errors=[FieldError(f"/{field}", detail, "permission_denied")]
            )
        try:
            with transaction.atomic():
                adjust.adjust(attempt.id, user.get_username(), reason=reason, ranks=ranks, **given)
        except adjust.Unadjustable as error:
            if error.field:
                raise _wrong(error.field, str(error)) from None
            raise RequestRefused(409, "not_adjustable", str(error)) from None
        return self.shown(self.get_object())


def _wish(data: Any) -> tuple[dict[str, Any], str, list[int] | None]:
    """The fields to change, the reason, and the ranks; raises 422 with the invalid field."""
    if not isinstance(data, dict):
        raise _wrong("", _('the body must be an object of what is to change, such as {"suspended": true}'))
    given = dict(data)
    reason, ranks = given.pop("reason", ""), given.pop("ranks", None)
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise _wrong("reason", _("reason must be a text of at most {most} characters").format(most=LONGEST_REASON))
    whole = isinstance(ranks, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in ranks)
    if ranks is not None and (not whole or not ranks):
        raise _wrong("ranks", _("ranks must list the numbers of one rank or more; leave it out for all of them"))
    try:
        adjust.check(given)
    except adjust.Unadjustable as error:
        raise _wrong(error.field, str(error)) from None
    return given, reason.strip(), ranks


def _wrong(field: str, detail: str) -> RequestRefused:
    return RequestRefused(422, "invalid", detail, errors=[FieldError(f"/{field}" if field else "", detail, "invalid")])
