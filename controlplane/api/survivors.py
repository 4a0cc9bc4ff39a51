"""Survivors of a restored record: staff see them, stop them, and have them forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agents.protocol import Phase
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.api.action import permitted_action
from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource, permitted
from controlplane.fleet import models as rows
from controlplane.fleet import survivors


class Survivor(msgspec.Struct, frozen=True):
    """What runs on a node and the record does not know, for it was restored from a backup. ``devices`` are given to
    nobody else while it lives; ``stopped_by`` is who ordered its end and why, empty where nobody has."""

    part: str
    node: str
    ended: bool
    pid: int | None
    devices: list[str]
    since: str
    stopped_by: str


class SurvivorList(msgspec.Struct, frozen=True):
    """All survivors, by node."""

    results: list[Survivor]


def of_nodes(nodes: Iterable[rows.Node]) -> list[Survivor]:
    """The survivors of these nodes."""
    return [
        Survivor(
            part=part,
            node=node.name,
            ended=told["phase"] >= Phase.ENDED,
            pid=told["pid"],
            devices=told["devices"],
            since=told["since"],
            stopped_by=told["stopped_by"],
        )
        for node in nodes
        for part, told in sorted(node.survivors.items())
    ]


class Survivors(Resource):
    """The list of survivors."""

    scope = "admin"

    @extend_schema(operation_id="survivors_list", responses={200: SurvivorList, 403: Problem})
    def get(self, request: Request) -> Response:
        """What runs on nodes and the record does not know, for it was restored from a backup."""
        permitted(request, Permit.SEE_NODES, _("list survivors"))
        return Response(SurvivorList(of_nodes(rows.Node.objects.exclude(survivors={}).order_by("sort_key"))))


def _found(part: str) -> Survivor:
    node = survivors.found(part)
    if node is None:
        raise not_found(_("survivor {part}").format(part=part[:64]))
    return next(one for one in of_nodes([node]) if one.part == part)


def _shown(found: Sequence[Survivor], user: User) -> Sequence[Survivor]:
    return found


SurvivorStop = permitted_action(
    "survivor",
    "stop",
    Survivor,
    "Has a survivor end, with time to save. A reason is required.",
    permit=Permit.END_SURVIVORS,
    deed=gettext_noop("stop a survivor"),
    act=lambda one, actor, reason: survivors.stop(one.part, actor, reason),
    found=_found,
    shown=_shown,
)
SurvivorForget = permitted_action(
    "survivor",
    "forget",
    Survivor,
    "Has a survivor that has ended forgotten by its node; its folder there goes, and its logs with it.",
    permit=Permit.END_SURVIVORS,
    deed=gettext_noop("have a survivor forgotten"),
    act=lambda one, actor, reason: survivors.forget(one.part, actor, reason),
    found=_found,
    shown=_shown,
)
