"""Alarms: rows of nodes, stages or pools that had to be left out, with the reason, for operators.

Invalid rows of one node, stage or pool never stop the others; the alarm is shown on pages and in the API, not only in a
log.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import connection
from django.utils import timezone

from controlplane import changes
from controlplane.clauses import Told, kept, verbatim
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
PROVIDER: Final = "provider"
SITE: Final = "site"
LOCAL: Final = "local"
# Kinds of alarms about nodes, by the node's name; every user sees nodes.
OF_NODES: Final = (INVENTORY, REPORT, MEASUREMENT, NODE, IDENTITY, MEMORY, RESTORED, LOCAL)
KINDS: Final = (*OF_NODES, POOL, PROFILE, SHADOW, STAGE, FUSE, CYCLE, RECORD, INVARIANT, DISK, PROVIDER, SITE)
# At most this many alarms of one kind are kept.
MOST: Final = 100
# Characters of the clauses of one alarm, as JSON.
LONGEST_SAID: Final = 8_000

_RAISE = """
INSERT INTO fleet_alarm AS a (kind, subject, says, said, since, at, times)
SELECT %s, v.subject, v.says, v.said, now(), now(), 1
FROM unnest(%s::text[], %s::text[], %s::jsonb[]) AS v(subject, says, said)
ON CONFLICT (kind, subject) DO UPDATE SET says = excluded.says, said = excluded.said, at = now(),
    times = CASE WHEN a.times < 2000000000 THEN a.times + 1 ELSE a.times END
RETURNING a.subject, a.says, a.times
"""


def sentence(text: object, longest: int = 500) -> str:
    """Return a text as it may be stored and shown: one line, storable, and of bounded length."""
    clean = str(text).encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
    line = " ".join(clean.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def raised(kind: str, found: Mapping[str, Told], *, about: str | None = None) -> None:
    """Set the alarms of one kind: exactly these subjects are wrong now, all others are cleared.

    With ``about`` only that subject is judged, and the others stay as they are.
    """
    told = {sentence(subject, 130): says for subject, says in list(found.items())[:MOST]}
    former = Alarm.objects.filter(kind=kind)
    if about is not None:
        former = former.filter(subject=sentence(about, 130))
    over, _ = former.exclude(subject__in=told).delete()
    fresh = 0
    if told:
        with connection.cursor() as cursor:
            texts = [sentence(says.text) for says in told.values()]
            cursor.execute(_RAISE, [kind, list(told), texts, [_said(says) for says in told.values()]])
            for subject, says, times in cursor.fetchall():
                if times == 1:
                    fresh += 1
                    log.error("%s %s is set aside: %s", kind, subject, says)
    if over or fresh:
        changes.announce("fleet")


def _said(says: Told) -> str:
    """Return the clauses of a sentence as they may be stored; those of an overlong one are its words alone."""
    text = json.dumps(_clean(says.said))
    return text if len(text) <= LONGEST_SAID else json.dumps(verbatim(sentence(says.text)).said)


def _clean(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _clean(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return sentence(value) if isinstance(value, str) else value


def of_nodes(names: list[str]) -> dict[str, list[Told]]:
    """Return the alarms of each of these nodes."""
    found: dict[str, list[Told]] = {}
    for alarm in Alarm.objects.filter(kind__in=OF_NODES, subject__in=names):
        found.setdefault(alarm.subject, []).append(kept(alarm.says, alarm.said))
    return found


def forget_old(days: int = 1) -> None:
    """Delete alarms that were not raised again for a while, and those of nodes that no longer exist."""
    Alarm.objects.filter(kind__in=OF_NODES).exclude(subject__in=Node.objects.values("name")).delete()
    Alarm.objects.filter(at__lt=timezone.now() - timedelta(days=days)).exclude(kind=INVENTORY).delete()
