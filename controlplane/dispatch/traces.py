"""The agents' endpoints for traces: that one begins, why there is none, and its file. A node tells of its own only."""

from __future__ import annotations

import uuid
from typing import IO, Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from agents.protocol import MOST_TRACE_BYTES, TraceNews
from controlplane import storage
from controlplane.clauses import of_agent
from controlplane.dispatch.report_decoder import UNREADABLE
from controlplane.dispatch.uploads import BATCH_LIMIT, by_node, refuse
from controlplane.fleet.models import Node
from controlplane.jobs import traces

PIECE = 2**20
UNWANTED = "nobody waits for this trace of this node any more"


@by_node(BATCH_LIMIT)
@require_POST
def news(request: HttpRequest, node: Node, trace: uuid.UUID) -> HttpResponse:
    """Record that a trace is being taken, or why there is none."""
    try:
        told = msgspec.json.decode(request.read(65_536), type=TraceNews)
    except UNREADABLE as error:
        return refuse(400, f"this tells nothing of a trace: {error}")
    if told.state == "RUNNING":
        is_taken = traces.begin(trace, node)
    else:
        is_taken = traces.fail(trace, node, of_agent(told.detail, told.said))
    return HttpResponse(status=204) if is_taken else refuse(409, UNWANTED)


@by_node(MOST_TRACE_BYTES)
@require_POST
def content(request: HttpRequest, node: Node, trace: uuid.UUID) -> HttpResponse:
    """Keep the file of a trace."""
    if not traces.is_open(trace, node):
        return refuse(409, UNWANTED)
    if storage.is_full():
        return refuse(507, "the disk of the control plane is full")
    incoming = storage.Incoming()
    try:
        size = _receive(request, incoming)
        if not 0 < size <= MOST_TRACE_BYTES:
            return refuse(413, f"a trace may have 1 to {MOST_TRACE_BYTES} bytes")
        incoming.seek(0)
        is_taken = traces.store(trace, node, incoming, size)
    finally:
        incoming.remove()
    return HttpResponse(status=204) if is_taken else refuse(409, UNWANTED)


def _receive(stream: IO[bytes] | Any, into: storage.Incoming) -> int:
    """Write the body to a file, at most a piece more than a trace may have; return its size."""
    size = 0
    while size <= MOST_TRACE_BYTES and (piece := stream.read(PIECE)):
        size += len(piece)
        into.write(piece)
    into.flush()
    return size
