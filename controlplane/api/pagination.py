"""Pagination of lists."""

from __future__ import annotations

from typing import Any

from rest_framework.pagination import BasePagination, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.queries.cursor import LARGEST, USUAL, Page, page_of


class KeysetPagination(CursorPagination):
    """Pages by cursor in the view's ``ordering``, a unique key, with the same cursors as pages.

    An invalid limit or cursor is refused, where the base class would ignore it.
    """

    page_size = USUAL
    max_page_size = LARGEST
    page_size_query_param = "limit"
    page_size_query_description = f"At most so many, up to {LARGEST}."
    cursor_query_description = "From next or previous of an earlier answer."

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        order = view.get_ordering() if hasattr(view, "get_ordering") else view.ordering
        rows, self.links = page_of(queryset, order, request.path, request.query_params.dict())
        return rows

    def get_paginated_response(self, data: Any) -> Response:
        return Response(Page(data, **self.links))

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        return _results(schema, next=link, previous=link)


class WholeList(BasePagination):
    """All rows at once, for short lists."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        return list(queryset)

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return _results(schema)


def _results(schema: dict[str, Any], **others: Any) -> dict[str, Any]:
    properties = {"results": schema, **others}
    return {"type": "object", "required": list(properties), "properties": properties}
