"""The parameters of lists whose views read them as structs."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from django.db.models import Model, QuerySet
from rest_framework.request import Request

from controlplane.queries import cursor
from controlplane.queries.cursor import LARGEST

M = TypeVar("M", bound=Model)


class PageQuery(msgspec.Struct, frozen=True):
    """Where a page begins and how long it is; what else a list may be narrowed by is added by a subclass."""

    limit: int | None = None
    cursor: str = ""


PAGE_DESCRIBED = {
    "limit": f"At most so many, up to {LARGEST}.",
    "cursor": "From next or previous of an earlier answer.",
}


def page_of(
    rows: QuerySet[M], request: Request, key: str, *, limit: int | None, descending: bool
) -> tuple[list[M], Any]:
    """One page of ``rows`` in the order of ``key``, and the links to its neighbours."""
    return cursor.page_of(rows, f"-{key}" if descending else key, request.path, request.query_params.dict())
