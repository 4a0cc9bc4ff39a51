"""Answers which nodes an agent may fetch an input from, with tickets that those nodes accept.

A node only learns of inputs that its own parts, or stages planned for it, read. Nodes that cache an input are listed
first; if none does, one node is appointed to download it and the others wait for that one.
"""

from __future__ import annotations

import random
import uuid
from typing import Final

from django.db import connection

from agents.protocol import AskSources, Input, Source, Sources
from controlplane.dispatch.peer_tickets import ticket
from controlplane.fleet.models import Node
from controlplane.jobs import inputs

APPOINTED_FOR_S: Final = 60.0
PEERS: Final = 4

# Inputs of what runs here and of what is planned here soon; both lists are short, and both have an index.
_READERS = """
SELECT s.id FROM jobs_part p JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
WHERE p.node_id = %(node)s AND p.ended_at IS NULL AND s.request ? 'inputs'
UNION SELECT id FROM jobs_stage
WHERE state IN ('HELD', 'PENDING') AND request ? 'inputs' AND planned->'nodes' ? %(name)s
"""
_HOLDERS = """
SELECT n.name, k.url, k.key FROM fleet_kept k JOIN fleet_node n ON n.id = k.node_id
WHERE k.digests @> to_jsonb(%(digest)s::text) AND k.url <> '' AND k.node_id <> %(node)s
  AND n.state IN ('READY', 'DRAINING', 'DRAINED') AND NOT n.name = ANY(%(failed)s)
"""
# One statement, hence one winner: whoever finds no living appointment, or renews its own.
_APPOINT = """
INSERT INTO fleet_fetch (digest, node_id, until) VALUES (%(digest)s, %(node)s, now() + make_interval(secs => %(life)s))
ON CONFLICT (digest) DO UPDATE SET node_id = excluded.node_id, until = excluded.until
WHERE fleet_fetch.until < now() OR fleet_fetch.node_id = excluded.node_id
RETURNING node_id
"""


def wanted(node: Node, digest: str) -> Input | None:
    """Return the input with this digest that a stage on this node reads; None if no stage does."""
    with connection.cursor() as cursor:
        cursor.execute(_READERS, {"node": node.id, "name": node.name})
        stages = [row[0] for row in cursor.fetchall()]
    return next((each for found in inputs.resolved(stages).values() for each in found if each.digest == digest), None)


def answer(node: Node, asked: AskSources) -> Sources | None:
    """Return where a node may fetch an input from; None if no stage on it reads that."""
    each = wanted(node, asked.digest)
    if each is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute(_HOLDERS, {"digest": asked.digest, "node": node.id, "failed": asked.failed[:100]})
        holders = cursor.fetchall()
    # Each node in an order of its own, so that those who ask together do not all go to the same one.
    random.Random(f"{node.id}{asked.digest}").shuffle(holders)
    peers = [Source(name, url, ticket(key, asked.digest)) for name, url, key in holders[:PEERS]]
    if peers:
        return Sources(peers=peers)
    if not each.source:
        return Sources(refused="no node that is there has the output any more; run the stage that made it again")
    return Sources(is_appointed=appoint(node.id, asked.digest), wait_s=1.0)


def appoint(node_id: uuid.UUID, digest: str) -> bool:
    """Return whether this node is the one to download from the source, for a minute or until it stops asking again."""
    with connection.cursor() as cursor:
        cursor.execute(_APPOINT, {"digest": digest, "node": node_id, "life": APPOINTED_FOR_S})
        return cursor.fetchone() is not None
