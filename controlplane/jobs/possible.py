"""Checks at submission whether a job could ever run on the existing nodes, so that no job waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.fleet import amounts, divisions, world
from controlplane.fleet.models import Device as DeviceRow
from controlplane.jobs import demand
from controlplane.jobs.reasons import reason_text
from controlplane.jobs.section import FieldError
from controlplane.jobs.spec import InvalidSpec, Resolved, ResolvedStage
from controlplane.jobs.values import listed
from controlplane.pools.isolation import is_below
from controlplane.pools.models import Pool
from controlplane.providers import shapes
from controlplane.providers.models import NodeProvider
from controlplane.providers.service import lead_s
from scheduler.core.matching.feasible import never_fits
from scheduler.core.model.kinds import is_device
from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import Device, Estimate, Node, Reason, Snapshot, Stage

# The key of the job file that a reason is about, where that is not devices.
_KEYS = {"NodesAvoided": "avoid", "DataResidency": "site", "MountMissing": "mounts"}
_SIZES = frozenset({"NoMatchingDevice", "ExceedsClusterMax"})


def check(resolved: Sequence[Resolved]) -> None:
    """Raise InvalidSpec for stages that could never run on the existing nodes."""
    if found := faults(resolved):
        raise InvalidSpec(found)


def faults(resolved: Sequence[Resolved]) -> list[FieldError]:
    """Return the refusals, at most 100, of stages that could never run on the existing nodes."""
    # A cached answer suffices to accept a job; a refusal must be current, for a person who has just seen a device
    # appear on the page asks for it at once.
    if not _faults(resolved, world.recent_nodes()):
        return []
    return _faults(resolved, world.recent_nodes(within_s=0.0))[:100]


def _faults(resolved: Sequence[Resolved], nodes: Sequence[Node]) -> list[FieldError]:
    # What lies on disks now may be gone when the stage could start.
    nodes = [replace(node, devices=tuple(amounts.emptied(one) for one in node.devices)) for node in nodes]
    snapshot = Snapshot(nodes=tuple(nodes))
    faults: list[FieldError] = []
    judged: dict[int, Reason | None] = {}
    for number, job in enumerate(resolved):
        prefix = f"/jobs/{number}" if len(resolved) > 1 else ""
        for index, stage in enumerate(job.stages):
            key = id(stage.request)  # equal files of one request share their resolved stages
            if key not in judged:
                judged[key] = never_fits(_as_stage(job, stage), snapshot)
                if judged[key] is not None and (brought := _brought(job, stage)):
                    more = Snapshot(nodes=(*nodes, *brought))
                    judged[key] = never_fits(_as_stage(job, stage), more)
            reason = judged[key]
            # What may leave for another cluster may run there.
            if reason is not None and "sites" not in stage.request:
                key_of = _KEYS.get(reason.code, "devices")
                if reason.code == "NodesRestricted":
                    key_of = _restricting(job, stage, snapshot)
                if reason.code in _SIZES and (amount := _amount_at_fault(job, stage, snapshot)):
                    key_of = amount
                at = f"{prefix}/stages/{index}/{key_of}"
                faults.append(FieldError(at, _impossible(stage, reason, nodes), reason.code))
    return faults


def _amount_at_fault(job: Resolved, stage: ResolvedStage, snapshot: Snapshot) -> str:
    """Return the key of the job file that asks for more of a node as a whole than any has; empty if none does."""
    asked = {key: name for key, name in demand.AMOUNTS.items() if name in stage.request}

    def fits_without(names: Collection[str]) -> bool:
        rest = {name: value for name, value in stage.request.items() if name not in names}
        return never_fits(_as_stage(job, replace(stage, request=rest)), snapshot) is None

    if not asked or not fits_without(asked.values()):
        return ""
    return next((key for key, name in asked.items() if fits_without([name])), next(iter(asked)))


def _brought(job: Resolved, stage: ResolvedStage) -> list[Node]:
    """Return the nodes that providers can bring to the job's pool for as long as this stage may take."""
    limit_s = stage.request.get("time_limit_s")
    found: list[Node] = []
    for provider in NodeProvider.objects.filter(pool=job.pool, enabled=True):
        if limit_s is not None and limit_s <= provider.hours * 3600 - lead_s(provider.hours):
            most = min(provider.max_nodes, demand.least_nodes(stage.request))
            found += shapes.nodes(provider.shapes, job.pool.name, most)
    return found


def _restricting(job: Resolved, stage: ResolvedStage, snapshot: Snapshot) -> str:
    """Return the key that leaves too few nodes: ``constraint`` where without it enough would be left."""
    bare = {key: value for key, value in stage.request.items() if key != "constraint"}
    if not bare.get("only_on"):
        return "constraint"
    left = never_fits(replace(_as_stage(job, stage), only=demand.only(bare)), snapshot)
    return "only_on" if left is not None and left.code == "NodesRestricted" else "constraint"


def _as_stage(job: Resolved, stage: ResolvedStage) -> Stage:
    return Stage(
        id="",
        job="",
        number=0,
        name=stage.name,
        project=job.project.name,
        user="",
        pool=job.pool.name,
        kind=stage.kind,
        priority=job.priority,
        submitted_at=0.0,
        eligible_at=0.0,
        alternatives=demand.ways(stage.request),
        estimate=Estimate(1.0, 1.0),
        nodes=demand.least_nodes(stage.request),
        most_nodes=demand.most_nodes(stage.request),
        avoid=tuple(stage.request.get("avoid", ())),
        only=demand.only(stage.request),
        site=stage.request.get("site", ""),
        mounts=demand.mount_sources(stage.request),
    )


def _impossible(stage: ResolvedStage, reason: Reason, nodes: Sequence[Node]) -> str:
    pool = str(reason.params.get("pool", ""))
    inside = [device for node in nodes if pool in node.pools for device in node.devices]
    counts = Counter((device.kind, device.model) for device in inside if is_device(device.kind))
    has = listed(f"{n} × {kind} {model}".strip() for (kind, model), n in sorted(counts.items()))
    why = reason_text({"code": reason.code, "text": sentence(reason), "params": reason.params})
    said = _("stage {stage} can never start: {why}; pool {pool} has {devices}").format(
        stage=stage.name, why=why, pool=pool, devices=has or _("no devices yet")
    )
    if left_out := _too_open(pool):
        said += ngettext(
            "; {n} node of it is left out, for it requires isolation {level}",
            "; {n} nodes of it are left out, for it requires isolation {level}",
            left_out["n"],
        ).format(**left_out)
    wanted = {ask["partition"] for way in stage.request["alternatives"] for ask in way["asks"] if ask.get("partition")}
    return said + _("; {what}").format(what=_partitions(inside, wanted, pool)) if wanted else said


def _too_open(name: str) -> dict[str, Any]:
    """Return how many nodes of a pool have less isolation than it requires, and the required level; empty if none."""
    pool = Pool.objects.filter(name=name).first()
    found = pool.nodes.values_list("isolation", flat=True) if pool else ()
    n = sum(1 for level in found if pool and is_below(level, pool.isolation))
    return {"n": n, "level": pool.isolation} if pool and n else {}


def _partitions(inside: Sequence[Device], wanted: set[str], pool: str) -> str:
    """Return which partitions exist, and whether more could be created if the pool allowed repartitioning."""
    made = Counter(part.profile for device in inside for part in device.made or ())
    has = listed(f"{n} × {profile}" for profile, n in sorted(made.items()))
    text = _("of partitions it has {partitions}").format(partitions=has) if has else _("no device of it is divided")
    ids = [device.id for device in inside if device.made == () and wanted & divisions.profiles_of(device.partitions)]
    able = DeviceRow.objects.filter(id__in=ids, division__makes=True).count()
    if not able:
        return text
    return _("{has}; {n} could be divided so if an administrator allowed it (repartition of pool {pool})").format(
        has=text, n=able, pool=pool
    )
