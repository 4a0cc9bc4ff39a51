"""Cursor pagination: each page begins after the last row of the previous one, even if rows were added or removed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from django.db.models import CharField, IntegerField, Model, QuerySet, TextField
from django.utils.translation import gettext as _

from controlplane.queries.refusals import Unanswerable
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


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where a page begins: after this value of the key, or before it."""

    backwards: bool
    after: int | str


def page_of(rows: QuerySet[M], order: str, path: str, params: Mapping[str, str]) -> tuple[list[M], dict[str, Any]]:
    """Return one page of ``rows`` and the links to its neighbours, ``{"next": ..., "previous": ...}``.

    ``order`` is a unique and indexed key, with a minus for descending order. ``params`` may have ``limit`` and
    ``cursor``; all of them are repeated in the links to ``path``. Raises :class:`Unanswerable` for invalid ones.
    """
    key, descending, limit = order.lstrip("-"), order.startswith("-"), _limit(params.get("limit", ""))
    cursor = read_cursor(params.get("cursor", ""), key_field(rows, key))
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
        links["next"] = _link(path, params, Cursor(False, getattr(found[-1], key)))
    if found and has_previous:
        links["previous"] = _link(path, params, Cursor(True, getattr(found[0], key)))
    return found, links


def _limit(text: str) -> int:
    if not text:
        return USUAL
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LARGEST):
        raise Unanswerable(_("limit must be a whole number from 1 to {most}").format(most=LARGEST))
    return int(text)


def key_field(rows: QuerySet[M], key: str) -> Any:
    """The field of the values in a cursor: a column, a generated one, or an annotation."""
    annotation = rows.query.annotations.get(key)
    field: Any = annotation if annotation is not None else rows.model._meta.get_field(key)
    return getattr(field, "output_field", field)


def read_cursor(text: str, field: Any) -> Cursor | None:
    """Decode a cursor. One of another key, or a forged one, is refused."""
    if not text:
        return None
    kind = int if isinstance(field, IntegerField) else str
    assert kind is int or isinstance(field, CharField | TextField), "pages go by a number or a name"
    try:
        if len(text) > LONGEST_CURSOR or not text.isascii():
            raise ValueError("no cursor of ours")
        content = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        cursor = msgspec.json.decode(content, type=Cursor)
        if not isinstance(cursor.after, kind) or fault_of(cursor.after):
            raise ValueError("a cursor of another list")
        return cursor
    except (ValueError, binascii.Error, RecursionError):
        raise Unanswerable(_("this cursor cannot be read; take it from next or previous")) from None


def _link(path: str, params: Mapping[str, str], cursor: Cursor) -> str:
    text = base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")
    return f"{path}?{urlencode({**params, 'cursor': text})}"
