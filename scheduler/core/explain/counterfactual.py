"""Counterfactuals: changes with which a waiting stage would start, each of them tried.

A small ordered set of changes, each of one thing that a person can change, is applied to a copy of the snapshot and
planned with the same engine. A change is reported only if the stage started (or began to make room) in that plan;
nothing is derived from the reasons. The idea is that of contrastive explanation (Miller 2019): people ask why this and
not that, and want the smallest difference that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from scheduler.core.model.kinds import CPU, DISK, is_accelerator
from scheduler.core.model.lifecycle import Health, NodeState, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Ask, Device, Node, Plan, Quota, Running, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.core.resources.holdings import Holdings, amount
from scheduler.core.resources.match import matches
from scheduler.core.world.request_class import wanted

# At most so many plans are made for one stage, and at most so many answers given.
TRIES: Final = 32
ANSWERS: Final = 6
# So often less disk space is tried, half of it each time.
HALVINGS: Final = 4
GIB: Final = 2**30
CLASSES: Final[Mapping[str, int]] = {"medium": 500, "high": 750, "urgent": 1000}
LIMITS_S: Final = (86_400, 43_200, 21_600, 10_800, 7_200, 3_600, 1_800, 900, 300)
# A shorter limit helps only if time is what blocks the stage.
TIMELY: Final = frozenset(
    {"InvalidSpec", "MaintenanceWindow", "Reserved", "PlannedLater", "ReservedForHigher", "PriorityBehind"}
)
# What each kind of change says, and who can make it. The face translates by kind.
SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "release": ("released from its hold", "user"),
    "start-pool": ("with pool {pool} started again", "admin"),
    "drop-need": ("without needing stage {stage}", "user"),
    "begin": ("without its earliest start", "user"),
    "reservation": ("without its reservation", "user"),
    "bundle": ("with its code uploaded again", "user"),
    "secret": ("with secret {secret} set again", "user"),
    "allow-pool": ("with pool {pool} allowed to project {project}", "admin"),
    "budget": ("with more hours in budget {number} of project {project}", "admin"),
    "image": ("with an image that can be fetched", "user"),
    "no-image": ("without an image", "user"),
    "limit": ("with a time limit of {limit}", "user"),
    "nodes": ("on {nodes} nodes instead of {was}", "user"),
    "devices": ("with {count} {kind} per node instead of {was}", "user"),
    "share": ("with {milli}/1000 of a {kind} instead of {was}", "user"),
    "cores": ("with {cores} cores per node instead of {was}", "user"),
    "disk": ("with {gib} GiB of disk per node instead of {was}", "user"),
    "model": ("on any {kind} instead of {was}", "user"),
    "kind": ("on {count} {kind} instead of {was}", "user"),
    "domain": ("without one {domain} for all its nodes", "user"),
    "avoid": ("with the nodes that it avoids", "user"),
    "only": ("on nodes without {only} too", "user"),
    "mounts": ("without its mounts", "user"),
    "pool": ("in pool {pool}", "user"),
    "site": ("with its data allowed to leave {site}", "admin"),
    "quota": ("with a quota of {quota} {kind} for project {project} instead of {was}", "lead"),
    "priority": ("in priority class {name}", "lead"),
    "resume-nodes": ("with {nodes} back in service", "admin"),
    "mend-devices": ("with the devices of {nodes} found healthy", "admin"),
}


@dataclass(frozen=True, slots=True)
class CounterfactualChange:
    """One change. ``params`` are plain JSON."""

    kind: str
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def who(self) -> str:
        return SENTENCES[self.kind][1]

    @property
    def text(self) -> str:
        """``with a time limit of 3 h``: what completes *it would start now*."""
        return SENTENCES[self.kind][0].format_map(dict(self.params))


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """With ``changes`` the stage starts now, or (``preempts``) as soon as those stages have made room.

    ``instead_of`` names stages that start now without the change and would not with it: what it costs others.
    """

    changes: tuple[CounterfactualChange, ...]
    preempts: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """The answers for one stage, how many plans were made, and whether there was more to try."""

    answers: tuple[Counterfactual, ...]
    tries: int
    cut: bool


Made = tuple[CounterfactualChange, Snapshot]


def search(
    world: Snapshot,
    profiles: Profile | Mapping[str, Profile],
    now: float,
    stage_id: str,
    *,
    plan: Plan | None = None,
    classes: Mapping[str, int] = CLASSES,
    tries: int = TRIES,
) -> Findings:
    """Return the changes with which the stage of this id would start, smallest first.

    ``plan`` is what was decided on ``world``, if the caller has it. Raises ``KeyError`` if no such stage waits.
    """
    stage = _stage(world, stage_id)
    plan = plan or engine.plan(world, profiles, now)
    if any(start.stage == stage_id for start in plan.starts):
        return Findings((), 0, False)
    # In a changed world anything may have been given back.
    world = replace(_in_front(world, plan, stage), given_back=None, unsettled=())
    started = {start.stage for start in plan.starts}
    evicted = {one.victim for one in plan.stops}
    gates = tuple(_gates(world, stage))
    opened = world
    for _, opens in gates:
        opened = opens(opened)
    answers: list[Counterfactual] = []
    found: set[str] = set()
    made = 0

    def attempt(changed: Snapshot, changes: tuple[CounterfactualChange, ...]) -> bool:
        nonlocal made
        made += 1
        then = engine.plan(changed, profiles, now)
        starts = {start.stage for start in then.starts}
        victims = tuple(sorted(one.victim for one in then.stops if one.stage == stage_id))
        if stage_id not in starts and not (victims and set(victims) - evicted):
            return False
        lost = tuple(sorted(started - starts))
        answers.append(Counterfactual(changes, () if stage_id in starts else victims, lost))
        found.update(change.kind for change in changes[-1:])
        return True

    opening = tuple(change for change, _ in gates)
    if opening and attempt(opened, opening):
        return Findings(tuple(answers), made, False)
    codes = {reason.code for wait in plan.waits if wait.stage == stage_id for reason in wait.reasons}
    for kind, candidate in _candidates(opened, profiles, _stage(opened, stage_id), classes):
        if kind in found:
            continue  # the least change of a kind is enough
        if kind == "limit" and not codes & TIMELY:
            continue
        if made >= tries or len(answers) >= ANSWERS:
            return Findings(tuple(answers), made, True)
        change, changed = candidate
        attempt(changed, (*opening, change))
    return Findings(tuple(answers), made, False)


def _stage(world: Snapshot, stage_id: str) -> Stage:
    for stage in world.waiting:
        if stage.id == stage_id:
            return stage
    raise KeyError(f"no stage {stage_id} waits in this snapshot")


def _in_front(world: Snapshot, plan: Plan, stage: Stage) -> Snapshot:
    """Return the world without the stages behind this one, which come after it whatever is changed for it."""
    kept = {start.stage for start in plan.starts}
    for wait in plan.waits:
        kept.add(wait.stage)
        if wait.stage == stage.id:
            break
    kept.update(stage.unmet)
    return replace(world, waiting=tuple(one for one in world.waiting if one.id in kept))


def _with(world: Snapshot, stage: Stage) -> Snapshot:
    return replace(world, waiting=tuple(stage if one.id == stage.id else one for one in world.waiting))


def _gates(world: Snapshot, stage: Stage) -> Iterator[tuple[CounterfactualChange, Callable[[Snapshot], Snapshot]]]:
    """Return the changes that remove all that blocks the stage whatever is free, as far as a person can make them."""

    def on_stage(**fields: object) -> Callable[[Snapshot], Snapshot]:
        return lambda seen: _with(seen, replace(_stage(seen, stage.id), **fields))  # type: ignore[arg-type]

    if stage.state is State.HELD:
        yield CounterfactualChange("release"), on_stage(state=State.PENDING, held_by="")
    if stage.blocked_by:
        blocked = stage.blocked_by
        everyone: list[Stage | Running] = [*world.waiting, *world.running]
        name = next((one.name for one in everyone if one.id == blocked), blocked)
        unmet = tuple(need for need in stage.unmet if need != blocked)
        yield CounterfactualChange("drop-need", {"stage": name}), on_stage(blocked_by=None, unmet=unmet)
    if stage.begin_at is not None:
        yield CounterfactualChange("begin"), on_stage(begin_at=None)
    if stage.reservation:
        yield CounterfactualChange("reservation"), on_stage(reservation="")
    if stage.bundle_gone:
        yield CounterfactualChange("bundle"), on_stage(bundle_gone=False)
    if stage.image_missing:
        yield CounterfactualChange("image"), on_stage(image_missing="")
    if stage.secret_missing:
        yield CounterfactualChange("secret", {"secret": stage.secret_missing}), on_stage(secret_missing="")
    if stage.pool_refused:
        change = CounterfactualChange("allow-pool", {"pool": stage.pool, "project": stage.project})
        yield change, on_stage(pool_refused=False)
    spent = [one for one in world.budgets if any(one.covers(stage, way) for way in stage.alternatives)]
    for budget in spent if all(any(one.covers(stage, way) for one in spent) for way in stage.alternatives) else ():
        change = CounterfactualChange("budget", {"number": budget.number, "project": budget.project})
        yield (
            change,
            lambda seen, gone=budget: replace(  # type: ignore[misc]
                seen, budgets=tuple(one for one in seen.budgets if one != gone)
            ),
        )
    if any(pool.name == stage.pool and pool.stopped_by for pool in world.pools):
        pools = tuple(replace(pool, stopped_by="") if pool.name == stage.pool else pool for pool in world.pools)
        yield CounterfactualChange("start-pool", {"pool": stage.pool}), lambda seen: replace(seen, pools=pools)


def _candidates(
    world: Snapshot, profiles: Profile | Mapping[str, Profile], stage: Stage, classes: Mapping[str, int]
) -> Iterator[tuple[str, Made]]:
    """Yield changes in the order in which people would rather make them, each with its kind."""
    families: Sequence[tuple[str, Iterator[tuple[Mapping[str, object], Snapshot]]]] = (
        ("limit", _limits(world, stage)),
        ("no-image", _plain(world, stage)),
        ("avoid", _avoided(world, stage)),
        ("only", _unrestricted(world, stage)),
        ("mounts", _unmounted(world, stage)),
        ("domain", _domain(world, stage)),
        ("model", _models(world, stage)),
        ("devices", _devices(world, stage)),
        ("share", _shares(world, stage)),
        ("cores", _cores(world, stage)),
        ("disk", _disk(world, stage)),
        ("nodes", _nodes(world, stage)),
        ("kind", _kinds(world, stage)),
        ("pool", _pools(world, profiles, stage)),
        ("quota", _quotas(world, stage)),
        ("priority", _priorities(world, stage, classes)),
        ("site", _site(world, stage)),
        ("resume-nodes", _resumed(world, stage)),
        ("mend-devices", _mended(world, stage)),
    )
    for kind, family in families:
        for params, changed in family:
            yield kind, (CounterfactualChange(kind, params), changed)


def _limits(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield shorter time limits, but none below a measured run time."""
    now_s = stage.time_limit_s or (stage.estimate.p90_s if stage.estimate.declared else None)
    if now_s is None:
        return
    least = 0.0 if stage.estimate.declared else stage.estimate.p90_s
    allowed = [int(pool.max_limit_s) for pool in world.pools if pool.name == stage.pool and pool.max_limit_s]
    for limit in sorted({*LIMITS_S, *allowed}, reverse=True):
        if not least <= limit < now_s:
            continue
        estimate = stage.estimate
        if estimate.declared:  # a declared duration refers to the new alternative
            share = limit / now_s
            estimate = replace(estimate, p50_s=estimate.p50_s * share, p90_s=estimate.p90_s * share)
        text = f"{limit / 3600:g} h" if limit >= 3600 else f"{limit / 60:g} min"
        params = {"limit": text, "limit_s": limit}
        yield params, _with(world, replace(stage, time_limit_s=float(limit), estimate=estimate, promise=None))


def _asking(world: Snapshot, stage: Stage, turn: Callable[[Ask], Ask]) -> Snapshot:
    """Return the stage with every ask changed by ``turn``."""
    feasible_sets = tuple(
        replace(feasible, asks=tuple(turn(ask) for ask in feasible.asks)) for feasible in stage.alternatives
    )
    return _with(world, replace(stage, alternatives=feasible_sets, promise=None))


def _special(stage: Stage) -> Ask | None:
    """Return the ask that sets the speed: the first for an accelerator."""
    return next((ask for feasible in stage.alternatives for ask in feasible.asks if is_accelerator(ask.kind)), None)


def _fewer(count: int) -> Iterator[int]:
    """Yield half, a quarter ... down to one."""
    while count > 1:
        count = (count + 1) // 2
        yield count


def _devices(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    ask = _special(stage)
    if ask is None:
        return
    for count in _fewer(ask.count):

        def fewer(one: Ask, count: int = count) -> Ask:
            return replace(one, count=min(one.count, count)) if is_accelerator(one.kind) else one

        yield {"count": count, "kind": ask.kind, "was": ask.count}, _asking(world, stage, fewer)


def _shares(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    ask = _special(stage)
    if ask is None or ask.partition or ask.milli >= 1000 or ask.count != 1:
        return
    for milli in (ask.milli * 3 // 4, ask.milli // 2, ask.milli // 4, ask.milli // 8):
        if milli >= 50:

            def smaller(one: Ask, milli: int = milli, was: int = ask.milli) -> Ask:
                if not is_accelerator(one.kind):
                    return one
                return replace(one, milli=min(one.milli, milli), memory_bytes=one.memory_bytes * milli // was)

            yield {"milli": milli, "kind": ask.kind, "was": ask.milli}, _asking(world, stage, smaller)


def _cores(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    ask = next((ask for feasible in stage.alternatives for ask in feasible.asks if ask.kind == "cpu"), None)
    if ask is None or ask.milli <= 1000:
        return
    for cores in _fewer(ask.milli // 1000):

        def smaller(one: Ask, cores: int = cores, was: int = ask.milli) -> Ask:
            if one.kind != CPU:
                return one
            return replace(one, milli=min(one.milli, cores * 1000), memory_bytes=one.memory_bytes * cores * 1000 // was)

        yield {"cores": cores, "was": f"{ask.milli / 1000:g}"}, _asking(world, stage, smaller)


def _disk(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    asks = (ask for feasible in stage.alternatives for ask in feasible.asks if ask.kind == DISK)
    was = max((ask.memory_bytes for ask in asks), default=0) // GIB
    for gib in islice(_fewer(was), HALVINGS):

        def smaller(one: Ask, most: int = gib * GIB) -> Ask:
            return replace(one, memory_bytes=min(one.memory_bytes, most)) if one.kind == DISK else one

        yield {"gib": gib, "was": was}, _asking(world, stage, smaller)


def _nodes(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    for nodes in _fewer(stage.nodes):
        yield {"nodes": nodes, "was": stage.nodes}, _with(world, replace(stage, nodes=nodes, promise=None))


def _models(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    ask = next((ask for feasible in stage.alternatives for ask in feasible.asks if ask.model or ask.vendor), None)
    if ask is not None:
        changed = _asking(world, stage, lambda one: replace(one, model="", vendor=""))
        yield {"kind": ask.kind, "was": " ".join(word for word in (ask.vendor, ask.model) if word)}, changed


def _kinds(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield the request with other kinds of accelerators of the pool, in the same number."""
    ask = _special(stage)
    if ask is None:
        return
    asked = {one.kind for feasible in stage.alternatives for one in feasible.asks}
    others = {device.kind for device in _devices_of(world, stage.pool) if is_accelerator(device.kind)}
    for kind in sorted(others - asked):

        def turned(one: Ask, kind: str = kind) -> Ask:
            return replace(one, kind=kind, vendor="", model="", memory_bytes=0) if is_accelerator(one.kind) else one

        yield {"count": ask.count, "kind": kind, "was": ask.kind}, _asking(world, stage, turned)


def _pools(
    world: Snapshot, profiles: Profile | Mapping[str, Profile], stage: Stage
) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    for pool in sorted(world.pools, key=lambda one: one.name):
        known = isinstance(profiles, Profile) or pool.name in profiles
        if pool.name != stage.pool and not pool.stopped_by and known:
            # Whether the project may use that one, is not known here: whoever shows it looks.
            moved = replace(stage, pool=pool.name, pinned=(), promise=None, pool_refused=False)
            yield {"pool": pool.name}, _with(world, moved)


def _quotas(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield the project's quota raised just enough to cover what is held and asked."""
    devices = {device.id: device for node in world.nodes for device in node.devices}
    held = Holdings()
    for running in world.running:
        for rank in running.placement.grants:
            held.count(running.project, rank, devices, 1)
    raised: list[Quota] = []
    for right in world.quotas:
        if right.project != stage.project or right.nominal_milli is None:
            continue
        asked = sum(
            max((amount(right, one, ask.count * ask.milli) for one in devices.values() if matches(ask, one)), default=0)
            for feasible in stage.alternatives[:1]
            for ask in feasible.asks
        )
        needed = asked * stage.nodes + held.of(right)
        if asked and needed > right.nominal_milli:
            raised.append(replace(right, nominal_milli=needed))
    for right in raised:
        quotas = tuple(right if _same_right(one, right) else one for one in world.quotas)
        yield _quota_params(world, right), replace(world, quotas=quotas)
    if len(raised) > 1:
        quotas = tuple(next((right for right in raised if _same_right(one, right)), one) for one in world.quotas)
        yield _quota_params(world, raised[0]), replace(world, quotas=quotas)


def _same_right(one: Quota, other: Quota) -> bool:
    return replace(one, nominal_milli=None) == replace(other, nominal_milli=None)


def _quota_params(world: Snapshot, right: Quota) -> Mapping[str, object]:
    was = next(one.nominal_milli or 0 for one in world.quotas if _same_right(one, right))
    return {
        "project": right.project,
        "kind": right.kind,
        "model": right.model,
        "quota": f"{(right.nominal_milli or 0) / 1000:g}",
        "was": f"{was / 1000:g}",
    }


def _priorities(
    world: Snapshot, stage: Stage, classes: Mapping[str, int]
) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    for name, value in sorted(classes.items(), key=lambda one: one[1]):
        if value > stage.priority:
            raised = replace(stage, priority=value, priority_class=name, promise=None)
            yield {"name": name, "value": value}, _with(world, raised)


def _site(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    if stage.site:
        yield {"site": stage.site}, _with(world, replace(stage, site="", promise=None))


def _plain(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield the request without an image, if the pool has a node that runs no images."""
    if all(node.runs_images for node in world.nodes if stage.pool in node.pools):
        return
    if any(feasible.image for feasible in stage.alternatives):
        feasible_sets = tuple(replace(feasible, image="") for feasible in stage.alternatives)
        yield {}, _with(world, replace(stage, alternatives=feasible_sets, promise=None))


def _avoided(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    if stage.avoid:
        yield {}, _with(world, replace(stage, avoid=(), promise=None))


def _unrestricted(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    if stage.only:
        yield {"only": wanted(stage.only)}, _with(world, replace(stage, only=(), promise=None))


def _unmounted(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    if stage.mounts:
        yield {}, _with(world, replace(stage, mounts=(), promise=None))


def _domain(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    if stage.within and stage.within_required:
        yield {"domain": stage.within}, _with(world, replace(stage, within_required=False, promise=None))


def _resumed(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield out-of-service nodes of the pool as in service: one of them, then all."""
    out = sorted(node.name for node in world.nodes if stage.pool in node.pools and node.state is not NodeState.READY)
    for names in [{name} for name in out[:8]] + ([set(out)] if len(out) > 1 else []):
        nodes = tuple(replace(node, state=NodeState.READY) if node.name in names else node for node in world.nodes)
        yield {"nodes": _listed(names)}, replace(world, nodes=nodes)


def _mended(world: Snapshot, stage: Stage) -> Iterator[tuple[Mapping[str, object], Snapshot]]:
    """Yield devices that are not given out as healthy: those of one node, then of all."""
    out = sorted(node.name for node in world.nodes if stage.pool in node.pools and any(map(_is_sick, node.devices)))
    for names in [{name} for name in out[:8]] + ([set(out)] if len(out) > 1 else []):
        nodes = tuple(_healed(node) if node.name in names else node for node in world.nodes)
        yield {"nodes": _listed(names)}, replace(world, nodes=nodes)


def _is_sick(device: Device) -> bool:
    return device.health not in (Health.OK, Health.DEGRADED)


def _healed(node: Node) -> Node:
    return replace(
        node, devices=tuple(replace(one, health=Health.OK) if _is_sick(one) else one for one in node.devices)
    )


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _devices_of(world: Snapshot, pool: str) -> Iterator[Device]:
    return (device for node in world.nodes if pool in node.pools for device in node.devices)
