"""The mass-loss fuse: when many nodes fall silent together, the control plane's side is more likely at fault.

While the fuse is blown, nothing of silent nodes is requeued. Neither time, nor a restart of the control plane, nor the
return of some nodes releases it: the others may still run their stages. It is released when no node with running stages
is silent any more, or by a person, who thereby confirms that the silent nodes may be declared lost.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane import changes
from controlplane.accounts import audit
from controlplane.clauses import clause, told
from controlplane.fleet import alarms
from controlplane.fleet.models import Heartbeat, Node
from controlplane.fleet.service import NodeRefused
from scheduler.core.model.lifecycle import NodeState

log = logging.getLogger(__name__)

BLOWN: Final = "fuse"
RELEASED: Final = "fuse-released"
WITHIN: Final = timedelta(seconds=120)
AT_LEAST: Final = 3
SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class FuseState:
    """Since when the fuse is blown (``None`` if it is not), the silent nodes with stages, and out of how many."""

    blown_at: datetime | None
    silent: tuple[str, ...]
    nodes: int


def look() -> bool:
    """Blow the fuse if it is due, and return whether it is blown."""
    with transaction.atomic():
        blown = Heartbeat.objects.select_for_update().filter(name=BLOWN).first()
        silent, total = list(_silent().values_list("name", flat=True)), _known()
        if blown is not None and not silent:
            blown.delete()
            blown = None
        elif blown is None and silent and _fell_together(total):
            blown, _new = Heartbeat.objects.update_or_create(name=BLOWN, defaults={"at": timezone.now()})
            log.error("the mass-loss fuse has blown: %s of %s nodes are silent", len(silent), total)
        says = told(clause("FellSilent", lost=len(silent), total=total, nodes=", ".join(sorted(silent)[:5])))
        alarms.raised(alarms.FUSE, {"cluster": says} if blown else {})
    return blown is not None


def release(actor: str, reason: str) -> None:
    """Release the fuse: silent nodes are declared lost by the ordinary rules again. Raises :class:`NodeRefused`."""
    with transaction.atomic():
        if not Heartbeat.objects.select_for_update().filter(name=BLOWN).delete()[0]:
            raise NodeRefused(_("the mass-loss fuse is not blown; there is nothing to release"))
        Heartbeat.objects.update_or_create(name=RELEASED, defaults={"at": timezone.now()})
        alarms.raised(alarms.FUSE, {})
        silent = list(_silent().order_by("sort_key").values_list("name", flat=True))
        audit.record("fuse.release", ("fuse", None, "fuse"), before={"silent": silent}, reason=reason)
        transaction.on_commit(lambda: changes.announce("fleet"))
    log.warning("%s has released the mass-loss fuse: %s", actor, reason)


def state() -> FuseState:
    """Return the current state of the fuse."""
    at = Heartbeat.objects.filter(name=BLOWN).values_list("at", flat=True).first()
    return FuseState(at, tuple(_silent().order_by("sort_key").values_list("name", flat=True)), _known())


def _silent() -> QuerySet[Node]:
    """Return lost nodes with running stages, without those that a person confirmed as gone."""
    return Node.objects.filter(state=NodeState.LOST, parts__isnull=False, parts__ended_at=None).distinct()


def _known() -> int:
    return Node.objects.exclude(state=NodeState.JOINING).count()


def _fell_together(total: int) -> bool:
    since = timezone.now() - WITHIN
    released = Heartbeat.objects.filter(name=RELEASED).values_list("at", flat=True).first()
    fresh = Node.objects.filter(state=NodeState.LOST, state_at__gte=max(since, released or since)).count()
    return fresh >= max(AT_LEAST, SHARE * total)
