"""What a version of a profile would do: it lives through what finished of late, beside what decides now."""

from __future__ import annotations

import re
from collections import Counter

from controlplane.accounts.models import User
from controlplane.pools import profiles
from controlplane.pools.models import Pool, ProfileVersion
from controlplane.simulations import service
from controlplane.simulations.models import Simulation
from scheduler.core.model.lifecycle import NodeState
from scheduler.profiles import DEFAULT


def begin(version: ProfileVersion, user: User, *, pool: Pool, days: float, against: str = "") -> Simulation:
    """Simulates the last days of a pool under this version and under another profile: ``against``, or what decides in
    the pool, or the default where that is this very version.

    The simulated nodes have the pool's numbers of accelerators and of cores. Raises as ``simulations.service.submit``,
    and ``profiles.ProfileInvalid`` where there is no such profile to compare with.
    """
    own = str(version)
    other = against or pool.profile
    if other == version.profile.name and version.profile.active:
        other = str(version.profile.active)
    if other in (own, version.profile.name):
        other = DEFAULT
    try:
        rival = profiles.spec_of(other)
    except ValueError as error:
        raise profiles.ProfileInvalid(str(error), "against") from None
    shape, cores = _nodes(pool)
    row = service.submit(
        {
            "name": f"{own} beside {other}",
            "trace": {"history": {"days": days, "pool": pool.name}},
            "world": {"nodes": shape, "cores": cores},
            "profiles": {other: dict(rival), own: version.spec},
        },
        user,
    )
    ProfileVersion.objects.filter(pk=version.pk).update(preview=row)
    return row


def _nodes(pool: Pool) -> tuple[str, int]:
    """The pool's nodes as a scenario describes them, and how many cores each has: as many as the largest."""
    sorts: Counter[tuple[int, str]] = Counter()
    cores = 1
    for node in pool.nodes.exclude(state=NodeState.LOST).prefetch_related("devices"):
        devices = [device for device in node.devices.all() if device.present]
        cards = [device.model for device in devices if device.kind != "cpu"]
        cores = max([cores, *(device.capacity_milli // 1000 for device in devices if device.kind == "cpu")])
        model = Counter(cards).most_common(1)[0][0] if cards else ""
        sorts[len(cards), re.sub(r"[^\w .-]", " ", model).strip()[:100]] += 1
    parts = [f"{count}x{cards}" + (f":{model}" if model else "") for (cards, model), count in sorted(sorts.items())]
    return ",".join(parts) or "1x0", min(cores, 4096)
