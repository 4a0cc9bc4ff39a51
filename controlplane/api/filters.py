"""Filters of lists."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from controlplane.api.serializers import FIELDS, ReadModelSerializer, refuse_unknown


class StrictFilterBackend(DjangoFilterBackend):
    """Filters a list by the view's ``filterset_class``, and refuses parameters that are neither filters nor of
    pagination."""

    def filter_queryset(self, request: Request, queryset: QuerySet, view: Any) -> QuerySet:
        filterset = self.get_filterset_class(view, queryset)
        pages = view.paginator.get_schema_operation_parameters(view) if view.paginator else []
        known = [*(filterset.base_filters if filterset else ()), *(each["name"] for each in pages)]
        if issubclass(view.get_serializer_class(), ReadModelSerializer):
            known.append(FIELDS)
        refuse_unknown(request.query_params, known)
        return super().filter_queryset(request, queryset, view)
