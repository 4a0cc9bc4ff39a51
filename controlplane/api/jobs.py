"""Jobs: submit, list, read, and end them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, cast

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import get_language, gettext, gettext_noop
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    PolymorphicProxySerializer,
    extend_schema,
    extend_schema_view,
)
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import bulk, byte_range, job_stream, log_stream, open_streams
from controlplane.api.arrays import ArraySerializer
from controlplane.api.body import LARGEST_BATCH, BoundedJSON, BoundedMergePatch, BoundedYAML, check_bounds
from controlplane.api.editing import IF_UNCHANGED
from controlplane.api.mixins import unless_changed
from controlplane.api.operations import OperationSerializer
from controlplane.api.permissions import owned
from controlplane.api.problem import Problem, RequestRefused
from controlplane.api.serializers import (
    PageSerializer,
    ReadModelSerializer,
    ReasonQuerySerializer,
    ReasonSerializer,
    StrictSerializer,
    refuse_unknown,
)
from controlplane.api.throttle import PerUser, SearchesPerUser
from controlplane.api.viewsets import ResourceViewSet, reasoned_action
from controlplane.jobs import change, profiling, service, signals, traces, web_sessions
from controlplane.jobs import models as rows
from controlplane.jobs import spec as jobfile
from controlplane.jobs.section import FieldError
from controlplane.queries import (
    arrays,
    failures,
    job_rows,
    job_watch,
    jobs,
    operations,
    pace,
    receipts,
    waits,
    web_ports,
)
from controlplane.queries import attempts as tries
from controlplane.queries import counterfactuals as answers
from controlplane.queries import events as history
from controlplane.queries import logs as job_logs
from controlplane.queries import metrics as measured
from controlplane.queries import traces as traced
from controlplane.queries import values as reported
from controlplane.queries.refusals import Unanswerable
from controlplane.queries.untrusted import sandboxed

MOST_AT_ONCE = 10_000
LONGEST_REASON = 500
HELLO = {"name": "hello", "run": "echo hello"}


class JobSerializer(ReadModelSerializer):
    class Meta:
        model = job_rows.Job
        read = jobs.shown


OF_A_FILE: list[Any] = [JobSerializer, ArraySerializer]
SUBMITTED = PolymorphicProxySerializer("Submitted", OF_A_FILE, resource_type_field_name=None)


class AcceptedSerializer(serializers.Serializer):
    """One accepted job of a batch, or an array, which has no id."""

    id = serializers.UUIDField(allow_null=True)
    number = serializers.IntegerField()


class AcceptedBatchSerializer(serializers.Serializer):
    """The accepted jobs, in the order in which they were sent."""

    results = AcceptedSerializer(many=True)


class BatchSerializer(StrictSerializer):
    """Job files that are accepted all or none."""

    jobs = serializers.ListField()


class SignalSerializer(StrictSerializer):
    """A signal, and the stage that gets it; all that run by default."""

    signal = serializers.ChoiceField(signals.SIGNALS)
    stage = serializers.CharField(default="", allow_blank=True, max_length=63)
    reason = serializers.CharField(default="", allow_blank=True, max_length=LONGEST_REASON)


class SignalSentSerializer(serializers.Serializer):
    """To how many processes of a job a signal goes."""

    number = serializers.IntegerField()
    signal = serializers.CharField()
    processes = serializers.IntegerField()


class TraceAskSerializer(StrictSerializer):
    """What to profile: the rank of the node within the stage, with which tool, and for how many seconds."""

    tool = serializers.ChoiceField(profiling.TOOLS, default=profiling.TOOLS[0])
    seconds = serializers.IntegerField(default=10, min_value=1, max_value=traces.LONGEST_S)
    stage = serializers.CharField(default="", allow_blank=True, max_length=63)
    rank = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1)
    reason = serializers.CharField(default="", allow_blank=True, max_length=LONGEST_REASON)


class PortOpenSerializer(StrictSerializer):
    """Which of the named ports of a job to open: of which stage, if several have it, and on the node of which rank."""

    port = serializers.RegexField(r"\A[a-z0-9-]{1,32}\Z", help_text="Its name in the job file.")
    stage = serializers.CharField(default="", allow_blank=True, max_length=63)
    rank = serializers.IntegerField(default=0, min_value=0, max_value=2**31 - 1)
    reason = serializers.CharField(default="", allow_blank=True, max_length=LONGEST_REASON)


class EventQuerySerializer(PageSerializer):
    """A page of events and its order."""

    sort = serializers.ChoiceField(
        ["seq", "-seq"], default="seq", help_text="seq (oldest first) or -seq (newest first)."
    )


class StreamQuerySerializer(StrictSerializer):
    """Selects a stage."""

    stage = serializers.CharField(default="", allow_blank=True, help_text="Name of a stage; all by default.")


class StreamOfSerializer(StrictSerializer):
    """Selects a log stream."""

    stage = serializers.CharField(
        default="", allow_blank=True, help_text="Name of a stage; by default the one that started last."
    )
    attempt = serializers.IntegerField(
        default=None, max_value=2**31 - 1, help_text="Number of an attempt; by default the newest."
    )
    rank = serializers.IntegerField(default=0, max_value=2**31 - 1, help_text="Rank of the node within the attempt.")
    stream = serializers.CharField(default="both", help_text="out, err, or both in the order of their arrival.")


class LogFollowSerializer(StreamOfSerializer):
    """From where on which stream is followed."""

    offset = serializers.IntegerField(
        default=None, max_value=2**63 - 1, help_text="Where to begin, in bytes of this stream."
    )
    tail = serializers.IntegerField(default=None, help_text="Begin so many lines before the end instead.")


class LogQuerySerializer(LogFollowSerializer):
    """Which bytes of which stream."""

    limit = serializers.IntegerField(
        default=job_logs.USUAL_BYTES,
        max_value=2**63 - 1,
        help_text=f"At most so many bytes, up to {job_logs.MOST_BYTES:,}.",
    )


class LogSearchSerializer(StreamOfSerializer):
    """What to look for, and where."""

    text = serializers.CharField(trim_whitespace=False)
    offset = serializers.IntegerField(
        default=0, min_value=0, max_value=2**63 - 1, help_text="Where to begin, in bytes of this stream."
    )
    limit = serializers.IntegerField(
        default=job_logs.USUAL_MATCHES, help_text=f"At most so many lines, up to {job_logs.MOST_MATCHES:,}."
    )
    ignore_case = serializers.BooleanField(
        default=False, help_text="Take small and capital letters of ASCII for the same."
    )


TEXT = OpenApiParameter(
    "text",
    str,
    required=True,
    description=f"Plain text on one line, of up to {job_logs.LONGEST_TEXT} characters; it is no pattern.",
    examples=[OpenApiExample("An error", "CUDA out of memory")],
)


class MetricQuerySerializer(StrictSerializer):
    """The span to show, in seconds back from now, or from the job's end."""

    since_s = serializers.FloatField(
        default=900.0, min_value=1, max_value=measured.LONGEST_S,
        help_text="How many seconds back, up to 14 days; 900 by default.",
    )  # fmt: skip


class ValueQuerySerializer(StreamQuerySerializer):
    """Selects reported metrics."""

    name = serializers.CharField(
        default="", allow_blank=True, help_text="Name of a number, such as loss; all by default."
    )


@extend_schema_view(
    list=extend_schema(description="The jobs that you may see, newest first."),
    retrieve=extend_schema(description="A job with its stages, by number or id."),
)
class JobViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Jobs."""

    parser_classes = [BoundedJSON, BoundedYAML, BoundedMergePatch]
    examples = {"name": "1", "trace": "00000000-0000-4000-8000-000000000000"}
    queryset = rows.Job.objects.none()
    filterset_class = jobs.JobFilter
    serializer_class = JobSerializer

    def get_queryset(self) -> QuerySet[rows.Job]:
        return job_rows.whole(jobs.visible(self.user))

    def get_ordering(self) -> str:
        return jobs.order_of(self.request.query_params)

    def get_object(self) -> rows.Job:
        return jobs.found(self.user, self.kwargs["name"])

    def is_idempotent(self, request: Request) -> bool:
        return not request.query_params.get("dry_run")

    @extend_schema(
        operation_id="jobs_submit",
        request={"application/json": OpenApiTypes.OBJECT, "application/yaml": OpenApiTypes.STR},
        responses={201: SUBMITTED, 200: OpenApiTypes.OBJECT},
        parameters=[
            OpenApiParameter(
                "dry_run", str, enum=["validate", "placement"], description="Submit nothing; say what would be."
            )
        ],
        examples=[OpenApiExample("One stage", HELLO, request_only=True, media_type="application/json")],
    )
    def create(self, request: Request) -> Response:
        """Submits a job file, as JSON or YAML; the answer is the job, or the array where the file has one."""
        dry_run, spec = request.query_params.get("dry_run", ""), cast("dict[str, Any]", request.data)
        check_bounds(spec)
        if dry_run == "validate":
            resolved = jobfile.resolve_all([spec], self.user)[0]
            warnings = [{"pointer": pointer, "detail": detail} for pointer, detail in resolved.warnings]
            return Response({**resolved.plain(), "warnings": warnings})
        if dry_run == "placement":
            return Response(jobs.tried(spec, self.user))
        if dry_run:
            raise RequestRefused(400, "invalid", _("dry_run must be validate or placement"))
        (made,) = service.submit_many([spec], self.user)
        if isinstance(made, rows.Array):
            response = Response(arrays.shown([made])[0], status=201)
            response["Location"] = f"/api/v1/arrays/{made.number}"
            return response
        response = self.shown(made, status=201)
        response["Location"] = f"/api/v1/jobs/{made.number}"
        return response

    @extend_schema(
        operation_id="jobs_submit_batch",
        request=BatchSerializer,
        responses={201: AcceptedBatchSerializer},
        examples=[OpenApiExample("Two jobs", {"jobs": [HELLO, HELLO]}, request_only=True)],
    )
    @action(
        detail=False, methods=["post"], parser_classes=[BoundedJSON], largest_body=LARGEST_BATCH, filterset_class=None
    )
    def batch(self, request: Request) -> Response:
        """Submits up to 10,000 job files: all of them, or none where one has a fault."""
        files = self.body(BatchSerializer)["jobs"]
        if not 1 <= len(files) <= MOST_AT_ONCE:
            detail = _("jobs must hold 1 to {most:,} job files, not {count:,}")
            raise RequestRefused(422, "invalid", detail.format(most=MOST_AT_ONCE, count=len(files)))
        for each in files:
            check_bounds(each)
        accepted = service.submit_many(files, self.user)
        results = [{"id": getattr(one, "id", None), "number": one.number} for one in accepted]
        return Response({"results": results}, status=201)

    @extend_schema(
        operation_id="jobs_change",
        request={"application/merge-patch+json": OpenApiTypes.OBJECT, "application/json": OpenApiTypes.OBJECT},
        responses={200: JobSerializer},
        parameters=[ReasonQuerySerializer, IF_UNCHANGED],
        examples=[
            OpenApiExample("A label", {"labels": {"sweep": "7"}}, request_only=True, media_type="application/json")
        ],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a job by a merge patch of its job file: ``name`` and ``labels`` at any time, ``priority`` until it
        ends, ``hold``, ``project``, ``pool`` and the times of stages (``time_limit``, ``expected``, ``deadline``,
        ``begin``) while it waits, and their size (``devices``, ``nodes``, ``cpus``, ``memory``, ``disk``,
        ``disk_bandwidth``, ``network_bandwidth``, ``topology``,
        ``avoid``, ``only_on``, ``constraint``) before their first attempt. Keys of one stage stand under ``stages`` by
        its name. With ``If-Match`` only as it was read."""
        job, reason = self._mine(), self.asked(ReasonQuerySerializer)["reason"].strip()
        check_bounds(request.data)

        def check() -> None:
            if "If-Match" in request.headers:
                unless_changed(request, self.get_serializer(self.get_object()).data)

        change.change(job, request.data, self.user, reason, check=check)
        return self.shown(self.get_object())

    @reasoned_action
    def requeue(self, request: Request, name: str) -> Response:
        """Stops what runs of the job, and queues it again; it goes on from its checkpoints. Costs none of its
        retries."""
        return self._end(service.requeue)

    @extend_schema(
        request=SignalSerializer,
        responses={200: SignalSentSerializer},
        examples=[OpenApiExample("Save now", {"signal": "SIGUSR1"}, request_only=True)],
    )
    @action(detail=True, methods=["post"])
    def signal(self, request: Request, name: str) -> Response:
        """Sends a signal to the main processes of the job's running stages, or of one of them. Each agent does so once,
        within two seconds."""
        job, asked = self._mine(), self.body(SignalSerializer)
        actor = self.user.get_username()
        count = signals.send(job, asked["signal"], actor, asked["reason"].strip(), stage=asked["stage"])
        return Response({"number": job.number, "signal": asked["signal"], "processes": count})

    @extend_schema(
        operation_id="jobs_traces",
        responses=traced.TraceList,
    )
    @action(detail=True, filterset_class=None, pagination_class=None)
    def traces(self, request: Request, name: str) -> Response:
        """The profiles that were taken of its running stages, newest first; the newest 20 are kept."""
        return Response(traced.of_job(self.get_object()))

    @extend_schema(
        operation_id="jobs_trace",
        request=TraceAskSerializer,
        responses={202: traced.StageTrace},
        examples=[OpenApiExample("Ten seconds", {"tool": "py-spy", "seconds": 10}, request_only=True)],
    )
    @traces.mapping.post
    def take_trace(self, request: Request, name: str) -> Response:
        """Asks for a profile of what a running stage does, on one of its nodes, with a tool that its job file allows.
        The answer has the address at which to watch it."""
        job, asked = self._mine(), self.body(TraceAskSerializer)
        wanted = {"stage": asked["stage"], "rank": asked["rank"], "reason": asked["reason"].strip()}
        made = traces.ask(job, self.user, asked["tool"], asked["seconds"], **wanted)
        location = f"/api/v1/jobs/{job.number}/traces/{made.id}"
        return Response(traced.shown(made), status=202, headers={"Location": location})

    @extend_schema(operation_id="jobs_trace_retrieve", responses=traced.StageTrace)
    @action(detail=True, url_path="traces/<uuid:trace>", filterset_class=None, pagination_class=None)
    def one_trace(self, request: Request, name: str, trace: uuid.UUID) -> Response:
        """How far one profile of a running stage is."""
        return Response(traced.shown(traced.found(self.get_object(), trace)))

    @extend_schema(
        operation_id="jobs_trace_content",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY, 409: Problem},
    )
    @action(detail=True, url_path="traces/<uuid:trace>/content", filterset_class=None, pagination_class=None)
    def trace_content(self, request: Request, name: str, trace: uuid.UUID) -> HttpResponseBase:
        """The file of a profile: of py-spy for speedscope, of torch a Chrome trace, compressed by gzip."""
        return traced.content(self.get_object(), trace)

    @extend_schema(operation_id="jobs_ports", responses=web_ports.WebPortList)
    @action(detail=True, filterset_class=None, pagination_class=None)
    def ports(self, request: Request, name: str) -> Response:
        """The ports that its stages name, and whether they are listened on."""
        return Response(web_ports.of_job(self.get_object(), self.user))

    @extend_schema(
        operation_id="jobs_open_port",
        request=PortOpenSerializer,
        responses={201: web_ports.OpenedPort},
        examples=[OpenApiExample("The notebook", {"port": "lab"}, request_only=True)],
    )
    @ports.mapping.post
    def open_port(self, request: Request, name: str) -> Response:
        """Opens a port of a running stage in a browser: answers an address on another origin that lets one browser in,
        once and within a minute. It ends with the stage, and with the token or sign-in that opened it."""
        job, asked = self.get_object(), self.body(PortOpenSerializer)
        wish = web_sessions.PortWish(asked["port"], asked["stage"], asked["rank"], asked["reason"].strip())
        token = self.access_token
        login = "" if token else str(request.session.session_key or "")
        ticket = web_sessions.open_port(job, self.user, wish, token=token, login=login)
        return Response(web_ports.opened(ticket), status=201, headers={"Cache-Control": "no-store"})

    @extend_schema(
        operation_id="jobs_bulk",
        request=bulk.BulkSerializer,
        responses={200: bulk.BulkAnswer, 202: OperationSerializer},
        examples=[
            OpenApiExample("What it would do", {"action": "hold", "jobs": [1], "dry_run": True}, request_only=True)
        ],
    )
    @action(detail=False, methods=["post"], parser_classes=[BoundedJSON], filterset_class=None)
    def bulk(self, request: Request) -> Response:
        """Cancels, holds, releases, queues again or changes up to 500 jobs, named or by a filter, each by itself;
        tells what came of each. With ``dry_run`` it tells what would be done, and does nothing. Where a filter matches
        more, the answer is 202 with the address of an operation, which goes on in the background."""
        done = bulk.apply(self.user, self.body(bulk.BulkSerializer))
        if isinstance(done, rows.Operation):
            (operation,) = operations.shown([done])
            return Response(operation, status=202, headers={"Location": f"/api/v1/operations/{done.pk}"})
        return Response(done)

    @extend_schema(
        operation_id="jobs_watch",
        parameters=[
            OpenApiParameter("since", str, description="The id of an event, from which to go on."),
            OpenApiParameter("Last-Event-ID", str, "header", description="The same, as browsers send it."),
        ],
        responses={(200, "text/event-stream"): OpenApiTypes.STR, 410: Problem},
    )
    @action(detail=False, pagination_class=None)
    def watch(self, request: Request) -> StreamingHttpResponse:
        """The jobs that match the filters, as server-sent events: ``upsert`` with a job as it is now, ``leave`` with
        the number of one that matches no more, ``resync`` where everything may have changed, ``beat`` after 15 seconds
        without any of these, and ``end`` where the token or user is not valid any more. It begins with the newest 1,000
        that match, without a state those that have not ended, or goes on from ``since`` for five minutes after that."""
        params = request.query_params.dict()
        asked = params.pop("since", "")
        since = request.headers.get("Last-Event-ID", "") or asked
        refuse_unknown(params, jobs.JobFilter.base_filters)
        cursor = job_watch.cursor_of(since) if since else None
        stream = job_stream.events(self.user, self.access_token, params, cursor, get_language() or "en")
        return open_streams.streamed(stream, "text/event-stream")

    @reasoned_action
    def cancel(self, request: Request, name: str) -> Response:
        """Ends the job for good; doing it twice is the same as once."""
        return self._end(service.cancel)

    @reasoned_action
    def hold(self, request: Request, name: str) -> Response:
        """Holds the waiting stages of the job, so that they do not start."""
        return self._end(service.hold)

    @reasoned_action
    def release(self, request: Request, name: str) -> Response:
        """Releases held stages, so that they may start again."""
        return self._end(service.release)

    def _mine(self) -> rows.Job:
        """The job in the address; raises 403 if this user may not act on it."""
        job = self.get_object()
        owned(self.user, job, gettext(_MAY_NOT[self.action]))
        return job

    def _end(self, act: Callable[[rows.Job, str, str], object]) -> Response:
        job = self._mine()
        reason = self.body(ReasonSerializer)["reason"]
        if len(reason) > LONGEST_REASON:
            fault = FieldError("/reason", _("must have at most 500 characters"), "too_long")
            raise RequestRefused(422, "too_long", _("reason must have at most 500 characters"), errors=[fault])
        with transaction.atomic():
            act(job, self.user.get_username(), reason.strip())
        return self.shown(self.get_object())

    @extend_schema(responses=jobs.SubmittedSpec)
    @action(detail=True)
    def spec(self, request: Request, name: str) -> Response:
        """The job file as submitted, and the resolved demand of each stage. Values of secrets are masked."""
        return Response(jobs.spec(self.get_object()))

    @extend_schema(responses=jobs.JobWhy)
    @action(detail=True)
    def why(self, request: Request, name: str) -> Response:
        """Why the stages of this job wait, with numbers, and when they will probably start."""
        return Response(jobs.why(self.get_object()))

    @extend_schema(responses=answers.JobCounterfactuals)
    @action(detail=True)
    def counterfactuals(self, request: Request, name: str) -> Response:
        """Changes with which the waiting stages of this job would start, smallest first. Each was tried on the present
        state of the cluster. Changes nothing."""
        return Response(answers.of_job(self.get_object(), self.user))

    @extend_schema(responses=history.JobHistory, parameters=[EventQuerySerializer])
    @action(detail=True)
    def events(self, request: Request, name: str) -> Response:
        """All events of the job, oldest first by default."""
        order = self.asked(EventQuerySerializer)["sort"]
        return self.page(history.of_job(self.get_object()), order, lambda found: history.shown(found, self.user))

    @extend_schema(responses=tries.AttemptPage, parameters=[PageSerializer])
    @action(detail=True)
    def attempts(self, request: Request, name: str) -> Response:
        """All attempts at running the job's stages: their devices, durations and ends."""
        self.asked(PageSerializer)
        return self.page(tries.of_job(self.get_object()), "place", tries.shown)

    @extend_schema(responses=tries.CheckpointPage, parameters=[PageSerializer])
    @action(detail=True)
    def checkpoints(self, request: Request, name: str) -> Response:
        """The resumable points that the job's stages confirmed, newest first."""
        self.asked(PageSerializer)
        return self.page(tries.checkpoints_of(self.get_object()), "-id", tries.checkpoints)

    @extend_schema(responses=job_logs.LogStreamList, parameters=[StreamQuerySerializer])
    @action(detail=True)
    def streams(self, request: Request, name: str) -> Response:
        """The log streams and their lengths."""
        query = self.asked(StreamQuerySerializer)
        return Response(job_logs.streams(self.get_object(), **query))

    @extend_schema(
        parameters=[LogQuerySerializer, byte_range.PARAMETER],
        responses={
            (200, "text/plain"): OpenApiResponse(
                OpenApiTypes.STR,
                "The bytes as the stage wrote them. X-Log-Next-Offset says where to go on, X-Log-Cut that the log "
                "reached its largest size and what came after was dropped.",
            ),
            (206, "text/plain"): OpenApiResponse(OpenApiTypes.STR, "The range asked for, of any size."),
            416: Problem,
        },
    )
    @action(detail=True)
    def logs(self, request: Request, name: str) -> HttpResponseBase:
        """Bytes of the log from an offset on, its last lines, or, with the header ``Range``, a range of any size."""
        wanted = msgspec.convert(self.asked(LogQuerySerializer), job_logs.LogQuery)
        response: HttpResponseBase
        if (span := byte_range.asked(request)) is not None:
            if {"offset", "limit", "tail"} & request.query_params.keys():
                raise Unanswerable(_("name the bytes by Range, or by offset, limit and tail"))
            found = job_logs.in_range(self.get_object(), wanted, *span)
            response = byte_range.partial(found.pieces, found.begin, found.end, found.size_bytes)
        else:
            content, next_offset, size, is_cut = job_logs.of_job(self.get_object(), wanted)
            response = HttpResponse(content)
            response["X-Log-Next-Offset"] = str(next_offset)
            response["X-Log-Size"] = str(size)
            if is_cut:
                response["X-Log-Cut"] = "true"
        response["Content-Type"] = "text/plain; charset=utf-8"
        response["Accept-Ranges"] = "bytes"
        sandboxed(response)
        return response

    @extend_schema(
        operation_id="jobs_logs_follow",
        responses={(200, "text/plain"): OpenApiTypes.STR},
        parameters=[LogFollowSerializer],
    )
    @action(detail=True, url_path="logs/follow")
    def follow_logs(self, request: Request, name: str) -> StreamingHttpResponse:
        """The log as it grows, until the attempt has ended: what is there from an offset on, or the last lines, then
        what comes. A job that waits is waited for. ``X-Log-Offset`` tells the offset of the first byte, so that a
        broken stream can be taken up again."""
        wanted = msgspec.convert(self.asked(LogFollowSerializer), job_logs.LogQuery)
        offset, pieces = log_stream.text(self.user, self.access_token, name, wanted)
        response = open_streams.streamed(pieces, "text/plain; charset=utf-8")
        response["X-Log-Offset"] = str(offset)
        sandboxed(response)
        return response

    @extend_schema(
        operation_id="jobs_logs_search",
        responses={200: job_logs.LogSearch},
        parameters=[LogSearchSerializer, TEXT],
    )
    @action(detail=True, url_path="logs/search", throttle_classes=[PerUser, SearchesPerUser])
    def search_logs(self, request: Request, name: str) -> Response:
        """The lines of a log that contain a text. An answer is about a stretch of it, and says where to go on."""
        wanted = msgspec.convert(self.asked(LogSearchSerializer), job_logs.LogSearchQuery)
        return Response(job_logs.search(self.get_object(), wanted, self.user))

    @extend_schema(responses=measured.JobSeries, parameters=[MetricQuerySerializer])
    @action(detail=True)
    def metrics(self, request: Request, name: str) -> Response:
        """The use of devices and processes by the job, in at most 300 steps."""
        since_s = self.asked(MetricQuerySerializer)["since_s"]
        return Response(measured.series(self.get_object(), since_s))

    @extend_schema(responses=receipts.Receipt)
    @action(detail=True)
    def receipt(self, request: Request, name: str) -> Response:
        """What the job held and used by stage, its energy and cost, and one line of advice that was checked against all
        measurements of the job."""
        return Response(receipts.receipt(self.get_object()))

    @extend_schema(operation_id="jobs_failures", responses=failures.FailureList)
    @action(detail=True)
    def failures(self, request: Request, name: str) -> Response:
        """Why its stages failed: the kind of failure, what usually helps, and the last lines of the output."""
        return Response(failures.of_job(self.get_object()))

    @extend_schema(responses=waits.Waits)
    @action(detail=True)
    def waits(self, request: Request, name: str) -> Response:
        """For how long its stages waited, by reason."""
        return Response(waits.of_job(self.get_object()))

    @extend_schema(responses=pace.StagePaceList)
    @action(detail=True)
    def pace(self, request: Request, name: str) -> Response:
        """How fast its running stages advance, and when they will have done all steps. A stage that reports no steps,
        or too few to tell, is left out."""
        return Response(pace.of_job(self.get_object()))

    @extend_schema(responses=reported.ReportedList, parameters=[ValueQuerySerializer])
    @action(detail=True)
    def values(self, request: Request, name: str) -> Response:
        """The metrics that the job's stages reported through the runtime, by step, at most 16 names per attempt."""
        query = self.asked(ValueQuerySerializer)
        return Response(reported.reported(self.get_object(), **query))


_MAY_NOT = {
    "partial_update": gettext_noop("only {user}, a lead of project {project} or staff may change this job"),
    "take_trace": gettext_noop("only {user}, a lead of project {project} or staff may profile this job"),
    "signal": gettext_noop("only {user}, a lead of project {project} or staff may send this job a signal"),
    "requeue": gettext_noop("only {user}, a lead of project {project} or staff may queue this job again"),
    "cancel": gettext_noop("only {user}, a lead of project {project} or staff may cancel this job"),
    "hold": gettext_noop("only {user}, a lead of project {project} or staff may hold this job"),
    "release": gettext_noop("only {user}, a lead of project {project} or staff may release this job"),
}
