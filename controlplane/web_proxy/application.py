"""The ASGI application of the sessions' origins: lets browsers in, and passes on what they ask."""

from __future__ import annotations

import html
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest
from django.utils import translation
from django.utils.translation import gettext as _

from controlplane.dispatch.agent_socket import in_thread
from controlplane.jobs import web_sessions
from controlplane.session_origins import SessionOrigins
from controlplane.web_proxy import cookies, heads
from controlplane.web_proxy.exchange import AnswerCut, BrowserGone, Exchange, Receive, Scope, Send
from controlplane.web_proxy.heads import Place
from controlplane.web_proxy.port_stream import PortRefused
from controlplane.web_proxy.relay import Relay
from controlplane.web_proxy.upstreams import Upstreams
from controlplane.web_proxy.visits import Visits

log = logging.getLogger(__name__)

LONGEST_QUERY: Final = 500
MOST_PLACES: Final = 4_096
# Nothing of the pages below runs or loads anything.
_POLICY: Final = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_PAGE: Final = """<!doctype html><html lang="{language}"><head><meta charset="utf-8"><title>Switchyard</title>{refresh}
<meta name="viewport" content="width=device-width"><style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui;
max-width:36em;margin:15vh auto;padding:0 1em}}</style></head><body><h1>{title}</h1><p>{text}</p>
<p><a href="{dashboard}">{back}</a></p></body></html>"""


class WebProxy:
    """Answers requests whose Host is one of the sessions' origins."""

    def __init__(self, origins: SessionOrigins) -> None:
        self._origins = origins
        self._upstreams = Upstreams()
        self._visits = Visits()
        self._ports: dict[uuid.UUID, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = self._origins.session_at(heads.value(scope["headers"], b"host").decode("latin-1"))
        with translation.override(_language(scope)):
            try:
                if session_id is None:
                    raise PortRefused(404, _("There is no such session; open the port from the page of its job."))
                await self._serve(session_id, scope, receive, send)
            except PortRefused as refused:
                await self._refuse(scope, send, refused)
            except DatabaseError as error:
                log.warning("a port could not be opened: %s", error)
                text = _("the database of the control plane does not answer; try again")
                await self._refuse(scope, send, PortRefused(503, text))
            except (AnswerCut, BrowserGone):
                pass  # the server closes the connection

    async def _serve(self, session_id: uuid.UUID, scope: Scope, receive: Receive, send: Send) -> None:
        if len(scope["headers"]) > heads.MOST:
            raise PortRefused(431, _("this request has too many lines of headers"))
        if scope["type"] == "http" and scope["path"] == web_sessions.ENTRY:
            await self._enter(session_id, scope, send)
            return
        told = b"; ".join(content for key, content in scope["headers"] if key == b"cookie")
        if not cookies.lets_in(told, self._origins.scheme, session_id):
            raise PortRefused(401, _("This port is not open in this browser, or not any more. Open it again."))
        origin = self._origins.of(session_id)
        if heads.is_foreign(scope, origin):
            raise PortRefused(403, _("A page of another origin may not ask this."))
        port = await self._port(session_id)
        if not port:
            raise PortRefused(401, _("This port is not open any more. Open it again."))
        place = Place(origin, port)
        self._visits.mark(session_id)

        def visit() -> None:
            self._visits.mark(session_id)

        if scope["type"] == "websocket":
            await receive()
            await Relay(scope, receive, send, place, visit).run(session_id)
        else:
            await Exchange(scope, receive, send, place, visit).run(self._upstreams, session_id)

    async def _port(self, session_id: uuid.UUID) -> int:
        if session_id not in self._ports:
            if len(self._ports) >= MOST_PLACES:
                del self._ports[next(iter(self._ports))]
            self._ports[session_id] = await in_thread(web_sessions.port_of, session_id)
        return self._ports[session_id]

    async def _enter(self, session_id: uuid.UUID, scope: Scope, send: Send) -> None:
        """Exchange a ticket for the cookie, and lead to where the browser begins."""
        query = parse_qs(scope["query_string"][:LONGEST_QUERY].decode("latin-1"))
        let_in = None
        if scope["method"] == "GET":
            let_in = await in_thread(web_sessions.enter, session_id, query.get("ticket", [""])[0])
        if let_in is None:
            text = _("This address let somebody in once, and not later than a minute after it was made. Open it again.")
            raise PortRefused(403, text)
        value, path = let_in
        headers = [
            (b"location", path.encode()),
            (b"set-cookie", cookies.made(self._origins.scheme, value).encode()),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"origin-agent-cluster", b"?1"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _refuse(self, scope: Scope, send: Send, refused: PortRefused) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        is_page = b"text/html" in heads.value(scope["headers"], b"accept")
        body = (self._page(refused) if is_page else f"{refused}\n").encode()
        kind = b"text/html; charset=utf-8" if is_page else b"text/plain; charset=utf-8"
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"content-security-policy", _POLICY),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _page(self, refused: PortRefused) -> str:
        # What is not there yet, because the stage has only just begun, is tried again by itself.
        refresh = '<meta http-equiv="refresh" content="3">' if refused.status == 502 else ""
        title = _("Not there yet") if refused.status == 502 else _("Not open")
        return _PAGE.format(
            language=translation.get_language(),
            refresh=refresh,
            title=html.escape(title),
            text=html.escape(str(refused)),
            dashboard=html.escape(f"{settings.PUBLIC_URL.rstrip('/')}/sessions"),
            back=html.escape(_("Sessions")),
        )


class ByHost:
    """Hands requests for the sessions' origins to one application, and all others to another.

    What is for a host below theirs is never answered by the dashboard, whatever hosts it allows.
    """

    def __init__(self, origins: SessionOrigins | None, proxy: Any, dashboard: Any) -> None:
        self._origins, self._proxy, self._dashboard = origins, proxy, dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = heads.value(scope.get("headers", ()), b"host").decode("latin-1")
        is_proxys = self._origins is not None and self._origins.is_below(host)
        await (self._proxy if is_proxys else self._dashboard)(scope, receive, send)


def is_session_origin(headers: Any) -> bool:
    """Whether a page of a session sent a request."""
    origin = heads.value(headers, b"origin").decode("latin-1").partition("://")[2]
    return settings.SESSION_ORIGINS is not None and settings.SESSION_ORIGINS.is_below(origin)


def _language(scope: Mapping[str, Any]) -> str:
    request = HttpRequest()
    request.META["HTTP_ACCEPT_LANGUAGE"] = heads.value(scope["headers"], b"accept-language").decode("latin-1")[:200]
    return translation.get_language_from_request(request)
