"""How viewsets get their addresses."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter


class Router(SimpleRouter):
    """Addresses without a slash at their end. Actions come before the row itself, whose name may have slashes."""

    routes = [SimpleRouter.routes[0], SimpleRouter.routes[1], SimpleRouter.routes[3], SimpleRouter.routes[2]]

    def __init__(self) -> None:
        super().__init__(trailing_slash=False, use_regex_path=False)
