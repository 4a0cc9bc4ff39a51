"""The agents' HTTP endpoints: enrol, logs, telemetry, sources, bundles. A node reads and writes only its own data."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import msgspec
from django.conf import settings
from django.core.files.storage import storages
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from agents.protocol import AskSources, Enrol, Enrolled, LogBatch, LogChunk, LogCommit, LogReceipt, TelemetryBatch
from controlplane import changes, storage
from controlplane.dispatch.peer_sources import answer
from controlplane.dispatch.report_decoder import UNREADABLE
from controlplane.fleet import alarms, hosts, loads, node_links
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Device, Node
from controlplane.jobs import log_limit
from controlplane.jobs import logs as log_files
from controlplane.jobs.models import Bundle, Job, Part, PartLog
from controlplane.jobs.record import is_uuid
from controlplane.storage import Download

log = logging.getLogger(__name__)

CHUNK_LIMIT = 256 * 1024
BATCH_LIMIT = 8 * 2**20
KINDS_LIMIT = 20
ANOTHER = "another process of this node's agent speaks for it; nothing of this was taken"

View = Callable[..., HttpResponseBase]


def refuse(status: int, detail: str) -> JsonResponse:
    """Return a refusal that an agent reads."""
    return JsonResponse({"status": status, "detail": detail}, status=status, content_type="application/problem+json")


def by_node(most: int) -> Callable[[View], View]:
    """Decorate ``view(request, node, ...)`` to require a node's credential, and a body of at most so many bytes. It
    reads no cookie, hence no CSRF."""

    def decorate(view: View) -> View:
        @csrf_exempt
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            node = fleet.authenticate(request.headers.get("Authorization", ""))
            if node is None:
                return refuse(401, "this node credential is unknown or revoked; let the agent join again")
            if int(request.headers.get("Content-Length") or 0) > most:
                return refuse(413, f"this may have {most} bytes at most")
            return view(request, node, *args, **kwargs)

        return guarded

    return decorate


@csrf_exempt
@require_POST
def enrol(request: HttpRequest) -> HttpResponse:
    """Register a new agent by a join token and return its credential."""
    try:
        asked = msgspec.json.decode(request.body[:10_000], type=Enrol)
        node, credential = fleet.enrol(asked.token, asked.name)
    except UNREADABLE as error:
        return refuse(400, f"this is no request to join: {error}")
    except fleet.NodeRefused as refusal:
        return refuse(403, str(refusal))
    body = msgspec.json.encode(Enrolled(node=str(node.id), name=node.name, credential=credential))
    return HttpResponse(body, content_type="application/json")


def _is_of_another(node: Node, incarnation: str) -> bool:
    """Return whether this was sent by an agent that does not (or not yet) speak for the node."""
    return bool(incarnation and node.incarnation) and incarnation != node.incarnation


@by_node(BATCH_LIMIT)
@require_POST
def logs(request: HttpRequest, node: Node) -> HttpResponse:
    """Append bytes to log streams. A chunk is stored only if it continues what is committed."""
    try:
        batch = msgspec.msgpack.decode(request.body, type=LogBatch)
    except UNREADABLE as error:
        return refuse(400, f"this is no batch of logs: {error}")
    if _is_of_another(node, batch.incarnation):
        return refuse(409, ANOTHER)
    if storage.is_full():
        # The agent keeps refused bytes, and sends them again.
        return refuse(507, "the disk of the control plane is full; logs are taken again when it has room")
    try:
        receipt = LogReceipt(streams=_append(node, batch.chunks))
    except OSError as error:
        # The agent keeps refused bytes, and sends them again.
        log.warning("logs of node %s could not be kept: %s", node.name, error)
        return refuse(503, f"the storage of logs does not take them: {error.strerror}")
    return HttpResponse(msgspec.msgpack.encode(receipt), content_type="application/msgpack")


def _append(node: Node, chunks: list[LogChunk]) -> list[LogCommit]:
    ids = {chunk.part for chunk in chunks if is_uuid(chunk.part)}
    refused: dict[tuple[str, str], str] = {}
    with transaction.atomic():
        # One writer per part at a time: an agent that reconnects may overlap its own former request.
        locked = list(Part.objects.select_for_update().filter(id__in=ids, node=node).order_by("id"))
        parts = {str(part.id): part for part in locked}
        committed: dict[tuple[uuid.UUID, str], int] = defaultdict(int, log_files.ends([part.id for part in locked]))
        gone = set(PartLog.objects.filter(part__in=locked, gone_at__isnull=False).values_list("part", flat=True))
        pieces: list[log_files.Piece] = []
        for chunk in sorted(chunks, key=lambda c: (c.part, c.stream, c.offset)):
            part = parts.get(chunk.part)
            if part is None:
                refused[chunk.part, chunk.stream] = "unknown"
            elif chunk.epoch != part.epoch:
                refused[chunk.part, chunk.stream] = "stale_epoch"
            elif part.id in gone or log_limit.is_cut(sum(committed[part.id, stream] for stream in log_files.STREAMS)):
                refused[chunk.part, chunk.stream] = "gone" if part.id in gone else "full"
            elif chunk.stream not in log_files.STREAMS or len(chunk.data) > CHUNK_LIMIT or chunk.offset < 0:
                refused[chunk.part, chunk.stream] = "malformed"
            elif chunk.offset <= (end := committed[part.id, chunk.stream]) < chunk.offset + len(chunk.data):
                fresh = chunk.data[end - chunk.offset :]
                room = settings.LOG_MAX_BYTES - sum(committed[part.id, stream] for stream in log_files.STREAMS)
                if len(fresh) > room:
                    # From here on nothing of the part is accepted: its streams may end differently from the agent's.
                    fresh = fresh[: max(0, room)] + log_limit.cut_here()
                    refused[chunk.part, chunk.stream] = "full"
                pieces.append(log_files.Piece(part.id, chunk.stream, end, fresh))
                committed[part.id, chunk.stream] = end + len(fresh)
        if pieces:
            log_files.append(pieces)
            touched = {piece.part for piece in pieces}
            numbers = (
                Job.objects.filter(stages__attempts__parts__in=touched).distinct().values_list("number", flat=True)
            )
            keys = [f"logs:{number}" for number in numbers[:50]]
            transaction.on_commit(lambda: changes.announce(*keys))
    # The job is locked before its parts, so not in the transaction above.
    log_limit.note({parts[part].id for (part, _), why in refused.items() if why == "full"})

    def commit_of(part: str, rank: int, stream: str) -> LogCommit:
        known = parts.get(part)
        end = committed[known.id, stream] if known else 0
        return LogCommit(part=part, rank=rank, stream=stream, committed=end, refused=refused.get((part, stream), ""))

    return [commit_of(*each) for each in dict.fromkeys((chunk.part, chunk.rank, chunk.stream) for chunk in chunks)]


_DEVICE_SAMPLES = """
INSERT INTO fleet_device_sample (device_id, at, utilisation, memory_used_bytes, power_w, temperature_c)
SELECT * FROM unnest(%s::uuid[], %s::timestamptz[], %s::float8[], %s::bigint[], %s::float8[], %s::float8[])
ON CONFLICT DO NOTHING
"""
_PART_SAMPLES = """
INSERT INTO fleet_part_sample (part_id, at, cpu, rss_bytes, energy_j)
SELECT v.* FROM unnest(%s::uuid[], %s::timestamptz[], %s::float8[], %s::bigint[], %s::jsonb[])
    AS v(part_id, at, cpu, rss_bytes, energy_j)
JOIN jobs_part p ON p.id = v.part_id AND p.node_id = %s
ON CONFLICT DO NOTHING
"""


@by_node(BATCH_LIMIT)
@require_POST
def telemetry(request: HttpRequest, node: Node) -> HttpResponse:
    """Store measurements; those of other nodes and implausible ones are dropped."""
    try:
        batch = msgspec.msgpack.decode(request.body, type=TelemetryBatch)
    except UNREADABLE as error:
        return refuse(400, f"this is no batch of measurements: {error}")
    if _is_of_another(node, batch.incarnation):
        return refuse(409, ANOTHER)
    if batch.incarnation and not hosts.register_batch(node, batch.incarnation, batch.seq):
        return HttpResponse(status=204)
    now = timezone.now()
    known = Device.objects.filter(node=node).values_list("uuid", "id", "kind", "index")
    devices, names = {row[0]: row[1] for row in known}, {row[0]: f"{row[2]}-{row[3]}" for row in known}
    absurd = loads.fault(batch, names)
    of_devices = [
        (
            devices[s.uuid],
            now - timedelta(seconds=_age(s.age_s)),
            s.utilisation if loads.is_plausible(s.utilisation) else None,
            s.memory_used_bytes,
            s.power_w,
            s.temperature_c,
        )
        for s in batch.devices
        if s.uuid in devices
    ]
    of_parts = [
        (s.part, now - timedelta(seconds=_age(s.age_s)), s.cpu, s.rss_bytes, _json(s.energy_j))
        for s in batch.parts
        if is_uuid(s.part)
    ]
    with connection.cursor() as cursor:
        if of_devices:
            cursor.execute(_DEVICE_SAMPLES, [list(column) for column in zip(*of_devices, strict=True)])
        if of_parts:
            cursor.execute(_PART_SAMPLES, [*(list(column) for column in zip(*of_parts, strict=True)), node.id])
    if batch.host is not None:
        hosts.store_sample(node, batch.host, now)
    loads.note_fetched(node, batch.fetched)
    node_links.note(node, batch.fetched)
    if loads.update_load(node) or absurd:
        alarms.raised(alarms.MEASUREMENT, {node.name: absurd} if absurd else {}, about=node.name)
    if of_devices or of_parts or batch.host is not None:
        changes.announce("samples")
    return HttpResponse(status=204)


def _json(values: dict[str, float]) -> str | None:
    return msgspec.json.encode(dict(list(values.items())[:KINDS_LIMIT])).decode() if values else None


def _age(seconds: float) -> float:
    return min(max(seconds, 0.0), 3_600.0)


@by_node(BATCH_LIMIT)
@require_POST
def sources(request: HttpRequest, node: Node) -> HttpResponse:
    """Return where a node may fetch an input of its own stages, with tickets for the nodes that cache it."""
    try:
        asked = msgspec.json.decode(request.body[:10_000], type=AskSources)
    except UNREADABLE as error:
        return refuse(400, f"this is no question for sources: {error}")
    found = answer(node, asked)
    if found is None:
        return HttpResponseNotFound()
    return HttpResponse(msgspec.json.encode(found), content_type="application/json")


@by_node(BATCH_LIMIT)
@require_GET
def bundle(request: HttpRequest, node: Node, sha256: str) -> HttpResponseBase:
    """Return the bytes of a bundle to a node that runs a job with it."""
    needed = Part.objects.filter(node=node, ended_at=None, attempt__stage__job__bundle=sha256).exists()
    if len(sha256) != 64 or not sha256.isalnum() or not needed:
        return HttpResponseNotFound()
    try:
        file = storages["bundles"].open(Bundle.place(sha256))
    except FileNotFoundError:
        return HttpResponseNotFound()
    return Download(file, content_type="application/gzip")
