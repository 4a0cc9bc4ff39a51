"""Verbs at the end of an address, such as ``POST /jobs/7/cancel``: one view each, described by what it promises."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view

from controlplane.api.problem import Problem
from controlplane.api.resource import Resource


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
