"""Pages of a list by cursor: each page begins where the last one ended, whatever was added or removed meanwhile."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from django.db.models import CharField, IntegerField, Model, QuerySet, TextField
from django.utils.translation import gettext as _
from rest_framework.request import Request

from controlplane.api.problem import Refused
from controlplane.wellformed import fault_of

M = TypeVar("M", bound=Model)
T = TypeVar("T")

LARGEST = 500
USUAL = 100
LONGEST_CURSOR = 1_000


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page. ``next`` and ``previous`` are addresses relative to the server, or null at the ends."""

    results: list[T]
    next: str | None = None
    previous: str | None = None


class PageQuery(msgspec.Struct, frozen=True):
    """Where a page begins and how long it is; what else a list may be narrowed by is added by a subclass."""

    limit: int | None = None
    cursor: str = ""


PAGE_DESCRIBED = {
    "limit": f"At most so many, up to {LARGEST}.",
    "cursor": "From next or previous of an earlier answer.",
}


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    backwards: bool
    after: int | str


def page_of(
    rows: QuerySet[M], request: Request, key: str, *, limit: int | None, descending: bool
) -> tuple[list[M], Any]:
    """One page of ``rows`` in the order of ``key``, which must be unique and indexed, and the links to its neighbours.

    The links are ``{"next": ..., "previous": ...}``. Raises 400 for a limit or cursor that cannot be.
    """
    limit = USUAL if limit is None else limit
    if not 1 <= limit <= LARGEST:
        raise Refused(400, "invalid", _("limit must be a whole number from 1 to {most}").format(most=LARGEST))
    cursor = _read(request.query_params.get("cursor", ""), _field(rows, key))
    backwards = cursor is not None and cursor.backwards
    down = descending != backwards
    if cursor is not None:
        rows = rows.filter(**{f"{key}__{'lt' if down else 'gt'}": cursor.after})
    found = list(rows.order_by(f"-{key}" if down else key)[: limit + 1])
    more, found = len(found) > limit, found[:limit]
    if backwards:
        found.reverse()
    has_next, has_previous = (True, more) if backwards else (more, cursor is not None)
    links: dict[str, str | None] = {"next": None, "previous": None}
    if found and has_next:
        links["next"] = _link(request, _Cursor(False, getattr(found[-1], key)))
    if found and has_previous:
        links["previous"] = _link(request, _Cursor(True, getattr(found[0], key)))
    return found, links


def _field(rows: QuerySet[M], key: str) -> Any:
    """The field whose values a cursor of these rows holds: a column, one that the database makes, or an annotation."""
    annotation = rows.query.annotations.get(key)
    field: Any = annotation if annotation is not None else rows.model._meta.get_field(key)
    return getattr(field, "output_field", field)


def _read(text: str, field: Any) -> _Cursor | None:
    """What a cursor says. One that was made for another key, or by somebody else, is refused."""
    if not text:
        return None
    kind = int if isinstance(field, IntegerField) else str
    assert kind is int or isinstance(field, CharField | TextField), "pages go by a number or a name"
    try:
        if len(text) > LONGEST_CURSOR or not text.isascii():
            raise ValueError("no cursor of ours")
        content = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        cursor = msgspec.json.decode(content, type=_Cursor)
        if not isinstance(cursor.after, kind) or fault_of(cursor.after):
            raise ValueError("a cursor of another list")
        return cursor
    except (ValueError, binascii.Error, RecursionError):
        raise Refused(400, "invalid", _("this cursor cannot be read; take it from next or previous")) from None


def _link(request: Request, cursor: _Cursor) -> str:
    text = base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")
    return f"{request.path}?{urlencode({**request.query_params.dict(), 'cursor': text})}"
