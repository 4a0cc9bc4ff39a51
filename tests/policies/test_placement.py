"""For each policy that places a world in which it alone changes the outcome."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Grant, Node, Plan, Pool, Running, Snapshot, Typical
from scheduler.policies.best_fit import BestFit
from scheduler.policies.conditions import Conditions
from scheduler.policies.fragmentation import Fragmentation
from scheduler.policies.leftover import Leftover
from scheduler.policies.locality import Locality
from scheduler.policies.pack import Pack
from scheduler.policies.power import Power
from scheduler.policies.spread import Spread
from scheduler.policies.topology import Topology
from scheduler.research.random import Random
from tests.core.worlds import alternative, node, running, stage, starts, think, waits


def places(world: Snapshot, policy: object | None = None) -> dict[str, str]:
    """Where each stage started, by the names of its nodes."""
    profile = Profile("one", ((policy, 1.0),) if policy else ())
    return {name: "".join(start.placement.nodes) for name, start in starts(think(world, profile)).items()}


def usually(world: Snapshot, typical: tuple[Typical, ...]) -> Snapshot:
    return replace(world, pools=(Pool("default", typical=typical),))


def holding(number: int, where: str, device: str, milli: int) -> Running:
    one = running(number, {where: [device]})
    grants = ((Grant(f"{where}/{device}", milli, 0), Grant(f"{where}/cpu0", 100, 0)),)
    return replace(one, placement=replace(one.placement, grants=grants))


def with_devices(one: Node, **by_name: dict[str, object]) -> Node:
    """The node with some fields of some devices changed: ``gpu1={"warned": True}``."""
    devices = (replace(device, **by_name.get(device.id.split("/")[1], {})) for device in one.devices)  # type: ignore[arg-type]
    return replace(one, devices=tuple(devices))


def test_best_fit_takes_the_node_with_least_left_cores_and_devices_alike() -> None:
    world = Snapshot((node("a", 4, 64), node("b", 4, 16)), (stage(1),))
    assert (places(world, BestFit()), places(world)) == ({"s001": "b"}, {"s001": "a"})
    used = replace(world, nodes=(node("a", 4, 64), node("b", 4, 64)), running=(running(7, {"b": ["gpu0"]}),))
    assert places(used, BestFit()) == {"s001": "b"}


def test_spread_takes_the_node_with_most_left() -> None:
    world = Snapshot((node("a", 2), node("b", 2)), (stage(1),), (running(7, {"a": ["gpu0"]}),))
    assert (places(world, Spread()), places(world)) == ({"s001": "b"}, {"s001": "a"})


def test_random_takes_any_node_and_the_same_one_again() -> None:
    world = Snapshot(tuple(node(name, 4) for name in "abcd"), tuple(stage(i) for i in range(12)))
    drawn = places(world, Random())
    assert len(set(drawn.values())) > 2
    assert set(places(world).values()) == {"a", "b", "c"}
    assert drawn == places(world, Random())
    assert drawn != places(world, Random(seed=1))
    alone = places(replace(world, waiting=(world.waiting[5],)), Random())
    assert alone["s005"] == drawn["s005"], "who else waits does not matter"


# Whole devices are usual; half of one fits on a gap of 600 and on a whole device.
WHOLES = (Typical("gpu", 1, 1000, 1000, 0.9), Typical("gpu", 1, 500, 1000, 0.1))
HALF = stage(1, alternatives=(alternative(1, milli=500),))


def test_fragmentation_breaks_no_whole_device_while_a_gap_fits() -> None:
    world = Snapshot((node("a", 1), node("b", 1)), (HALF,), (holding(7, "b", "gpu0", 400),))
    assert places(usually(world, WHOLES), Fragmentation()) == places(world, Fragmentation()) == {"s001": "b"}
    assert places(world) == {"s001": "a"}


def test_fragmentation_spares_the_cores_without_which_devices_are_of_no_use() -> None:
    heavy = (Typical("gpu", 1, 1000, 16_000, 1.0),)
    world = Snapshot((node("a", 1, 16), node("b", 1, 32)), (stage(1, alternatives=(alternative(0, 8),)),))
    assert (places(usually(world, heavy), Fragmentation()), places(world)) == ({"s001": "b"}, {"s001": "a"})


def test_fragmentation_counts_small_differences_as_equal() -> None:
    rare = (Typical("gpu", 1, 1000, 20_000, 0.02), Typical("gpu", 1, 1000, 40_000, 0.01))
    usual = (Typical("gpu", 1, 1000, 1000, 0.97), *rare)
    world = Snapshot((node("a", 1, 20), node("b", 1, 40)), (stage(1, alternatives=(alternative(0, 4),)),))
    # On a, a request that is 2 % of all would no longer fit; on b one that is 1 %.
    assert places(usually(world, usual), Fragmentation(covers=1.0)) == {"s001": "a"}
    assert places(usually(world, usual), Fragmentation(covers=1.0, steps=0)) == {"s001": "b"}


def test_leftover_sends_many_cores_where_cores_are_plenty_before_they_run_out_elsewhere() -> None:
    usual = (Typical("gpu", 1, 1000, 6000, 0.5), Typical("gpu", 1, 1000, 10_000, 0.5))
    world = Snapshot((node("a", 8, 64), node("b", 2, 64)), (stage(1, alternatives=(alternative(1, 12),)),))
    # On a, 52 cores would be left for 7 devices that want 56: one of them might stay idle. A modest one goes there.
    assert (places(usually(world, usual), Leftover()), places(world)) == ({"s001": "b"}, {"s001": "a"})
    modest = replace(
        world, waiting=(stage(1, alternatives=(alternative(1, 2),)),), nodes=(node("a", 2, 64), node("b", 8, 64))
    )
    assert places(usually(modest, usual), Leftover()) == {"s001": "b"}


def test_leftover_puts_a_size_where_the_rest_is_still_of_use() -> None:
    usual = tuple(Typical("gpu", 1, milli, 1000, 0.25) for milli in (320, 470, 650, 1000))
    going = (holding(7, "a", "gpu0", 500), holding(8, "b", "gpu0", 680))
    world = Snapshot((node("a", 1), node("b", 1)), (stage(1, alternatives=(alternative(1, milli=320),)),), going)
    # 500 are free on a, where 470 would fit; 320 on b, which it fills.
    assert (places(usually(world, usual), Leftover()), places(world)) == ({"s001": "b"}, {"s001": "a"})


def test_leftover_keeps_whole_nodes_for_those_who_need_several_devices() -> None:
    usual = (Typical("gpu", 1, 1000, 1000, 0.5), Typical("gpu", 4, 1000, 4000, 0.5))
    world = Snapshot((node("a", 4), node("b", 8)), (stage(1),), (running(7, {"b": ["gpu0", "gpu1"]}),))
    assert (places(usually(world, usual), Leftover()), places(world)) == ({"s001": "b"}, {"s001": "a"})


def test_topology_keeps_the_devices_of_a_stage_on_one_numa_node() -> None:
    split = with_devices(node("a", 2), gpu0={"numa": 0}, gpu1={"numa": 1})
    close = with_devices(node("b", 2), gpu0={"numa": 0}, gpu1={"numa": 0})
    world = Snapshot((split, close), (stage(1, gpus=2),))
    assert (places(world, Topology()), places(world)) == ({"s001": "b"}, {"s001": "a"})


def test_the_engine_takes_devices_of_one_numa_node_where_it_has_enough() -> None:
    numas = {f"gpu{i}": {"numa": i % 2} for i in range(4)}
    world = Snapshot((with_devices(node("a", 4), **numas),), (stage(1, gpus=2),), (holding(7, "a", "gpu0", 400),))
    grants = starts(think(world, Profile("none", ())))["s001"].placement.grants[0]
    assert [one.device for one in grants][:2] == ["a/gpu1", "a/gpu3"]


def grouped(name: str, *groups: int | None) -> Node:
    """A node whose GPUs stand in these link groups."""
    return with_devices(node(name, len(groups)), **{f"gpu{i}": {"group": group} for i, group in enumerate(groups)})


def taken(world: Snapshot) -> list[str]:
    start = starts(think(world, Profile("none", ())))["s001"]
    return [one.device.split("/")[1] for rank in start.placement.grants for one in rank if "gpu" in one.device]


def test_the_engine_takes_devices_of_one_link_group_and_leaves_the_larger_one_whole() -> None:
    two = (stage(1, gpus=2),)
    assert taken(Snapshot((grouped("a", 0, 1, 0, 1),), two, (holding(7, "a", "gpu0", 1000),))) == ["gpu1", "gpu3"]
    assert taken(Snapshot((grouped("a", 0, 0, 0, 0, 1, 1),), two)) == ["gpu4", "gpu5"]
    numas = {f"gpu{i}": {"numa": i % 2} for i in range(4)}
    assert taken(Snapshot((with_devices(grouped("a", 0, 1, 1, 0), **numas),), two)) == ["gpu0", "gpu3"], "links first"
    inside = {f"gpu{i}": {"numa": numa} for i, numa in enumerate([0, 1, 0, 1])}
    used = (holding(7, "a", "gpu0", 1000),)
    assert taken(Snapshot((with_devices(grouped("a", 0, 0, 0, 0), **inside),), two, used)) == ["gpu1", "gpu3"]
    assert len(taken(Snapshot((grouped("a", 0, 1, 2, None),), (stage(1, gpus=3),)))) == 3, "preferred, never required"


def test_topology_counts_a_link_group_before_a_numa_node() -> None:
    torn = with_devices(grouped("a", 0, 1), gpu0={"numa": 0}, gpu1={"numa": 0})
    joined = with_devices(grouped("b", 0, 0), gpu0={"numa": 0}, gpu1={"numa": 1})
    world = Snapshot((torn, joined), (stage(1, gpus=2),))
    assert (places(world, Topology()), places(world)) == ({"s001": "b"}, {"s001": "a"})


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 0, 1])), min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(1, 5),
)
def test_devices_span_no_two_groups_while_one_has_room_and_no_preference_keeps_from_starting(
    places: list[tuple[int | None, int | None]], busy: set[int], count: int
) -> None:
    devices = {f"gpu{i}": {"group": group, "numa": numa} for i, (group, numa) in enumerate(places)}
    held = tuple(holding(7 + i, "a", f"gpu{i}", 1000) for i in sorted(busy) if i < len(places))
    free = [group for i, (group, _) in enumerate(places) if i not in busy]
    world = Snapshot((with_devices(node("a", len(places)), **devices),), (stage(1, gpus=count),), held)
    begun = starts(think(world, "dynamic"))
    assert bool(begun) == (len(free) >= count)
    if begun and (able := {group for group in free if group is not None and free.count(group) >= count}):
        got = {places[int(name[3:])][0] for name in taken(world)}
        assert len(got) == 1
        if count > 1:
            assert free.count(*got) == min(free.count(group) for group in able), "the larger groups stay whole"


def test_the_engine_keeps_a_gang_in_the_sort_of_domain_that_it_names() -> None:
    def machine(name: str, rack: str, zone: str) -> Node:
        return node(name, 1, labels={"rack": rack, "zone": zone})

    world = Snapshot(
        (machine("a", "r1", "z1"), machine("b", "r1", "z2"), machine("c", "r2", "z1")), (stage(1, nodes=2),)
    )
    assert places(world) == {"s001": "ab"}
    assert places(replace(world, waiting=(stage(1, nodes=2, within="zone"),))) == {"s001": "ac"}
    three = replace(world, waiting=(stage(1, nodes=3, within="zone"),))
    assert places(three) == {"s001": "acb"}, "preferred: better torn than not at all"
    bound = replace(world, waiting=(stage(1, nodes=3, within="zone", within_required=True),))
    assert not places(bound), "required"


def test_locality_goes_where_the_inputs_lie() -> None:
    there = replace(node("b", 1), cached=("d1", "d2"))
    world = Snapshot((node("a", 1), there), (stage(1, inputs=("d1", "d9")),))
    assert (places(world, Locality()), places(world)) == ({"s001": "b"}, {"s001": "a"})
    sized = replace(world, waiting=(stage(1, inputs=("d1", "d9"), input_bytes=(("d1", 1), ("d9", 8 << 30))),))
    has_the_large_one = replace(world.nodes[0], cached=("d9",))
    assert places(replace(sized, nodes=(there, has_the_large_one)), Locality()) == {"s001": "a"}, "bytes, not names"
    near, far = replace(node("b", 1), fetch_gbps=100.0), replace(node("a", 1), labels={"link-gbps": "1"})
    assert places(replace(sized, nodes=(far, near)), Locality()) == {"s001": "b"}, "the same bytes come sooner"
    indifferent = replace(world, waiting=(stage(1),))
    assert places(indifferent, Locality()) == {"s001": "a"}


def test_locality_is_worth_what_the_transfer_is_of_the_run() -> None:
    """Ten seconds of transfer outweigh the packing of a short stage, and not of a long one."""
    used = replace(node("b", 2))
    has = replace(node("c", 2), cached=("d1",))
    policies = ((Pack(), 1.0), (Locality(), 20.0))

    def where(p50: float) -> str:
        one = stage(1, p50=p50, inputs=("d1",), input_bytes=(("d1", 25 << 30),))
        world = Snapshot((used, has), (one,), (running(7, {"b": ["gpu0"]}),))
        return "".join(starts(think(world, Profile("one", policies)))["s001"].placement.nodes)

    assert (where(5.0), where(5_000.0)) == ("c", "b")


def test_power_wakes_nobody_without_need_and_takes_what_does_most_per_watt() -> None:
    asleep = replace(node("a", 1), awake=False)
    world = Snapshot((asleep, node("b", 1)), (stage(1), stage(2)))
    assert places(world, Power()) == {"s001": "b", "s002": "a"}
    assert places(world) == {"s001": "a", "s002": "b"}
    busy = Snapshot((node("a", 2), node("b", 2)), (stage(1),), (running(7, {"b": ["gpu0"]}),))
    assert places(busy, Power()) == {"s001": "b"}
    hungry = with_devices(node("a", 1, model="A100"), gpu0={"features": {"bf16_tflops": 312.0, "watts": 400.0}})
    frugal = with_devices(node("b", 1, model="H100"), gpu0={"features": {"bf16_tflops": 989.0, "watts": 700.0}})
    assert places(Snapshot((hungry, frugal), (stage(1),)), Power()) == {"s001": "b"}


def test_conditions_uses_a_device_that_warns_last() -> None:
    world = Snapshot((with_devices(node("a", 1), gpu0={"warned": True}), node("b", 1)), (stage(1), stage(2)))
    assert places(world, Conditions()) == {"s001": "b", "s002": "a"}
    assert places(world) == {"s001": "a", "s002": "b"}


def test_within_a_node_the_engine_takes_a_device_that_warns_last() -> None:
    world = Snapshot((with_devices(node("a", 2), gpu0={"warned": True}),), (stage(1), stage(2)))
    plan: Plan = think(world, Profile("none", ()))
    assert not waits(plan)
    assert [starts(plan)[name].placement.grants[0][0].device for name in ("s001", "s002")] == ["a/gpu1", "a/gpu0"]


def test_the_named_profiles_place_by_all_of_them() -> None:
    sick = with_devices(node("a", 1), gpu0={"warned": True})
    there = replace(node("c", 1), cached=("d1",))
    world = Snapshot((sick, node("b", 1), there), (stage(1), stage(2, inputs=("d1",))))
    for name in ("static", "dynamic", "hybrid", "fifo"):
        found = {one: "".join(start.placement.nodes) for one, start in starts(think(world, name)).items()}
        assert found == {"s001": "b", "s002": "c"}, name
