"""Alarms: rows of nodes, stages or pools that had to be left out, with the reason, for operators.

Invalid rows of one node, stage or pool never stop the others; the alarm is shown on pages and in the API, not only in a
log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from django.db import connection
from django.utils import timezone

from controlplane import changes
from controlplane.fleet.models import Alarm, Node

log = logging.getLogger(__name__)

INVENTORY: Final = "inventory"
REPORT: Final = "report"
MEASUREMENT: Final = "measurement"
NODE: Final = "node"
IDENTITY: Final = "identity"
MEMORY: Final = "memory"
FUSE: Final = "fuse"
RESTORED: Final = "restored"
STAGE: Final = "stage"
POOL: Final = "pool"
PROFILE: Final = "profile"
SHADOW: Final = "shadow"
CYCLE: Final = "cycle"
RECORD: Final = "record"
INVARIANT: Final = "invariant"
DISK: Final = "disk"
# Kinds of alarms about nodes, by the node's name; every user sees nodes.
OF_NODES: Final = (INVENTORY, REPORT, MEASUREMENT, NODE, IDENTITY, MEMORY, RESTORED)
KINDS: Final = (*OF_NODES, POOL, PROFILE, SHADOW, STAGE, FUSE, CYCLE, RECORD, INVARIANT, DISK)
# At most this many alarms of one kind are kept.
MOST: Final = 100

_RAISE = """
INSERT INTO fleet_alarm AS a (kind, subject, says, since, at, times)
SELECT %s, v.subject, v.says, now(), now(), 1 FROM unnest(%s::text[], %s::text[]) AS v(subject, says)
ON CONFLICT (kind, subject) DO UPDATE SET says = excluded.says, at = now(),
    times = CASE WHEN a.times < 2000000000 THEN a.times + 1 ELSE a.times END
RETURNING a.subject, a.says, a.times
"""


def sentence(text: object, longest: int = 500) -> str:
    """Return a text as it may be stored and shown: one line, storable, and of bounded length."""
    clean = str(text).encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    line = " ".join(clean.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def raised(kind: str, found: Mapping[str, str], *, about: str | None = None) -> None:
    """Set the alarms of one kind: exactly these subjects are wrong now, all others are cleared.

    With ``about`` only that subject is judged, and the others stay as they are.
    """
    told = {sentence(subject, 130): sentence(says) for subject, says in list(found.items())[:MOST]}
    former = Alarm.objects.filter(kind=kind)
    if about is not None:
        former = former.filter(subject=sentence(about, 130))
    over, _ = former.exclude(subject__in=told).delete()
    fresh = 0
    if told:
        with connection.cursor() as cursor:
            cursor.execute(_RAISE, [kind, list(told), list(told.values())])
            for subject, says, times in cursor.fetchall():
                if times == 1:
                    fresh += 1
                    log.error("%s %s is set aside: %s", kind, subject, says)
    if over or fresh:
        changes.announce("fleet")


def of_nodes(names: list[str]) -> dict[str, list[str]]:
    """Return the alarms of each of these nodes, as sentences."""
    found: dict[str, list[str]] = {}
    for alarm in Alarm.objects.filter(kind__in=OF_NODES, subject__in=names):
        found.setdefault(alarm.subject, []).append(alarm.says)
    return found


def forget_old(days: int = 1) -> None:
    """Delete alarms that were not raised again for a while, and those of nodes that no longer exist."""
    Alarm.objects.filter(kind__in=OF_NODES).exclude(subject__in=Node.objects.values("name")).delete()
    Alarm.objects.filter(at__lt=timezone.now() - timedelta(days=days)).exclude(kind=INVENTORY).delete()
