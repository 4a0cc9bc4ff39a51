"""The gateway: the ASGI application for agents only.

It runs in a process of its own, so that requests of people never delay reports. The web server accepts the same calls,
for agents that joined by its address.
"""

import os

from django.conf import settings

from controlplane.request_handler import get_application

# Set unconditionally: the package has set the web server's settings by now, which are read at first use.
if not settings.configured:
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.gateway.settings"
django_application = get_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from controlplane.body_limit import USUAL, BodyLimit, Route  # noqa: E402
from controlplane.dispatch.agent_routes import AGENT_BODIES, AGENT_SOCKETS, sender  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyLimit(django_application, [*AGENT_BODIES, Route("", USUAL, sender)]),
        "websocket": URLRouter(AGENT_SOCKETS),
    }
)
