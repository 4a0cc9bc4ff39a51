"""The ASGI entry point of the web server: HTTP to Django, WebSockets of browsers and of sessions inside jobs."""

import gc
import os
from typing import Any

from controlplane.request_handler import get_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django_application = get_application()

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import get_resolver, path  # noqa: E402

from controlplane.api import sender  # noqa: E402
from controlplane.api.body import LARGEST_BATCH  # noqa: E402
from controlplane.body_limit import USUAL, BodyLimit, Route  # noqa: E402
from controlplane.dispatch.agent_routes import AGENT_BODIES, AGENT_SOCKETS  # noqa: E402
from controlplane.live.browser_socket import BrowserFeed  # noqa: E402
from controlplane.live.exec_socket import CallerSession  # noqa: E402
from controlplane.web_proxy.application import ByHost, WebProxy, is_session_origin  # noqa: E402


def refuse_sessions(application: Any) -> Any:
    """Wrap a socket application so that it refuses pages of jobs' ports, whatever hosts the dashboard allows."""

    async def enter(scope: Any, receive: Any, send: Any) -> None:
        if is_session_origin(scope["headers"]):
            await send({"type": "websocket.close", "code": 1008})
        else:
            await application(scope, receive, send)

    return enter


# Agents authenticate by their credential and send no cookie; only the browsers' socket checks the Origin.
browser = refuse_sessions(AllowedHostsOriginValidator(AuthMiddlewareStack(BrowserFeed.as_asgi())))


def refuse_foreign_origins(application: Any) -> Any:
    """Wrap a socket application so that it refuses pages of other sites; clients without an Origin are not pages."""
    checked = AllowedHostsOriginValidator(application)

    async def enter(scope: Any, receive: Any, send: Any) -> None:
        has_origin = any(name == b"origin" for name, _ in scope["headers"])
        await (checked if has_origin else application)(scope, receive, send)

    return enter


# It requires an access token, which no browser sends by itself; pages of other sites are refused all the same.
caller = refuse_sessions(refuse_foreign_origins(CallerSession.as_asgi()))

dashboard = ProtocolTypeRouter(
    {
        "http": BodyLimit(
            django_application,
            [
                # A little more than the views accept: their refusals are more specific.
                Route("/api/v1/bundles", settings.BUNDLE_MAX_BYTES + USUAL, sender.of_api),
                Route("/api/v1/jobs/batch", LARGEST_BATCH + USUAL, sender.of_api),
                Route("/api/v1/simulations", LARGEST_BATCH + USUAL, sender.of_api),
                Route("/api/", USUAL, sender.of_api),
                *AGENT_BODIES,
                Route("", USUAL, sender.of_page),
            ],
        ),
        "websocket": URLRouter(
            [
                *AGENT_SOCKETS,  # for agents that joined by this address and not by the gateway's
                path("api/v1/jobs/<str:name>/exec", caller),
                path("ws/v1", browser),
            ]
        ),
    }
)

proxy = WebProxy(settings.SESSION_ORIGINS) if settings.SESSION_ORIGINS else dashboard
application = ByHost(settings.SESSION_ORIGINS, proxy, dashboard)

# What modules made stays for good. A list of 200 jobs makes enough objects for a full collection, which would look
# through all of it again: twice the time of such a request.
_ = get_resolver().url_patterns  # loads the views, which the first request would do otherwise
gc.collect()
gc.freeze()
