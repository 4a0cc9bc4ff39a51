"""URL routes of the agents' WebSockets."""

from django.urls import path

from controlplane.dispatch.agent_socket import AgentLink
from controlplane.dispatch.exec_sessions import AgentSession

AGENT_SOCKETS = [
    path("agent/v1/link", AgentLink.as_asgi()),
    path("agent/v1/sessions/<uuid:session>", AgentSession.as_asgi()),
]
