"""Identifies the sender of a request and checks its permission to send a body, before the body is read."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.urls import Resolver404, resolve
from rest_framework.exceptions import APIException

from controlplane.api.problem import RequestRefused
from controlplane.simulations.service import TooManySimulations

Scope = dict[str, Any]
_sessions: Final = import_module(settings.SESSION_ENGINE)


def of_api(scope: Scope) -> str:
    """The sender that the view at this address admits, by its own authenticators and permissions; empty if none."""
    request = _request(scope)
    try:
        found: Any = resolve(request.path_info).func
        view = found.cls(**found.initkwargs)
    except (Resolver404, AttributeError):
        return ""
    view.action_map = getattr(found, "actions", None) or {}
    asked = view.initialize_request(request)
    try:
        view.perform_authentication(asked)
        view.check_permissions(asked)
    except (APIException, RequestRefused, TooManySimulations):
        return ""
    return f"user:{asked.user.pk}" if asked.user else ""


def of_page(scope: Scope) -> str:
    """The signed-in user; empty if there is none."""
    user = _request(scope).user
    return f"user:{user.pk}" if user.is_authenticated else ""


def _request(scope: Scope) -> HttpRequest:
    """The request without its body, with its session and its user."""
    request = ASGIRequest(scope, BytesIO())
    request.session = _sessions.SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    request.user = get_user(request)
    return request
