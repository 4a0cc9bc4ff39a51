"""Data locality: the digests that pending stages read, and the nodes that already cache them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from django.db import connection

from controlplane.jobs import inputs
from controlplane.jobs.models import Output
from scheduler.core.model.types import Node, Stage

# Only digests that pending stages read: a node may cache thousands.
_WHERE = """
SELECT k.node_id::text, d.digest
FROM unnest(%s::text[]) AS d(digest) JOIN fleet_kept k ON k.digests @> to_jsonb(d.digest)
"""


def read_by(stages: Collection[uuid.UUID]) -> dict[uuid.UUID, tuple[str, ...]]:
    """Return the digests that each stage reads and that are on no shared storage, as far as they are known."""
    return {
        stage: tuple(sorted({one.digest for one in reads if not one.path}))
        for stage, reads in inputs.resolved(stages).items()
    }


def sizes(digests: Collection[str]) -> dict[str, int]:
    """Return the size in bytes of each digest that a stage has produced."""
    if not digests:
        return {}
    found = Output.objects.filter(digest__in=digests).order_by("digest").distinct("digest")
    return {digest: size for digest, size in found.values_list("digest", "size_bytes") if size > 0}


def with_cached(nodes: tuple[Node, ...], waiting: Iterable[Stage]) -> tuple[Node, ...]:
    """Return the nodes with ``cached`` set to those digests that ``waiting`` stages read."""
    wanted = {digest for stage in waiting for digest in stage.inputs}
    if not wanted:
        return nodes
    here: dict[str, list[str]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_WHERE, [sorted(wanted)])
        for node, digest in cursor.fetchall():
            here[node].append(digest)
    return tuple(replace(node, cached=tuple(sorted(here[node.id]))) if node.id in here else node for node in nodes)
