"""Consolidation: whom moving would make room for a stage that fits nowhere, at what price. Advice, until followed."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.problem import Problem, Refused
from controlplane.api.resource import Resource, permitted, taken
from controlplane.whatif import consolidation
from controlplane.whatif.consolidation import Thought
from scheduler.core.planning.consolidate import Advice

DEED = gettext_noop("ask what could be moved")


class ConsolidationMove(msgspec.Struct, frozen=True):
    """A running stage that would stop with a checkpoint and go on elsewhere; its price in weighted device-seconds."""

    stage: str
    nodes: list[str]
    to: list[str]
    price: float


class ConsolidationAdvice(msgspec.Struct, frozen=True):
    """With all of ``moves`` the stage would start on ``nodes``.

    ``price`` is what they lose, ``gain`` what it wins by not waiting for ``wait_s``, both in weighted device-seconds;
    ``worth`` tells that the gain is larger.
    """

    id: str
    stage: str
    nodes: list[str]
    moves: list[ConsolidationMove]
    price: float
    gain: float
    wait_s: float
    worth: bool


class Consolidation(msgspec.Struct, frozen=True):
    """All advice, in the order of the queue. ``too_large``: too many stages wait to think of any now."""

    evaluated_at: datetime
    too_large: bool
    advice: list[ConsolidationAdvice]


class Followed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which advice to follow: the id of the stage that it is for."""

    stage: str


class ConsolidationNow(Resource):
    """What could be moved together."""

    scope = "admin"

    @extend_schema(operation_id="consolidation_get", responses={200: Consolidation, 403: Problem})
    def get(self, request: Request) -> Response:
        """For stages at the head of the queue that fit nowhere although enough is free in all: who would have to move,
        and what that costs. Nothing is changed by asking. Only staff."""
        found = consolidation.thought(permitted(request, Permit.SEE_DECISIONS, gettext(DEED)))
        return Response(
            Consolidation(
                datetime.fromtimestamp(found.at, UTC), found.too_large, [_shown(one, found) for one in found.advice]
            )
        )

    @extend_schema(
        operation_id="consolidation_follow",
        request=Followed,
        responses={200: ConsolidationAdvice, 400: Problem, 403: Problem, 409: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Follows one advice: those who stand in the way stop with a checkpoint and go on elsewhere. Only staff."""
        user = permitted(request, Permit.MOVE_ATTEMPTS, gettext(DEED))
        done = consolidation.follow(taken(request, Followed).stage, user)
        if done is None:
            raise Refused(409, "advice_gone", _("there is no such advice now: the world has moved on; ask for it anew"))
        return Response(_shown(*done))


def _shown(one: Advice, found: Thought) -> ConsolidationAdvice:
    def named(nodes: tuple[str, ...]) -> list[str]:
        return [found.nodes.get(node, "?") for node in nodes]

    moves = [
        ConsolidationMove(
            found.stages.get(move.victim, "?"),
            named(found.where.get(move.victim, ())),
            named(move.placement.nodes),
            move.price,
        )
        for move in one.moves
    ]
    stage, nodes = found.stages.get(one.stage, "?"), named(one.placement.nodes)
    return ConsolidationAdvice(one.stage, stage, nodes, moves, one.price, one.gain, one.wait_s, one.is_worth)
