"""OpenAPI descriptions that all routes of a kind have in common."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.viewsets import ViewSetMixin

from controlplane.api.mixins import ConditionalMixin, IdempotentCreateMixin
from controlplane.api.pagination import WholeList
from controlplane.api.problem import PROBLEM_TYPE, Problem
from controlplane.api.serializers import FIELDS, ReadModelSerializer

KEY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="The same key takes effect once within a day."
)

FIELDS_OF = OpenApiParameter(
    FIELDS, str, description="Names of fields of what is listed or shown, separated by commas; all by default."
)


class RouteSchema(AutoSchema):
    """Names the operations of viewsets after resource and action, and describes idempotency keys and problem
    documents."""

    def get_operation_id(self) -> str:
        if not isinstance(self.view, ViewSetMixin) or not self.view.action:
            return super().get_operation_id()
        action = {"retrieve": "get"}.get(self.view.action, self.view.action)
        return f"{self.view.basename}_{action}".replace("-", "_")

    def get_override_parameters(self) -> list[Any]:
        if self.method == "POST" and isinstance(self.view, IdempotentCreateMixin):
            return [KEY]
        return [FIELDS_OF] if self._has_fields() else []

    def _has_fields(self) -> bool:
        """Whether it is a list or a get of read models, of which a client may ask for some fields."""
        mixin = {"list": ListModelMixin, "retrieve": RetrieveModelMixin}.get(getattr(self.view, "action", ""))
        if mixin is None or not isinstance(self.view, mixin):
            return False
        kind: Any = self.view
        return issubclass(kind.get_serializer_class(), ReadModelSerializer)

    def get_paginated_name(self, serializer_name: str) -> str:
        return f"{serializer_name}{'List' if isinstance(self._get_paginator(), WholeList) else 'Page'}"

    def _is_list_view(self, serializer: Any = None) -> bool:
        """Whether the answer is a list or page of what is described; one with its own ``list`` describes it whole."""
        whole = getattr(self.view, "action", "") == "list" and not isinstance(self.view, ListModelMixin)
        return not whole and super()._is_list_view(serializer)

    def _resolve_path_parameters(self, variables: Any) -> list[dict[str, Any]]:
        found = super()._resolve_path_parameters(variables)
        examples = getattr(self.view, "examples", {})
        return [{**each, "example": examples[each["name"]]} if each["name"] in examples else each for each in found]

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        found = super()._get_response_bodies(direction)
        if self._is_conditional():
            found.setdefault("304", {"description": "The client has it already."})
        for status in self._refusals():
            found.setdefault(status, self._get_response_for_code(Problem, status))
        return dict(sorted(found.items()))

    def _get_response_for_code(
        self, serializer: Any, status_code: str, media_types: Any = None, direction: Any = "response"
    ) -> dict[str, Any]:
        if serializer is not Problem:
            return super()._get_response_for_code(serializer, status_code, media_types, direction)
        made = super()._get_response_for_code(Problem, status_code, [PROBLEM_TYPE], direction)
        made["description"] = "The request is refused, and why."
        component = ResolvedComponent("Problem", ResolvedComponent.RESPONSE, made, Problem)
        self.registry.register_on_missing(component)
        return dict(component.ref)

    def _is_conditional(self) -> bool:
        return self.method == "GET" and isinstance(self.view, ConditionalMixin)

    def _refusals(self) -> set[str]:
        """The statuses of problem documents that operations of this kind can answer."""
        statuses = {"400", "403", "503"}
        if self.view.authentication_classes:
            statuses.add("401")
        if self.view.throttle_classes:
            statuses.add("429")
        if "{" in self.path:
            statuses.add("404")
        if self._is_conditional():
            statuses.add("412")
        if self.method in {"POST", "PUT", "PATCH", "DELETE"}:
            statuses.add("409")
        if self.method in {"POST", "PUT", "PATCH"}:
            statuses |= {"413", "415", "422"}
        for each in self.get_override_parameters():
            if isinstance(each, OpenApiParameter) and each.name == "If-Match":
                statuses |= {"412", "428"} if each.required else {"412"}
        return statuses
