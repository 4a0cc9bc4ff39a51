"""Functions: one file of code that answers calls, at once or from a queue."""

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
from controlplane.api.problem import RequestRefused, not_found
from controlplane.api.serializers import PageSerializer, ReadModelSerializer, StrictSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.functions import calls as queue
from controlplane.functions import deploy, options
from controlplane.functions.models import DeployedFunction, FunctionCall
from controlplane.queries import functions


class FunctionSerializer(ReadModelSerializer):
    class Meta:
        model = functions.Function
        read = functions.shown


class FunctionOptionsSerializer(StrictSerializer):
    """How a function is called; what is absent has its usual value, or stays as it is."""

    concurrency = serializers.IntegerField(
        required=False, min_value=1, max_value=options.MOST_AT_ONCE, help_text="Calls that a replica runs at once."
    )
    batch = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=options.MOST_IN_A_BATCH,
        help_text="The most events that handle_batch gets.",
    )
    max_wait_ms = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=options.LONGEST_WAIT_MS,
        help_text="How long an event waits for others of its batch.",
    )
    timeout_s = serializers.IntegerField(
        required=False, min_value=1, max_value=options.LONGEST_S, help_text="How long a handler may take."
    )
    tries = serializers.IntegerField(
        required=False, min_value=1, max_value=options.MOST_TRIES, help_text="How often a queued call may fail."
    )
    min = serializers.IntegerField(required=False, min_value=0, max_value=256, help_text="Replicas that are kept warm.")
    max = serializers.IntegerField(required=False, min_value=1, max_value=256, help_text="The most replicas.")
    idle_s = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=options.LONGEST_IDLE_S,
        help_text="After how long without calls there are min of them again.",
    )
    template = serializers.DictField(required=False, help_text="Keys of a job file: devices, env, setup, pool, ...")


class FunctionChangeSerializer(StrictSerializer):
    """What changes of a function: its code, as text or as a bundle, and options."""

    code = serializers.CharField(
        required=False,
        max_length=deploy.LARGEST_CODE,
        trim_whitespace=False,
        help_text="The text of the file; more than 64 KiB come as a bundle.",
    )
    bundle = serializers.RegexField(r"\A[0-9a-f]{64}\Z", required=False, help_text="SHA-256 of an uploaded bundle.")
    file = serializers.CharField(required=False, max_length=200, help_text="The file with handle(event).")
    options = FunctionOptionsSerializer(required=False)


class FunctionAskedSerializer(FunctionChangeSerializer):
    """A function to deploy."""

    name = serializers.CharField(max_length=63)
    project = serializers.CharField(required=False, max_length=63)


class CallAskedSerializer(StrictSerializer):
    """A call to leave in the queue; with the ``key`` of one that is there it is that one."""

    event = serializers.JSONField(allow_null=True, default=None, help_text="Any JSON value, at most 256 KiB of it.")
    key = serializers.CharField(required=False, default="", allow_blank=True, max_length=100)


CODE = "def handle(event):\n    return {'sum': sum(event)}\n"
NOUN = gettext_noop("only {user} or a lead of project {project} may change this function")


@extend_schema_view(list=extend_schema(description="The functions that you may see, newest first."))
class FunctionViewSet(ListModelMixin, ResourceViewSet):
    """Functions."""

    parser_classes = [BoundedJSON, BoundedMergePatch]
    noun = gettext_noop("function {name}")
    lookup_field, lookup_url_kwarg, lookup_value_converter = "pk", "number", "int"
    examples = {"number": "1", "call": "1"}
    queryset = DeployedFunction.objects.none()
    filterset_class = functions.FunctionFilter
    ordering = "-number"
    serializer_class = FunctionSerializer

    def get_queryset(self) -> QuerySet[DeployedFunction]:
        return functions.visible(self.user)

    @extend_schema(
        operation_id="functions_create",
        request=FunctionAskedSerializer,
        responses={201: functions.FunctionDetail},
        examples=[OpenApiExample("One file", {"name": "add", "code": CODE}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Deploys a function, whose replicas are submitted as you."""
        row = deploy.make(self.user, self.body(FunctionAskedSerializer), timezone.now())
        return Response(functions.detail(row, self.user), status=201)

    @extend_schema(responses=functions.FunctionDetail)
    def retrieve(self, request: Request, number: int) -> Response:
        """A function with its code, replicas and last hour; its ETag is what a change needs."""
        return Response(functions.detail(self.get_object(), self.user))

    @extend_schema(
        operation_id="functions_change",
        request=FunctionChangeSerializer,
        responses={200: functions.FunctionDetail},
        parameters=[IF_MATCH],
        examples=[OpenApiExample("More at once", {"options": {"concurrency": 4}}, request_only=True)],
    )
    def partial_update(self, request: Request, number: int) -> Response:
        """Deploys other code or options; replicas are replaced one by one where they are to be others. For its owner,
        as whom the replicas are submitted."""
        row = self._own()
        taken = FunctionChangeSerializer(data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        with transaction.atomic():
            self._unchanged(request, row)
            row = deploy.change(self.user, row, taken.validated_data, timezone.now())
        return Response(functions.detail(row, self.user))

    @extend_schema(operation_id="functions_delete", parameters=[IF_MATCH], responses={204: None})
    def destroy(self, request: Request, number: int) -> Response:
        """Deletes a function with its queue: it takes no calls any more, and its replicas end."""
        row = self._own()
        self._unchanged(request, row)
        deploy.delete(row, timezone.now())
        return Response(status=204)

    @extend_schema(
        operation_id="functions_calls", responses=functions.FunctionCallPage, parameters=[PageSerializer], filters=False
    )
    @action(detail=True, filterset_class=None)
    def calls(self, request: Request, number: int) -> Response:
        """The queued calls of a function, newest first."""
        self.asked(PageSerializer)
        row = self._row()
        rows = row.calls.select_related("user")
        return self.page(rows, "-id", lambda found: functions.shown_calls(found, row, self.user))

    @extend_schema(
        operation_id="functions_call",
        request=CallAskedSerializer,
        responses={201: functions.FunctionCall, 200: functions.FunctionCall},
        examples=[OpenApiExample("Later", {"event": [1, 2], "key": "order-17"}, request_only=True)],
    )
    @calls.mapping.post
    def leave_call(self, request: Request, number: int) -> Response:
        """Leaves a call in the queue, which is delivered at least once. For those who may submit to its project."""
        row = self._row()
        if not functions.may_call(self.user, row):
            said = _("you may not submit to project {project}").format(project=row.service.project.name)
            raise RequestRefused(403, "permission_denied", said)
        asked = self.body(CallAskedSerializer)
        call, is_new = queue.leave(self.user, row, asked["event"], asked["key"], timezone.now())
        return Response(functions.shown_calls([call], row, self.user)[0], status=201 if is_new else 200)

    @extend_schema(operation_id="functions_call_show", responses=functions.FunctionCall)
    @action(detail=True, url_path="calls/<int:call>", filterset_class=None, pagination_class=None)
    def call(self, request: Request, number: int, call: int) -> Response:
        """A queued call with its result."""
        row = self._row()
        return Response(functions.shown_calls([self._call(row, call)], row, self.user)[0])

    @extend_schema(operation_id="functions_call_retry", request=None, responses=functions.FunctionCall)
    @action(detail=True, methods=["post"], url_path="calls/<int:call>/retry")
    def retry(self, request: Request, number: int, call: int) -> Response:
        """Queues a call that was given up once more. For the owner of the function, leads and operators."""
        row = self._own()
        found = queue.again(self._call(row, call), timezone.now())
        return Response(functions.shown_calls([found], row, self.user)[0])

    def _row(self) -> DeployedFunction:
        row: Any = self.get_object()
        return row

    def _call(self, row: DeployedFunction, call: int) -> FunctionCall:
        found = row.calls.select_related("user").filter(pk=call).first()
        if found is None:
            raise not_found(_("call"))
        return found

    def _own(self) -> DeployedFunction:
        row = self._row()
        owned(self.user, row.service, _(NOUN))
        return row

    def _unchanged(self, request: Request, row: DeployedFunction) -> None:
        require_if_match(request)
        unless_changed(request, functions.detail(row, self.user))
