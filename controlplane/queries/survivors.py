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
    """A part that runs on a node but is missing from the database, which was restored from a backup. Its ``devices``
    are not assigned while it runs; ``stopped_by`` is who ordered its end and why, empty if nobody has."""

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
            ended=reported["phase"] >= Phase.ENDED,
            pid=reported["pid"],
            devices=reported["devices"],
            since=reported["since"],
            stopped_by=reported["stopped_by"],
        )
        for node in nodes
        for part, reported in sorted(node.survivors.items())
    ]


def found(part: str) -> Survivor:
    """The survivor of this part; raises 404."""
    node = survivors.found(part)
    if node is None:
        raise Unseen(_("survivor {part}").format(part=part[:64]))
    return next(one for one in of_nodes([node]) if one.part == part)
