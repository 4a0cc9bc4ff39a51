"""What the engine says of the simulated cluster: decisions, a simulation, and a profile of its own."""

from __future__ import annotations

import json
from dataclasses import replace

from controlplane.accounts.models import User
from controlplane.bulk import service as bulk
from controlplane.bulk.action import Action
from controlplane.demo.cluster import DemoCluster
from controlplane.pools import profiles as own
from controlplane.pools.models import Pool, ProfileVersion
from controlplane.scheduling import shadow
from controlplane.scheduling.recorder import Noted, Recorder
from controlplane.scheduling.store import LiveStore
from controlplane.simulations import worker
from controlplane.simulations.models import Simulation
from scheduler import profiles
from scheduler.core.planning import engine
from scheduler.core.planning.cycle import Cycle
from scheduler.core.ports import Applied


def write(cluster: DemoCluster) -> None:
    """Write two decisions, a simulation that is done, a profile in two versions, and an operation."""
    _decided(cluster)
    _simulated(cluster)
    _own_profile(cluster)
    _refused()


def _decided(cluster: DemoCluster) -> None:
    """Two cycles on what is true now, written down and never applied; the second has a shadow profile beside it."""
    recorder = Recorder()
    for late in (0.0, 2.0):
        world = LiveStore().load(cluster.now.timestamp() + late)
        stages = world.waiting if late else world.waiting[:3]
        world = replace(world, waiting=stages)
        profiles_of = {pool.name: profiles.named(pool.profile) for pool in world.pools}
        plan = engine.plan(world, profiles_of, cluster.now.timestamp() + late)
        applied = Applied(tuple(start.stage for start in plan.starts), tuple(one.victim for one in plan.preempts))
        recorder._notes.append(Noted(Cycle(world, plan, applied), 0.0074, cluster.now.timestamp() + late))
        rows = recorder.flush()
    Pool.objects.update(shadow_profile="fifo")
    for row in rows:
        shadow.evaluate_shadows(row.pk)
    Pool.objects.exclude(name="default").update(shadow_profile="")


def _own_profile(cluster: DemoCluster) -> None:
    """A profile in two versions: the first decides nowhere and was previewed, the second is new."""
    spec = json.loads(json.dumps(profiles.PROFILES["hybrid"]))
    row = own.create("night-shift", spec, by="admin", description=f"Wide jobs first after hours {cluster.written}")
    first = row.versions.get()
    ProfileVersion.objects.filter(pk=first.pk).update(preview=Simulation.objects.earliest("pk"))
    own.activate(row.versions.get(), by="admin")
    spec["policies"]["preempt"] = {"budget": 2}
    spec["policies"]["power"] = {"weight": 2.0}
    del spec["policies"]["hot_nodes"]
    own.revise(row, spec | {"depth": 400}, by="admin", note="two preemptions at most, and less power")


def _simulated(cluster: DemoCluster) -> None:
    """A small simulation that is done."""
    row = Simulation.objects.create(
        user=User.objects.get(username="admin"),
        name="hybrid or first come",
        source="generate",
        scenario={
            "name": "hybrid or first come",
            "trace": {"generate": {"jobs": 60, "per_hour": 40, "seed": 4}},
            "world": {"nodes": "4x8", "error": 0.3},
            "profiles": ["hybrid", "fifo"],
            "loads": [1.0, 1.5],
            "seeds": [0],
        },
    )
    worker.run(row.pk)


def _refused() -> None:
    """An operation that changed nothing: what has ended cannot be held."""
    admin = User.objects.get(username="admin")
    bulk.begin(admin, Action("hold", reason="before the network upgrade"), {"state": "COMPLETED,FAILED"})
    bulk.advance()
