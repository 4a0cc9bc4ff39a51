"""Renderers of responses: JSON only, whatever the client claims to accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from controlplane.queries import names


class NamedJSON(BaseRenderer):
    """Renders read models and plain values as JSON, without names that the user may not see; times are RFC 3339 in
    UTC."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        request = (renderer_context or {}).get("request")
        return b"" if data is None else names.encode(data, getattr(request, "user", None))


class OneAnswer(BaseContentNegotiation):
    """Picks the parser by the body's type, and answers in JSON whatever the client claims to accept."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        sent = (request.content_type or "").partition(";")[0].strip().lower()
        aliases = {"application/x-yaml": "application/yaml", "text/yaml": "application/yaml", "": "application/json"}
        return next((parser for parser in parsers if parser.media_type in {"*/*", aliases.get(sent, sent)}), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        first = next(iter(renderers))
        return first, first.media_type
