"""Consolidation: moves of running stages that would make room for a stage that fits nowhere, with their price.

Advice only: a move is made when a person accepts it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from controlplane.accounts.models import User
from controlplane.whatif import consolidation
from controlplane.whatif.consolidation import Thought
from scheduler.core.planning.consolidate import MoveAdvice


class ConsolidationMove(msgspec.Struct, frozen=True):
    """A running stage that would stop with a checkpoint and go on elsewhere; its price in weighted device-seconds."""

    stage: str
    nodes: list[str]
    to: list[str]
    price: float


class ConsolidationAdvice(msgspec.Struct, frozen=True):
    """Moves that together would let the stage start on ``nodes``.

    ``price`` is the work that they lose, ``gain`` what the stage gains by not waiting ``wait_s``, both in weighted
    device-seconds; ``worth`` tells that the gain is larger.
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
    """All advice, in queue order. ``too_large`` tells that too many stages wait to compute any."""

    evaluated_at: datetime
    too_large: bool
    advice: list[ConsolidationAdvice]


def advised(user: User) -> Consolidation:
    """Compute the present advice, in queue order."""
    found = consolidation.thought(user)
    at = datetime.fromtimestamp(found.at, UTC)
    return Consolidation(at, found.too_large, [shown(one, found) for one in found.advice])


def shown(one: MoveAdvice, found: Thought) -> ConsolidationAdvice:
    """Return this advice with the names of stages and nodes."""

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
