"""The only writer of node and device states: enrol, inventory, drain, resume, contact lost and regained."""

from __future__ import annotations

import hmac
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import QUARANTINED, Conditions, Inventory, Kept, Report
from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import slug
from controlplane.accounts.service import digest
from controlplane.clauses import Clause, Told, clause, each_of_agent, kept, of_agent, told, verbatim
from controlplane.fleet import alarms, amounts, hosts, links, quarantine
from controlplane.fleet.models import Device, DrainMode, JoinToken, Node
from controlplane.fleet.models import Kept as KeptRow
from controlplane.pools.models import Pool
from scheduler.core.model.kinds import is_device
from scheduler.core.model.lifecycle import Health, NodeState

GOOD_REPORTS = 3
MOST_LABELS = 200
LONGEST_MOUNT = 400
MAX_KEPT = 2_000
STATE: Final = ("state", "state_at", "reason", "reason_said", "drain_interrupted", "drain_stop_at", "drain_stops")
# The columns that an ordinary report writes.
HEARTBEAT = [
    "last_report_at",
    "boot_id",
    "start_seq",
    "seq",
    "seen_generation",
    "agent_version",
    "good_reports",
    *STATE,
]


CREDENTIAL: Final = ("credential_digest", "credential_at", "offered_digests")
# No more unused secrets are kept; an agent that used none of these will use no further one.
MOST_OFFERED: Final = 4


class NodeRefused(Exception):
    """Raised when an operation on a node or device is not allowed; the text says why."""


def make_join_token(pool: Pool, *, uses: int = 1, life: timedelta = timedelta(hours=1)) -> str:
    """Create a secret with which ``uses`` nodes may join ``pool``. It is returned once and stored as a digest."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        made = JoinToken(digest=digest(secret), pool=pool, uses_left=uses, expires_at=timezone.now() + life)
        made.save()
        after = audit.fields(made, "pool", "uses_left", "expires_at")
        audit.record("jointoken.make", ("jointoken", None, f"pool {pool.name}"), after=after)
    return secret


def make_return_token(node: Node, *, life: timedelta = timedelta(hours=1)) -> str:
    """Create a secret with which only ``node`` may join again, once. Its present credential is valid until then."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        made = JoinToken(digest=digest(secret), node=node, expires_at=timezone.now() + life)
        made.save()
        after = audit.fields(made, "node", "uses_left", "expires_at")
        audit.record("jointoken.make", ("jointoken", None, f"node {node.name}"), after=after)
    return secret


def enrol(token: str, name: str) -> tuple[Node, str]:
    """Register a new node, or one that joins again with the token made for it. Return it with its credential, which is
    stored as a digest. Raises NodeRefused.

    A name that is taken stays with its node in every state: a join token of a pool never takes it over.
    """
    try:
        slug(name)
    except ValidationError:
        raise NodeRefused(
            _("node name {name!r}: use 1 to 63 lower-case letters, digits and hyphens").format(name=name)
        ) from None
    with transaction.atomic():
        join = JoinToken.objects.select_for_update().filter(digest=digest(token)).first()
        if join is None or join.expires_at < timezone.now() or join.uses_left < 1:
            raise NodeRefused(
                _("this join token is unknown, used up or expired; make a new one with: {command}").format(
                    command="manage.py join_token"
                )
            )
        credential = secrets.token_urlsafe(32)
        node = Node.objects.select_for_update().filter(name=name).first()
        if join.node_id is not None and (node is None or node.id != join.node_id):
            raise NodeRefused(_("this join token was made for another node than {name}").format(name=name))
        if node is None:
            node = Node.objects.create(name=name, credential_digest=digest(credential), credential_at=timezone.now())
        elif join.node_id is None:
            raise NodeRefused(
                _(
                    "node {name} is here already ({state}); choose another name, or let it join again "
                    "with a token of its own: {command}"
                ).format(name=name, state=node.state, command=f"manage.py join_token --node {name}")
            )
        else:
            node.credential_digest, node.credential_at = digest(credential), timezone.now()
            node.offered_digests = []
            # A node that joins again keeps its row; the machine it runs on is identified anew.
            node.start_seq = node.seq = 0
            node.incarnation = node.machine_id = ""
            node.save(update_fields=[*CREDENTIAL, "start_seq", "seq", "incarnation", "machine_id"])
            alarms.raised(alarms.IDENTITY, {}, about=node.name)
            _credential_changed(node)
        if join.pool is not None:
            node.pools.add(join.pool)
        JoinToken.objects.filter(digest=join.digest).update(uses_left=F("uses_left") - 1)
    return node, credential


def revoke(node: Node) -> None:
    """Revoke the node's credential: its agent is refused from now on and its open connection is closed. Its stages go
    on until the node is lost; it can join again with a token made for it."""
    with transaction.atomic():
        Node.objects.filter(id=node.id).update(credential_digest=f"revoked {uuid.uuid4()}", offered_digests=[])
        JoinToken.objects.filter(node=node).delete()
        audit.record("node.revoke", node)
    _credential_changed(node)


def rotate(node: Node, actor: str, reason: str = "") -> Node:
    """Have the node's agent get a new credential through its link now. The old one is valid until the new one is used.

    Raises NodeRefused if it has none because it was revoked.
    """
    if node.credential_digest.startswith("revoked "):
        raise NodeRefused(_("the credential of node {name} was revoked: let it join again").format(name=node.name))
    with transaction.atomic():
        Node.objects.filter(id=node.id).update(credential_at=None)
        audit.record("node.rotate", node, before=audit.fields(node, "credential_at"), reason=reason)
    _credential_changed(node)
    return node


def next_credential(node_id: uuid.UUID) -> str:
    """Create a new secret for a node. Its agent may never receive it, so the present one is valid until a new one is
    used. Empty if the credential was revoked."""
    with transaction.atomic():
        node = Node.objects.select_for_update().get(id=node_id)
        if node.credential_digest.startswith("revoked "):
            return ""
        secret = secrets.token_urlsafe(32)
        offered = [*node.offered_digests, digest(secret)][-MOST_OFFERED:]
        Node.objects.filter(id=node.id).update(offered_digests=offered)
    return secret


def _first_used(node_id: uuid.UUID, given: str) -> Node | None:
    """Return the node to which this secret was offered, making it the node's only credential; None if there is none."""
    with transaction.atomic():
        node = Node.objects.select_for_update().filter(id=node_id).first()
        if node is None or given not in node.offered_digests:
            return None
        node.credential_digest, node.credential_at, node.offered_digests = given, timezone.now(), []
        node.save(update_fields=CREDENTIAL)
        _credential_changed(node)
    return node


def _credential_changed(node: Node) -> None:
    transaction.on_commit(lambda: changes.recheck([str(node.id)]))


@dataclass(frozen=True, slots=True)
class AgentStanding:
    """What an agent's connection depends on: the credential, whose it is, and the newest generation."""

    credential: str
    incarnation: str
    generation: int
    credential_at: datetime | None

    @property
    def is_rotation_due(self) -> bool:
        """Whether the node's agent is to get a new credential."""
        return self.credential_at is None or timezone.now() - self.credential_at > settings.NODE_CREDENTIAL_LIFE


def standing(nodes: set[uuid.UUID]) -> dict[uuid.UUID, AgentStanding]:
    """Return what the connections of these nodes depend on now, in one query."""
    rows = Node.objects.filter(id__in=nodes).values_list(
        "id", "credential_digest", "incarnation", "generation", "credential_at"
    )
    return {row[0]: AgentStanding(*row[1:]) for row in rows}


def authenticate(header: str) -> Node | None:
    """Return the node that an Authorization header proves (``Node <id>:<credential>``), or None."""
    scheme, _space, rest = header.partition(" ")
    node_id, _colon, credential = rest.strip().partition(":")
    if scheme.lower() != "node" or not credential:
        return None
    try:
        node = Node.objects.filter(id=uuid.UUID(node_id)).first()
        given = digest(credential)
    except ValueError:
        return None
    if node is None or hmac.compare_digest(node.credential_digest, given):
        return node
    return _first_used(node.id, given) if given in node.offered_digests else None


def record_report(node: Node, report: Report, survivors: Mapping[str, str], *, are_news: bool = False) -> bool:
    """Record a report of ``node``, which the caller has locked; return whether the scheduler should run.

    ``survivors`` maps devices to the parts that hold them but are unknown to the database; ``are_news`` tells that they
    changed. After a silence the node gets new work only after several reports, so that a flapping link costs nothing.
    """
    before = (node.state, node.boot_id, node.inventory_hash)
    node.last_report_at = Now()
    node.boot_id, node.start_seq, node.seq = report.boot_id, report.start_seq, report.seq
    node.seen_generation = report.seen_generation
    node.agent_version = report.agent[:40]
    node.good_reports = min(node.good_reports + 1, GOOD_REPORTS)
    conditions = _stored(report.conditions)
    if report.conditions.aside:
        conditions["aside"] = quarantine.noted(node.conditions, report.conditions.aside, timezone.now())
    if node.conditions != conditions:
        node.conditions = conditions
        changed_conditions = True
    else:
        changed_conditions = are_news
    conflict = Told()
    if report.inventory.full is not None:
        conflict = _take_inventory(node, report.inventory.full, report.inventory.hash)
        hosts.store_inventory(node, report.inventory.full)
    if (
        (node.state == NodeState.JOINING and node.inventory_hash)
        or node.state == NodeState.SUSPECT
        or (node.state == NodeState.LOST and node.good_reports >= GOOD_REPORTS)
    ):
        _return(node)
    if conflict:
        node.reason, node.reason_said = conflict.text[:300], conflict.said
    if changed_conditions:
        _mark_devices(node, report.conditions, survivors)
    node.save(update_fields=None if report.inventory.full is not None or changed_conditions else HEARTBEAT)
    now = (node.state, node.boot_id, node.inventory_hash)
    if now != before or changed_conditions:
        transaction.on_commit(lambda: changes.announce("fleet"))
        return True
    return False


def _stored(conditions: Conditions) -> dict[str, Any]:
    """Return the conditions as they are stored, with all that they say in clauses too."""
    found: dict[str, Any] = msgspec.to_builtins(conditions)
    if conditions.notes:
        found["notes_said"] = [note.said for note in each_of_agent(conditions.notes, conditions.notes_said)]
    for stored, error in zip(found.get("device_errors", ()), conditions.device_errors, strict=True):
        stored["said"] = of_agent(error.detail, error.said).said
    return found


def note_kept(node: Node, said: Kept) -> None:
    """Store the digests that a node caches and where others may fetch them; malformed ones are skipped."""
    digests = [each for each in said.digests[:MAX_KEPT] if len(each) == 64 and each.isalnum()]
    url = said.url if said.url.startswith(("http://", "https://")) and len(said.url) <= 300 else ""
    values = {"digests": digests, "url": url, "key": said.key[:64]}
    KeptRow.objects.update_or_create(node=node, defaults=values)


def _set_state(node: Node, state: NodeState, reason: Told) -> None:
    if node.state != state:
        node.state, node.state_at = state, timezone.now()
    node.reason, node.reason_said = reason.text[:300], reason.said


def _lose(node: Node) -> None:
    """Mark a silent node as lost. A drain outlives that: people rely on it, and may have rebooted the node for it."""
    if node.state == NodeState.DRAINING:
        node.drain_interrupted = {"reason": node.reason, "said": node.reason_said}
    _set_state(
        node, NodeState.LOST, told(_silent(node), *([clause("DrainsOnReturn")] if node.drain_interrupted else ()))
    )
    node.good_reports = 0


def _return(node: Node) -> None:
    """Put a node that reports again into service, or go on draining it where its loss interrupted a drain."""
    if node.drain_interrupted:
        why = kept(node.drain_interrupted["reason"], node.drain_interrupted["said"])
        node.drain_interrupted = None
        _set_state(node, NodeState.DRAINING, why)
    else:
        _set_state(node, NodeState.READY, Told())


def _take_inventory(node: Node, found: Inventory, fingerprint: str) -> Told:
    """Store the inventory of a node; return what to say if a part of it belongs to another node."""
    node.hostname, node.os, node.arch = found.hostname[:255], found.os[:200], found.arch[:40]
    node.address, node.memory_bytes = found.address[:255], found.memory_bytes
    node.runs_as, node.isolation, node.simulated = found.runs_as[:200], found.isolation[:40], found.simulated
    node.container_engine = None if found.container_engine is None else found.container_engine[:80]
    node.mounts = [one for one in found.mounts if len(one) <= LONGEST_MOUNT]
    node.executor = found.executor[:40]
    lacks = each_of_agent(found.lacks, found.lacks_said)
    node.lacks, node.lacks_said = [each.text[:300] for each in lacks], [each.said for each in lacks]
    node.disk_total_bytes, node.network_mbps = found.disk_bytes, amounts.fastest_mbps(found.interfaces)
    # Until it was measured, and never more than there is.
    node.disk_bytes = min(node.disk_bytes or found.disk_bytes, found.disk_bytes)
    labels = {k[:63]: v[:200] for k, v in list(found.labels.items())[:50]}
    # Labels that people set are kept; the number of labels of an agent is bounded, so that ever new ones do not grow
    # the row.
    node.labels = dict(list({**node.labels, **labels}.items())[:MOST_LABELS])
    node.inventory_hash = fingerprint[:64]
    taken = set(
        Device.objects.filter(uuid__in=[d.uuid for d in found.devices])
        .exclude(node=node)
        .values_list("uuid", flat=True)
    )
    known = {device.uuid: device for device in node.devices.select_for_update()}
    _rename(known, found)
    seen: set[str] = set()
    for each in found.devices:
        if each.uuid in taken or each.uuid in seen or not is_device(each.kind):
            continue
        seen.add(each.uuid)
        _take_device(node, known.get(each.uuid), each)
    gone = [device for uuid_, device in known.items() if uuid_ not in seen]
    Device.objects.filter(id__in=[d.id for d in gone]).update(present=False, health=Health.LOST)
    _group(node)
    if taken:
        return told(clause("DevicesOfAnother", devices=", ".join(sorted(taken)[:3])))
    return Told()


def _rename(known: dict[str, Device], found: Inventory) -> None:
    """Give Intel devices the names that their agent reports now, with their claims.

    Older agents named them by properties that equally built hosts share.
    """
    listed = {each.uuid for each in found.devices}
    former = {(d.kind, d.vendor, d.index): d for d in known.values() if d.uuid not in listed and d.vendor == "intel"}
    for each in found.devices:
        device = former.get((each.kind, each.vendor, each.index))
        if each.uuid in known or device is None or Device.objects.filter(uuid=each.uuid).exists():
            continue
        del known[device.uuid]
        device.uuid = each.uuid
        Device.objects.filter(id=device.id).update(uuid=each.uuid)
        known[each.uuid] = device


def _take_device(node: Node, device: Device | None, found: Any) -> None:
    device = device or Device(node=node, uuid=found.uuid[:120])
    device.kind, device.vendor, device.model = found.kind[:20], found.vendor[:60], found.model[:120]
    device.index, device.numa = found.index, found.numa
    device.simulated, device.present = found.simulated, True
    # Stages there claim more: a device never shrinks below its claims.
    device.capacity_milli = max(found.capacity_milli, device.claimed_milli)
    device.memory_bytes = max(found.memory_bytes, device.claimed_memory_bytes)
    device.features, device.attributes = dict(found.features), dict(found.attributes)
    if not links.fault(found):  # otherwise the last valid ones stay, and an alarm is raised
        device.links = msgspec.to_builtins(found.links)
    device.division = msgspec.to_builtins(found.division)
    device.sharing = found.sharing
    if device.health not in {Health.CORDONED, Health.QUARANTINED}:
        why = of_agent(found.health_reason, found.health_said)
        device.health, device.health_reason, device.health_said = found.health, why.text[:300], why.said
    # Only these columns, because the trigger on claims writes the others.
    fields = [f.name for f in Device._meta.fields if not f.name.startswith(("claimed_", "fenced_", "busy"))]
    if device._state.adding:
        device.save()
    else:
        device.save(update_fields=[name for name in fields if name != "id"])


def _group(node: Node) -> None:
    """Recompute the link groups of a node's devices."""
    here = list(node.devices.filter(present=True).order_by("kind", "index"))
    groups = links.groups((device.uuid, device.links) for device in here)
    for device in here:
        if device.link_group != groups.get(device.uuid):
            Device.objects.filter(id=device.id).update(link_group=groups.get(device.uuid))


def _mark_devices(node: Node, conditions: Conditions, survivors: Mapping[str, str]) -> None:
    errors = {
        error.uuid: _with_code(error.code, of_agent(error.detail, error.said)) for error in conditions.device_errors
    }
    held = {error.uuid for error in conditions.device_errors if error.code == QUARANTINED} | set(survivors)
    for device_uuid, part in survivors.items():
        errors.setdefault(device_uuid, _with_code(QUARANTINED, told(clause("UnknownPart", part=part))))
    for device in node.devices.filter(present=True):
        if device.health == Health.QUARANTINED and _is_coded(device.health_said, QUARANTINED):
            # The agent may end a quarantine that it began, but not one by a person.
            if device.uuid not in held:
                _judge(device, Health.OK, Told())
            continue
        if device.uuid in held and device.health not in {Health.CORDONED, Health.QUARANTINED}:
            _judge(device, Health.QUARANTINED, errors[device.uuid])
            continue
        if device.uuid in errors and device.health in {Health.OK, Health.DEGRADED}:
            _judge(device, Health.UNHEALTHY, errors[device.uuid])


def _with_code(code: str, says: Told) -> Told:
    return told(clause("Coded", code=code, why=says)) if says else verbatim(code)


def _is_coded(said: list[Clause], code: str) -> bool:
    return any(each["code"] == "Coded" and each["params"].get("code") == code for each in said)


def _judge(device: Device, health: Health, why: Told) -> None:
    Device.objects.filter(id=device.id).update(health=health, health_reason=why.text[:300], health_said=why.said)


def _reason(reason: str | Told) -> Told:
    return reason if isinstance(reason, Told) else verbatim(reason.strip())


def _by(why: Told, actor: str) -> Told:
    return told(*why.said, clause("Aside", why=actor))


def drain(
    node: Node,
    actor: str,
    reason: str | Told,
    *,
    stop_at: datetime | None = None,
    stops: DrainMode = DrainMode.SAVE,
) -> Node:
    """Drain a node: nothing new is placed, and running stages finish. A reason is required.

    What still runs at ``stop_at`` is to be stopped as ``stops`` says; :mod:`controlplane.jobs.drains` does so.
    """
    why = _reason(reason)
    if not why:
        raise NodeRefused(_("a drain needs a reason: others will ask"))
    return _administer(node, NodeState.DRAINING, _by(why, actor), "node.drain", why.text, stop_at, stops)


def suspend(node: Node, says: Told) -> None:
    """Stop placing stages on a node whose identity is used twice. Running ones go on; a person resumes the node."""
    alarms.raised(alarms.IDENTITY, {node.name: says}, about=node.name)
    if node.state in (NodeState.JOINING, NodeState.READY, NodeState.SUSPECT):
        _set_state(node, NodeState.DRAINING, says)
        node.save(update_fields=STATE)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("fleet"))


def resume(node: Node, actor: str, reason: str = "") -> Node:
    """Return a drained node to service; it is READY once it reports."""
    alarms.raised(alarms.IDENTITY, {}, about=node.name)
    return _administer(node, None, Told(), "node.resume", reason)


def cordon(device: Device, actor: str, reason: str | Told) -> None:
    """Take a device out of service: stages that hold it go on. A reason is required."""
    why = _reason(reason)
    if not why:
        raise NodeRefused(_("a cordon needs a reason: others will ask"))
    _set_health(device, Health.CORDONED, _by(why, actor), "device.cordon", why.text)


def uncordon(device: Device, actor: str, reason: str = "") -> None:
    """Return a cordoned device to service; its health comes with the next report."""
    if device.health != Health.CORDONED:
        raise NodeRefused(_("device {device} is {health}, not CORDONED").format(device=device, health=device.health))
    _set_health(device, Health.OK, Told(), "device.uncordon", reason)
    # The agent is asked for its inventory again, because only that has faults from before.
    Node.objects.filter(id=device.node_id).update(inventory_hash="")


def decide_aside(node: Node, part: str, do: str, actor: str, reason: str = "") -> Node:
    """Order a node to adopt a quarantined part again, or to end it. Raises NodeRefused."""
    if do == "discard" and not reason.strip():
        raise NodeRefused(_("a part is discarded with a reason: its owner will ask"))
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(id=node.id)
        entries = locked.conditions.get("aside", [])
        entry = next((each for each in entries if each["part"] == part), None)
        if entry is None:
            raise NodeRefused(_("node {node} has set no part {part} aside").format(node=node.name, part=part[:64]))
        entry["asked"] = {"do": do, "by": actor[:150], "why": reason.strip()[:200]}
        locked.save(update_fields=["conditions"])
        audit.record("node.aside", node, before={"part": part}, after={"part": part, "do": do}, reason=reason)
        transaction.on_commit(lambda: changes.nudge([str(node.id)]))
        transaction.on_commit(lambda: changes.announce("fleet"))
    return locked


def _set_health(device: Device, health: Health, reason: Told, action: str, why: str) -> None:
    with transaction.atomic():
        # In the same lock order as a report.
        Node.objects.select_for_update().get(id=device.node_id)
        locked = Device.objects.select_for_update().get(id=device.id)
        if health == Health.CORDONED and not locked.present:
            raise NodeRefused(_("device {device} is not there any more").format(device=locked))
        _judge(device, health, reason)
        before = audit.fields(locked, "health", "health_reason")
        after = {"health": health, "health_reason": reason.text}
        audit.record(action, ("device", device.uuid, str(locked)), before=before, after=after, reason=why)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("fleet"))


def _administer(
    node: Node,
    state: NodeState | None,
    reason: Told,
    action: str,
    why: str,
    stop_at: datetime | None = None,
    stops: DrainMode = DrainMode.SAVE,
) -> Node:
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(id=node.id)
        if state is None:
            state = NodeState.READY if locked.last_report_at else NodeState.JOINING
        if locked.state == NodeState.LOST and state != NodeState.DRAINING and not locked.drain_interrupted:
            raise NodeRefused(
                _("node {name} is LOST; it is READY again once its agent reports").format(name=locked.name)
            )
        told_of = ("state", "reason", *(("drain_stop_at", "drain_stops") if stop_at or locked.drain_stop_at else ()))
        before = audit.fields(locked, *told_of)
        locked.drain_interrupted = None
        locked.drain_stop_at, locked.drain_stops = stop_at, stops if stop_at else ""
        if locked.state == NodeState.LOST and state != NodeState.DRAINING:
            _lose(locked)  # only the drain that waited for its return is lifted
        else:
            _set_state(locked, state, reason)
        locked.save(update_fields=STATE)
        audit.record(action, locked, before=before, after=audit.fields(locked, *told_of), reason=why)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("fleet"))
    return locked


def expect(name: str, pool: Pool, labels: Mapping[str, str]) -> Node:
    """Prepare the node that a provider will bring, or bring again: JOINING, in its pool only, without a credential. It
    joins with a token of its own (:func:`make_return_token`)."""
    with transaction.atomic():
        nobody = f"revoked {uuid.uuid4()}"
        node = Node.objects.select_for_update().filter(name=name).first() or Node(name=name)
        node.credential_digest, node.offered_digests, node.credential_at = nobody, [], None
        node.labels, node.inventory_hash, node.good_reports = dict(labels), "", 0
        node.drain_interrupted, node.drain_stop_at, node.drain_stops = None, None, ""
        node.conditions = {}
        _set_state(node, NodeState.JOINING, Told())
        node.save()
        node.pools.set([pool])
        JoinToken.objects.filter(node=node).delete()
        transaction.on_commit(changes.wake)
    return node


def stand_in(name: str) -> Node:
    """Make the node that stands for another cluster: without pools, devices or a credential."""
    node = Node(name=name, is_site=True, credential_digest=f"revoked {uuid.uuid4()}")
    _set_state(node, NodeState.JOINING, Told())
    node.save()
    return node


def retire_stand_in(node: Node) -> None:
    """Take the node that stood for another cluster out of service; it goes where no part points at it."""
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(id=node.id)
        if not locked.parts.exists():
            locked.delete()
            return
        _set_state(locked, NodeState.DRAINED, Told())
        locked.save(update_fields=STATE)


def declare_lost(node: Node) -> None:
    """Mark a node as lost because the engine that ran its machine says that it has ended."""
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(id=node.id)
        if locked.state == NodeState.LOST:
            return
        locked.drain_interrupted = None
        _set_state(locked, NodeState.LOST, told(clause("AllocationEnded")))
        locked.good_reports = 0
        locked.save(update_fields=[*STATE, "good_reports"])
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("fleet"))


def depart(node: Node, why: Told) -> None:
    """Take a node whose machine is gone out of service until a provider brings it again. Its agent is refused."""
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(id=node.id)
        locked.credential_digest, locked.offered_digests = f"revoked {uuid.uuid4()}", []
        locked.drain_interrupted, locked.drain_stop_at, locked.drain_stops = None, None, ""
        _set_state(locked, NodeState.DRAINED, why)
        locked.save(update_fields=[*STATE, "credential_digest", "offered_digests"])
        JoinToken.objects.filter(node=locked).delete()
        _credential_changed(locked)
        transaction.on_commit(changes.wake)
        transaction.on_commit(lambda: changes.announce("fleet"))


def silent_nodes(suspect_s: float, lost_s: float, *, amnesty: bool) -> tuple[int, list[Node]]:
    """Mark nodes as silent or lost. Return how many changed and which became LOST now.

    Only the database's clock is used: reports are stamped and judged by the same clock.
    """
    quiet = Q(last_report_at__lt=Now() - timedelta(seconds=suspect_s))
    with transaction.atomic():
        suspects = list(
            Node.objects.select_for_update(skip_locked=True).filter(quiet, state__in=[NodeState.READY]).order_by("id")
        )
        for node in suspects:
            _set_state(node, NodeState.SUSPECT, told(_silent(node)))
            node.good_reports = 0
            node.save(update_fields=[*STATE, "good_reports"])
        lost: list[Node] = []
        if not amnesty:
            lost = list(
                Node.objects.select_for_update(skip_locked=True)
                .filter(
                    state__in=[NodeState.SUSPECT, NodeState.DRAINING],
                    last_report_at__lt=Now() - timedelta(seconds=lost_s),
                )
                .order_by("id")
            )
            for node in lost:
                _lose(node)
                node.save(update_fields=[*STATE, "good_reports"])
        drained = [
            node
            for node in Node.objects.select_for_update(skip_locked=True).filter(state=NodeState.DRAINING)
            if not node.parts.filter(ended_at=None).exists()
        ]
        for node in drained:
            _set_state(node, NodeState.DRAINED, kept(node.reason, node.reason_said))
            node.save(update_fields=STATE)
    return len(suspects) + len(lost) + len(drained), lost


def _silent(node: Node) -> Clause:
    return clause("NoReportSince", time=f"{node.last_report_at:%H:%M:%S}")


def now_in_database() -> datetime:
    """Return the database's clock, by which leases and silences are judged."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return cursor.fetchone()[0]
