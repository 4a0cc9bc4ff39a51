"""Survivors: parts that run on a node but are unknown because the database was restored from a backup.

They are never stopped automatically: they run on, their accelerators are not allocated, and people see them. A person
stops one; an ended survivor stays listed, with its logs on the node, until a person removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from agents.protocol import Here, Phase, Wanted
from controlplane.accounts import audit
from controlplane.fleet.models import Device, Node
from controlplane.fleet.service import NodeRefused

MOST: Final = 500
GRACE_S: Final = 30.0


def note(node: Node, unknown: Iterable[Here], at: datetime) -> bool:
    """Store which unknown parts a node reports; return whether that changed. The node is locked."""
    found: dict[str, dict[str, Any]] = {}
    for item in list(unknown)[:MOST]:
        before = node.survivors.get(item.part, {})
        found[item.part] = {
            "attempt": item.attempt,
            "epoch": item.epoch,
            "phase": int(item.phase),
            "pid": item.pid,
            "devices": list(item.devices)[:64],
            "since": before.get("since") or at.isoformat(),
            "stopped_by": before.get("stopped_by", ""),
            "forgotten_by": before.get("forgotten_by", ""),
        }
    if found == node.survivors:
        return False
    node.survivors = found
    Node.objects.filter(id=node.id).update(survivors=found)
    return True


def orders(node: Node) -> tuple[list[Wanted], list[str]]:
    """Return the stops that people ordered, and the parts that their node should forget."""
    stops = [
        Wanted(
            part=part, attempt=told["attempt"], epoch=told["epoch"], do="stop", why="CANCELLED", grace_s=GRACE_S,
            save=True,
        )
        for part, told in node.survivors.items()
        if told["stopped_by"] and told["phase"] < Phase.ENDED
    ]  # fmt: skip
    return stops, [part for part, told in node.survivors.items() if told["forgotten_by"]]


def held(node: Node) -> dict[str, str]:
    """Return the survivor that holds each device. CPU cores are shared and not held."""
    claimed = {uuid: part for part, told in node.survivors.items() if told["phase"] < Phase.ENDED
               for uuid in told["devices"]}  # fmt: skip
    if not claimed:
        return {}
    known = Device.objects.filter(node=node, uuid__in=claimed).exclude(kind="cpu").values_list("uuid", flat=True)
    return {uuid: claimed[uuid] for uuid in known}


def found(part: str) -> Node | None:
    """Return the node that has this survivor."""
    return Node.objects.filter(survivors__has_key=part).first()


def stop(part: str, actor: str, reason: str) -> None:
    """Stop a survivor, with time to save. Raises NodeRefused."""
    if not reason.strip():
        raise NodeRefused(_("a stop of a survivor needs a reason: others will ask"))
    _mark(part, "stopped_by", f"{reason} ({actor})", reason, must_live=True)


def forget(part: str, actor: str, reason: str) -> None:
    """Remove an ended survivor and its folder with logs from its node. Raises NodeRefused."""
    _mark(part, "forgotten_by", actor, reason, must_live=False)


def _mark(part: str, field: str, says: str, why: str, *, must_live: bool) -> None:
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(survivors__has_key=part).first()
        told = node.survivors[part] if node is not None else None
        if node is None or told is None:
            raise NodeRefused(_("there is no such survivor any more"))
        if (told["phase"] < Phase.ENDED) != must_live:
            raise NodeRefused(
                _("it has ended already; have it forgotten") if must_live else _("it still runs; stop it first")
            )
        told[field] = says[:200]
        Node.objects.filter(id=node.id).update(survivors=node.survivors)
        action = "survivor.stop" if must_live else "survivor.forget"
        audit.record(action, ("survivor", part, f"{part} on {node.name}"), after={field: told[field]}, reason=why)
