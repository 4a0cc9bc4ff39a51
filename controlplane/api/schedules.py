"""Schedules: job files that are submitted at the times of a cron line."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.editing import IF_MATCH
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.permissions import owned
from controlplane.api.serializers import MomentField, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import schedules
from controlplane.schedules import service
from controlplane.schedules.models import Schedule


class ScheduleSerializer(ReadModelSerializer):
    class Meta:
        model = schedules.Schedule
        read = schedules.shown


class ScheduleAskedSerializer(StrictSerializer):
    """A schedule: a job file without values of secrets, and when it is submitted.

    ``overlap`` says what happens while the job before has not ended: ``skip`` this time, ``allow`` both, or ``replace``
    it. ``catch_up`` says what happens to times that the server missed: submit the ``last`` of them, ``none`` or
    ``all`` (at most 24).
    """

    name = serializers.SlugField(max_length=63)
    job = serializers.DictField(help_text="The job file.")
    cron = serializers.CharField(
        max_length=100, help_text="Minute, hour, day of the month, month, day of the week, such as 0 3 * * 1-5."
    )
    zone = serializers.CharField(default="UTC", max_length=63, help_text="A time zone, such as Europe/Berlin.")
    overlap = serializers.ChoiceField(Schedule.Overlap.values, default="skip")
    catch_up = serializers.ChoiceField(Schedule.CatchUp.values, default="last")
    starts_at = MomentField(default=None, allow_null=True, help_text="No time before this one counts.")
    ends_at = MomentField(default=None, allow_null=True, help_text="No time after this one counts.")
    paused = serializers.BooleanField(default=False, source="is_paused")


class ScheduleChangeSerializer(ScheduleAskedSerializer):
    """What is to change; a schedule keeps its name."""

    name = None  # type: ignore[assignment]  # removes the field


RUN = {"run": "python nightly.py", "time_limit": "1h"}
NIGHTLY = {"name": "nightly", "job": RUN, "cron": "0 3 * * *", "zone": "UTC"}
PAUSE = OpenApiExample("Pause it", {"paused": True}, request_only=True)


@extend_schema_view(list=extend_schema(description="The schedules that you may see, newest first."))
class ScheduleViewSet(ListModelMixin, ResourceViewSet):
    """Schedules of jobs."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("schedule {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1"}
    queryset = Schedule.objects.none()
    filterset_class = schedules.ScheduleFilter
    ordering = "-id"
    serializer_class = ScheduleSerializer

    def get_queryset(self) -> QuerySet[Schedule]:
        return schedules.visible(self.user)

    @extend_schema(
        operation_id="schedules_create",
        request=ScheduleAskedSerializer,
        responses={201: schedules.ScheduleDetail},
        examples=[OpenApiExample("Each night", NIGHTLY, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Makes a schedule that submits a job file as you. The file is checked now, and again at each time."""
        row = service.make(self.user, timezone.now(), **self.body(ScheduleAskedSerializer))
        return Response(schedules.detail(row, self.user), status=201)

    @extend_schema(responses=schedules.ScheduleDetail)
    def retrieve(self, request: Request, number: int) -> Response:
        """A schedule with its job file, its next times and its newest runs; its ETag is what a change needs."""
        return Response(schedules.detail(self.get_object(), self.user))

    @extend_schema(
        operation_id="schedules_change",
        request=ScheduleChangeSerializer,
        responses={200: schedules.ScheduleDetail},
        parameters=[IF_MATCH],
        examples=[PAUSE],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Changes or pauses a schedule. For its owner, leads of its project and operators; the job file is submitted
        as the owner, so only the owner changes it."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may change this schedule"))
        taken = ScheduleChangeSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        with transaction.atomic():
            locked = Schedule.objects.select_for_update().get(pk=row.pk)
            self._unchanged(request, locked)
            row = service.change(self.user, locked, timezone.now(), **taken.validated_data)
        return Response(schedules.detail(row, self.user))

    @extend_schema(operation_id="schedules_delete", parameters=[IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a schedule; the jobs that it has submitted stay."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may delete this schedule"))
        self._unchanged(request, row)
        service.delete(row)
        return Response(status=204)

    @extend_schema(operation_id="schedules_run", request=None, responses={200: schedules.ScheduleRun})
    @action(detail=True, methods=["post"])
    def run(self, request: Request, number: int) -> Response:
        """Submits its job file now, as its owner, beside its times. ``outcome`` says whether it was accepted."""
        row = self._own(gettext_noop("only {user} or a lead of project {project} may run this schedule"))
        done = service.run_now(row, timezone.now())
        return Response(schedules.run(done))

    def _own(self, said: str) -> Schedule:
        row: Any = self.get_object()
        owned(self.user, row, _(said))
        return row

    def _unchanged(self, request: Request, row: Schedule) -> None:
        require_if_match(request)
        unless_changed(request, schedules.detail(row, self.user))
