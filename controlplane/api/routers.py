"""Routes of viewsets."""

from __future__ import annotations

from typing import Any

from rest_framework.routers import Route, SimpleRouter

from controlplane.api.viewsets import SingleViewSet


class Router(SimpleRouter):
    """Addresses without a trailing slash. Actions come before the row itself, whose name may have slashes."""

    routes = [SimpleRouter.routes[0], SimpleRouter.routes[1], SimpleRouter.routes[3], SimpleRouter.routes[2]]

    def __init__(self) -> None:
        super().__init__(trailing_slash=False, use_regex_path=False)

    def get_routes(self, viewset: Any) -> list[Any]:
        routes = super().get_routes(viewset)
        if not issubclass(viewset, SingleViewSet):
            return routes
        first, *others = routes
        assert isinstance(first, Route)
        actions = [route for route in others if not route.detail]
        return [first._replace(mapping={"get": "retrieve", "post": "create", "delete": "destroy"}), *actions]
