"""Where agents' WebSockets lead."""

from django.urls import path

from controlplane.link.agent import AgentLink
from controlplane.link.sessions import AgentSession

AGENT_SOCKETS = [
    path("agent/v1/link", AgentLink.as_asgi()),
    path("agent/v1/sessions/<uuid:session>", AgentSession.as_asgi()),
]
