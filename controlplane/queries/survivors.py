"""Survivors of a restored database: parts that run on nodes and are unknown to the database."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from django.utils.translation import gettext as _

from agents.protocol import Phase
from controlplane.fleet import models as rows
from controlplane.fleet import survivors
from controlplane.queries.refusals import Unseen


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


def found(part: str) -> Survivor:
    """The survivor with this part; raises 404."""
    node = survivors.found(part)
    if node is None:
        raise Unseen(_("survivor {part}").format(part=part[:64]))
    return next(one for one in of_nodes([node]) if one.part == part)
