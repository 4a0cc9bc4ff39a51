"""What a version of a profile would do: it lives through what finished of late, beside what decides now."""

from __future__ import annotations

from controlplane.accounts.models import User
from controlplane.pools import profiles
from controlplane.pools.models import Pool, ProfileVersion
from controlplane.simulations import service
from controlplane.simulations.models import Simulation
from controlplane.simulations.pool_shape import nodes_of
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
    shape, cores = nodes_of(pool)
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
