"""The ASGI entry point: HTTP to Django, and the two WebSocket doors, one for agents and one for browsers."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_application = get_asgi_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import path  # noqa: E402

from controlplane.api.body import LARGEST_BATCH, LARGEST_FILE  # noqa: E402
from controlplane.body_limit import BodyLimit  # noqa: E402
from controlplane.link.agent import AgentLink  # noqa: E402
from controlplane.link.feed import BrowserFeed  # noqa: E402
from controlplane.link.uploads import BATCH_LIMIT  # noqa: E402

# Agents prove themselves by their credential and carry no cookie; only the browsers' door checks the Origin.
browser = AllowedHostsOriginValidator(AuthMiddlewareStack(BrowserFeed.as_asgi()))

application = ProtocolTypeRouter(
    {
        # Room for the largest that any view there takes, and what surrounds it; every view has its own, smaller, limit.
        "http": BodyLimit(
            django_application,
            LARGEST_FILE + 2**20,
            {
                "/api/v1/bundles": settings.BUNDLE_MAX_BYTES + 2**20,
                "/api/v1/jobs/batch": LARGEST_BATCH + 2**20,
                "/api/v1/simulations": LARGEST_BATCH + 2**20,
                "/agent/v1/": BATCH_LIMIT + 2**20,
            },
        ),
        "websocket": URLRouter([path("agent/v1/link", AgentLink.as_asgi()), path("ws/v1", browser)]),
    }
)
