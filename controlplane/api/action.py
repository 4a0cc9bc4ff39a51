"""Verbs at the end of an address, such as ``POST /jobs/7/cancel``: one view each, described by what it promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from django.utils.translation import gettext
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.problem import Problem
from controlplane.api.resource import Resource, permitted, taken


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason of an action, for the history of what it is done to."""

    reason: str = ""


def action(
    base: type[Resource],
    noun: str,
    word: str,
    shape: type[msgspec.Struct],
    promise: str,
    parameters: Sequence[OpenApiParameter] = (),
) -> type[Resource]:
    """The view that does ``word`` to one ``noun`` and answers with its ``shape``; ``base`` reads it as ``action``."""
    described = extend_schema(
        operation_id=f"{noun}s_{word}",
        request=Why,
        responses={200: shape, 403: Problem, 404: Problem, 409: Problem},
        description=promise,
        parameters=list(parameters),
    )
    name = f"{noun.capitalize()}{word.capitalize()}"
    return extend_schema_view(post=described)(type(name, (base,), {"action": word, "__doc__": promise}))


def permitted_action(
    noun: str,
    word: str,
    shape: type[msgspec.Struct],
    promise: str,
    *,
    permit: Permit,
    deed: str,
    act: Callable[[Any, str, str], object],
    found: Callable[[str], Any],
    shown: Callable[[Sequence[Any], User], Sequence[Any]],
) -> type[Resource]:
    """The view of a verb that needs a permission. ``deed``, marked for the translators, says to anybody else what they
    may not do; ``act`` takes the row, who asks and why."""

    class PermittedAction(Resource):
        scope = "admin"

        @idempotent
        def post(self, request: Request, name: str) -> Response:
            """Acts on the row and answers with how it stands then."""
            user = permitted(request, permit, gettext(deed))
            why = taken(request, Why)
            act(found(name), user.get_username(), why.reason.strip()[:200])
            return Response(shown([found(name)], user)[0])

    return action(PermittedAction, noun, word, shape, promise)
