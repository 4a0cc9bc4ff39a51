"""Defines which texts, numbers and times a request may carry; every edge uses these checks and no others.

:class:`WellFormed` checks paths, query strings, headers, cookies and forms before any view runs; the parsers of JSON
and YAML (``documents.py``), serializers, cursors (``queries/cursor.py``) and the browsers' socket check what only they
can see.
"""

from __future__ import annotations

import logging
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from django.core.exceptions import BadRequest, FieldDoesNotExist, ValidationError
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template import loader
from django.utils import translation
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from controlplane.sentences import title

# The largest bigint of PostgreSQL.
LARGEST_WHOLE: Final = 2**63 - 1
# Within these bounds, adding any duration that is accepted elsewhere gives a valid time.
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)

LONGEST_PATH: Final = 2_000
LONGEST_QUERY: Final = 8_000
MOST_PARAMETERS: Final = 100
LONGEST_HEADER: Final = 16_000
log = logging.getLogger(__name__)

_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
# Paths for programs: errors are problem documents there, and the views read bodies themselves.
PROGRAMS: Final = ("/api/", "/agent/")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = re.compile(r"[0-9]{0,18}")
_CHARSETS: Final = {"utf-8", "utf8", "us-ascii"}


def fault_in(text: str) -> str:
    """Return why a text cannot be stored or sent on, as the end of a sentence; empty if it can."""
    if "\0" in text:
        return _("holds the character NUL, which no text here may")
    try:
        text.encode()
    except UnicodeEncodeError:
        return _("holds half of a surrogate pair, which is no character")
    return ""


def fault_of(value: Any) -> str:
    """Return why a plain value (text, number or time) cannot be stored, like :func:`fault_in`; empty if it can."""
    if isinstance(value, str):
        return fault_in(value)
    if isinstance(value, datetime):
        fits = EARLIEST <= value <= LATEST
        return "" if fits else _("must lie between {low} and {high}").format(low=EARLIEST.year, high=LATEST.year)
    if isinstance(value, float):
        return "" if math.isfinite(value) else _("must be a finite number")
    if isinstance(value, int) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        return _("must be a whole number of at most {most}").format(most=LARGEST_WHOLE)
    return ""


def faults(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield the JSON pointer and the fault of each plain value and key within ``value`` that cannot be stored."""
    left = [(pointer, value)]
    while left:
        at, each = left.pop()
        if isinstance(each, Mapping):
            for key, inner in each.items():
                if fault := fault_of(key):
                    yield at or "/", _("a key {fault}").format(fault=fault)
                else:
                    left.append((f"{at}/{str(key).replace('~', '~0').replace('/', '~1')[:100]}", inner))
        elif isinstance(each, list | tuple):
            left += [(f"{at}/{index}", inner) for index, inner in enumerate(each)]
        elif fault := fault_of(each):
            yield at, fault


def fault_of_query(query: str) -> str:
    """Return what is wrong with a raw query string, in a sentence that names the parameter; empty if nothing is."""
    if len(query) > LONGEST_QUERY:
        return _("the query string may have at most {most:,} characters").format(most=LONGEST_QUERY)
    pieces = query.split("&")
    if len(pieces) > MOST_PARAMETERS:
        return _("a request may have at most {most} query parameters").format(most=MOST_PARAMETERS)
    for piece in pieces:
        name, _equals, value = piece.partition("=")
        if fault := _decoded(name):
            return _("{what} {fault}").format(what=_("the name of a query parameter"), fault=fault)
        if fault := _decoded(value):
            named = _("the query parameter {name}").format(name=name[:40])
            return _("{what} {fault}").format(
                what=named if named.isprintable() else _("a query parameter"), fault=fault
            )
    return ""


def _decoded(quoted: str) -> str:
    """Return what is wrong with the decoded form of a percent-encoded text."""
    if "%" not in quoted and quoted.isascii():
        return fault_in(quoted)
    try:
        return fault_in(unquote_to_bytes(quoted).decode())
    except UnicodeError:
        return _("is not UTF-8")


class WellFormed(MiddlewareMixin):
    """Middleware that refuses malformed requests with 400; the answer says which part is malformed.

    A malformed cookie is ignored instead, because its owner could not get rid of it.
    """

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        """Refuse a malformed request; return None to let it go on."""
        broken = [name for name, value in request.COOKIES.items() if fault_in(value) or _CONTROL.search(value)]
        for name in broken:
            del request.COOKIES[name]
        if not _fault(request):
            return None
        # No middleware has activated the reader's language yet.
        with translation.override(translation.get_language_from_request(request)):
            return _refused(request, _fault(request))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Refuse a value that is well-formed but invalid for its column or field, with 400.

        The administration detects such values only by trying.
        """
        odd_choice = isinstance(exception, ValueError | FieldDoesNotExist) and request.path_info.startswith("/admin/")
        if odd_choice or isinstance(exception, DataError | ValidationError):
            # Most often the client is at fault; if the server is, the log must show it.
            log.warning("%s %s was refused", request.method, request.path_info[:200], exc_info=exception)
            return _refused(request, _("A value in this request is none that can be here."))
        return None


def for_programs(request: HttpRequest) -> bool:
    """Whether the answer is read by a program, not by a person."""
    return request.path_info.startswith(PROGRAMS)


def _fault(request: HttpRequest) -> str:
    fault = _of_path(request) or fault_of_query(request.META.get("QUERY_STRING", "")) or _of_headers(request)
    if not fault and request.method == "POST" and request.content_type in _FORMS and not for_programs(request):
        fault = _of_form(request)
    return fault


def _of_path(request: HttpRequest) -> str:
    path = request.path_info
    if len(path) > LONGEST_PATH:
        return _("an address may have at most {most:,} characters").format(most=LONGEST_PATH)
    fault = fault_in(path) or (_("holds a control character") if _CONTROL.search(path) else "")
    fault = fault or (_("is not UTF-8") if "\ufffd" in path else "")
    return _("{what} {fault}").format(what=_("the address"), fault=fault) if fault else ""


def _of_headers(request: HttpRequest) -> str:
    for key, value in request.META.items():
        if not key.startswith("HTTP_") and key not in {"CONTENT_TYPE", "CONTENT_LENGTH"}:
            continue
        name = key.removeprefix("HTTP_").replace("_", "-").title()
        if key == "CONTENT_LENGTH" and not _LENGTH.fullmatch(str(value)):
            return _("the header Content-Length must be a number of bytes")
        if len(value) > LONGEST_HEADER:
            return _("the header {name} may have at most {most:,} characters").format(name=name, most=LONGEST_HEADER)
        if key != "HTTP_COOKIE" and _CONTROL.search(value):
            return _("the header {name} holds a control character").format(name=name)
    # Django looks up a codec by this name, and not every codec decodes bytes to text.
    if str((request.content_params or {}).get("charset", "utf-8")).lower() not in _CHARSETS:
        return _("the header Content-Type names another charset than utf-8")
    return ""


def _of_form(request: HttpRequest) -> str:
    for name, values in request.POST.lists():
        for text in (name, *(value for value in values if isinstance(value, str))):
            if fault := fault_in(text):
                return _("the field {name!r} {fault}").format(name=name[:40], fault=fault)
    return ""


def _refused(request: HttpRequest, fault: str) -> HttpResponse:
    if not for_programs(request):
        return bad_request_page(request, fault)
    return HttpResponse(problem(fault, request.path_info[:200]), status=400, content_type="application/problem+json")


def problem(detail: str, instance: str = "") -> bytes:
    """Return the problem document for a malformed request; the log has it under its ``trace_id``."""
    shown = instance if not fault_in(instance) else ""
    trace_id = uuid.uuid4().hex
    log.info("%r: %s, trace %s", shown or "a request", detail, trace_id)
    told = {"type": "/api/v1/docs#invalid", "title": title(400), "status": 400, "code": "invalid"}
    return msgspec.json.encode({**told, "detail": detail, "instance": shown, "trace_id": trace_id})


def bad_request_page(request: HttpRequest, exception: Any = None) -> HttpResponse:
    """Return the error page for a malformed request; Django calls it whenever a page answers 400."""
    told = exception if isinstance(exception, str) else str(exception) if isinstance(exception, BadRequest) else ""
    # If the middleware refuses a request, the reader's language is not activated yet.
    with translation.override(translation.get_language_from_request(request)):
        values = {"said": told or _("The server cannot read this request."), "language": translation.get_language()}
        return HttpResponse(loader.render_to_string("400.html", values), status=400)
