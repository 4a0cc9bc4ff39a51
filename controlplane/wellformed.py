"""What a text, a number and a time may be wherever a request carries one: every edge asks here, and nowhere else.

:class:`WellFormed` asks for paths, query strings, headers, cookies and forms before any view runs; the parsers of
texts of JSON and YAML (``documents.py``), serializers, cursors (``queries/cursor.py``) and the browsers' socket
ask for what only they can see.
"""

from __future__ import annotations

import logging
import math
import re
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

# What PostgreSQL keeps as bigint.
LARGEST_WHOLE: Final = 2**63 - 1
# Between these every sum with a span that is accepted elsewhere stays a time.
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)

LONGEST_PATH: Final = 2_000
LONGEST_QUERY: Final = 8_000
MOST_PARAMETERS: Final = 100
LONGEST_HEADER: Final = 16_000
log = logging.getLogger(__name__)

_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
# The addresses of programs: errors are documents there, and bodies are read by the views themselves.
PROGRAMS: Final = ("/api/", "/agent/")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = re.compile(r"[0-9]{0,18}")
_CHARSETS: Final = {"utf-8", "utf8", "us-ascii"}


def fault_in(text: str) -> str:
    """What keeps a text from being stored or sent on, as the end of a sentence; empty where all is well."""
    if "\0" in text:
        return _("holds the character NUL, which no text here may")
    try:
        text.encode()
    except UnicodeEncodeError:
        return _("holds half of a surrogate pair, which is no character")
    return ""


def fault_of(value: Any) -> str:
    """What keeps a plain value (a text, a number or a time) from being stored, as :func:`fault_in` does for texts."""
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
    """The JSON pointers of all plain values and keys within ``value`` that cannot be kept, each with its fault."""
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
    """What is wrong with a query string as it came, in a sentence that names the parameter; empty where all is well."""
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
    """What is wrong with what a percent-encoded text stands for."""
    if "%" not in quoted and quoted.isascii():
        return fault_in(quoted)
    try:
        return fault_in(unquote_to_bytes(quoted).decode())
    except UnicodeError:
        return _("is not UTF-8")


class WellFormed(MiddlewareMixin):
    """A middleware that refuses with 400 what no view could make sense of; the answer names where it stands.

    A broken cookie is passed over instead: whoever has one could not get rid of it.
    """

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        """Refuses, or lets the request go on."""
        broken = [name for name, value in request.COOKIES.items() if fault_in(value) or _CONTROL.search(value)]
        for name in broken:
            del request.COOKIES[name]
        if not _fault(request):
            return None
        # Nobody has yet chosen the reader's language.
        with translation.override(translation.get_language_from_request(request)):
            return _refused(request, _fault(request))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """A value of the right form that a column or a field cannot hold: the administration finds out by trying."""
        odd_choice = isinstance(exception, ValueError | FieldDoesNotExist) and request.path_info.startswith("/admin/")
        if odd_choice or isinstance(exception, DataError | ValidationError):
            # Most often somebody tries; where it is a fault of this server, the log must have it.
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
    # A codec is looked up by this name, and not each of them makes texts of bytes.
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
        return said(request, fault)
    return HttpResponse(problem(fault, request.path_info[:200]), status=400, content_type="application/problem+json")


def problem(detail: str, instance: str = "") -> bytes:
    """The problem document of a request that is not well formed."""
    shown = instance if not fault_in(instance) else ""
    told = {"type": "/api/v1/docs#invalid", "title": title(400), "status": 400, "code": "invalid"}
    return msgspec.json.encode({**told, "detail": detail, "instance": shown})


def said(request: HttpRequest, exception: Any = None) -> HttpResponse:
    """The page that says what is wrong with a request; Django calls it wherever a page refuses one with 400."""
    told = exception if isinstance(exception, str) else str(exception) if isinstance(exception, BadRequest) else ""
    # Where the middleware refuses, nobody has yet chosen the reader's language.
    with translation.override(translation.get_language_from_request(request)):
        values = {"said": told or _("The server cannot read this request."), "language": translation.get_language()}
        return HttpResponse(loader.render_to_string("400.html", values), status=400)
