"""URL routes of the agents' WebSockets, and the body limits of their HTTP calls."""

from typing import Any

from django.urls import path

from agents.protocol import MOST_TRACE_BYTES
from controlplane.body_limit import USUAL, Route
from controlplane.dispatch.agent_socket import AgentLink
from controlplane.dispatch.exec_sessions import AgentSession
from controlplane.dispatch.uploads import BATCH_LIMIT
from controlplane.fleet import service as fleet

AGENT_SOCKETS = [
    path("agent/v1/link", AgentLink.as_asgi()),
    path("agent/v1/sessions/<uuid:session>", AgentSession.as_asgi()),
]


def sender(scope: dict[str, Any]) -> str:
    """Return the node whose credential a request carries; empty if there is none."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    node = fleet.authenticate(header)
    return f"node:{node.id}" if node else ""


AGENT_BODIES = [
    Route("/agent/v1/logs", BATCH_LIMIT, sender),
    Route("/agent/v1/telemetry", BATCH_LIMIT, sender),
    # A little more than the view accepts: its refusal is more specific.
    Route("/agent/v1/traces/", MOST_TRACE_BYTES + USUAL, sender),
    Route("/agent/", USUAL, sender),
]
