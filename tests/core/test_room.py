"""What policies see of the room on nodes is what the engine then takes; what the typical workload could use of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.matching import room, workload
from scheduler.core.model.types import Grant, Node, Snapshot, Typical
from scheduler.core.resources import match, topology
from scheduler.core.world.view import View
from scheduler.profiles import named
from tests.core.worlds import NOW, alternative, node, stage
from tests.examples_count import examples

SHARES = st.sampled_from([0, 100, 190, 470, 500, 1000])


@st.composite
def rooms(draw: st.DrawFn) -> tuple[View, room.FeasibleSet]:
    nodes = []
    for i in range(draw(st.integers(1, 3))):
        one = node(f"n{i}", draw(st.integers(0, 4)), 32, npus=draw(st.integers(0, 1)))
        devices = tuple(
            replace(
                device,
                numa=draw(st.sampled_from([None, 0, 1])),
                group=draw(st.sampled_from([None, 0, 0, 1])),
                warned=draw(st.sampled_from([False, False, True])),
            )
            if device.kind != "cpu"
            else device
            for device in one.devices
        )
        nodes.append(replace(one, devices=devices))
    asked = alternative(draw(st.integers(1, 3)), 4, milli=draw(st.sampled_from([190, 500, 1000])))
    view = View(Snapshot(tuple(nodes), (stage(1, alternatives=(asked,)),)), named("dynamic"), NOW)
    for device in view.fleet.devices:
        if device.kind != "cpu":
            view.ledger.occupy([Grant(device.id, draw(SHARES), 0)])
    request = view.request_class(view.waiting["s001"])
    for one in request.feasible_sets:
        one.refresh(view.ledger)
    return view, request.feasible_sets[0] if request.feasible_sets else None


@given(rooms())
@settings(max_examples=examples(150), deadline=None)
def test_the_room_left_is_what_the_engine_leaves(world: tuple[View, room.FeasibleSet]) -> None:
    view, asked = world
    rows = np.flatnonzero(asked.fits) if asked else np.zeros(0, dtype=np.int64)
    if not len(rows):
        return
    found = room.room(asked, rows, view, "gpu")
    for line, row in enumerate(rows):
        place = asked.places[int(row)]
        grants = match.grant(asked.alternative.asks, place, view.ledger)
        mark = view.ledger.checkpoint()
        view.ledger.claim(grants)
        gpus = [device for device in view.fleet.at(int(asked.places.nodes[row])) if device.kind == "gpu"]
        assert found.left[line, : len(gpus)].tolist() == [view.ledger.free(device.id)[0] for device in gpus]
        assert found.cores_left[line] == view.ledger.free(f"{place.node.id}/cpu0")[0]
        view.ledger.rollback(mark)


REQUESTS = st.builds(
    Typical,
    kind=st.just("gpu"),
    count=st.sampled_from([1, 1, 1, 2, 4]),
    milli=st.sampled_from([100, 250, 500, 810, 1000]),
    cores_milli=st.sampled_from([1000, 4000, 9000]),
    share=st.just(0.25),
).map(lambda one: one if one.count == 1 else replace(one, milli=1000))


@given(
    st.lists(REQUESTS, min_size=1, max_size=4),
    st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    st.integers(0, 10_000),
)
def test_usable_is_the_complement_of_fragmentation_by_its_definition(
    requests: list[Typical], free: list[int], cores: int
) -> None:
    usual = tuple(replace(one, share=1 / len(requests)) for one in requests)
    table = workload.usable(usual, "gpu", 4, 1.0)
    expected = 0.0
    for one in usual:
        able = [gap for gap in free if gap >= one.milli]
        if cores >= one.cores_milli and len(able) >= one.count:
            expected += one.share * sum(able)
    found = table.of(np.array([free]), np.array([cores]))[0]
    assert found == pytest.approx(expected)


@given(st.lists(st.sampled_from([200, 230, 320, 470, 810]), min_size=1, max_size=3, unique=True), st.integers(0, 1000))
def test_fill_is_the_best_of_all_choices(sizes: list[int], gap: int) -> None:
    sums = (
        sum(n * size for n, size in zip(times, sizes, strict=True)) for times in product(range(6), repeat=len(sizes))
    )
    assert workload.fill(sizes)[gap] == max(total for total in sums if total <= gap)


def test_the_typical_workload_counts_requests_and_forgets_who_asked() -> None:
    share, whole, cpu = alternative(1, 2, milli=500), alternative(2, 8), alternative(0, 4)
    asked = [share, whole, share, cpu, share]
    usual = workload.typical(stage(i, alternatives=(one,), user=f"u{i}") for i, one in enumerate(asked))
    assert usual[0] == Typical("gpu", 1, 500, 2000, 0.6)
    assert set(usual[1:]) == {Typical("gpu", 2, 1000, 8000, 0.2), Typical("cpu", 0, 0, 4000, 0.2)}
    assert workload.cut(usual, 0.6) == (Typical("gpu", 1, 500, 2000, 1.0),)
    assert sum(one.share for one in workload.EVEN) == pytest.approx(1.0)


def racked(name: str, rack: str, links: dict[str, float] | None = None) -> tuple[Node, None]:
    return node(name, 8, labels={"rack": rack}, links=links or {}), None


def test_of_alike_domains_a_gang_goes_to_the_one_whose_measured_links_are_best() -> None:
    names = lambda chosen: [one.name for one, _ in chosen]  # noqa: E731
    slow = [racked("a", "r1", {"b": 20.0}), racked("b", "r1", {"a": 180.0})]
    fast = [racked("c", "r2"), racked("d", "r2", {"c": 180.0})]
    assert names(topology.gather([*slow, *fast], 2)) == ["c", "d"], "the slower direction counts"
    unmeasured = [racked("e", "r3"), racked("f", "r3")]
    assert names(topology.gather([*slow, *unmeasured], 2)) == ["a", "b"], "what nobody measured is taken for usual"
    strangers = [(replace(one, links={"gone": 1.0}), None) for one, _ in unmeasured]
    assert names(topology.gather([*strangers, *fast], 2)) == ["c", "d"]
    declared = [(replace(one, labels={"rack": "r1", "link-gbps": "400"}), None) for one, _ in slow]
    assert names(topology.gather([*declared, *fast], 2)) == ["a", "b"], "what is declared comes first"


def test_a_node_with_a_bad_cable_is_left_out_where_another_can_take_its_place() -> None:
    names = lambda chosen: [one.name for one, _ in chosen]  # noqa: E731
    good = {"a": 180.0, "c": 180.0, "d": 180.0}
    rack = [
        racked("a", "r"),
        racked("b", "r", dict.fromkeys("acd", 20.0)),
        racked("c", "r", good),
        racked("d", "r", good),
    ]
    assert names(topology.gather(rack, 3)) == ["a", "c", "d"]
    assert set(names(topology.gather(rack, 4))) == {"a", "b", "c", "d"}, "it is better than none"


def test_across_domains_the_pieces_that_are_linked_best_come_together() -> None:
    names = lambda chosen: {one.name for one, _ in chosen}  # noqa: E731
    first = [racked("a", "r1"), racked("b", "r1")]
    far, near = racked("c", "r2", {"a": 5.0}), racked("d", "r3", {"b": 90.0})
    assert names(topology.gather([*first, far, near], 3)) == {"a", "b", "d"}
    assert names(topology.gather([*first, racked("c", "r2"), racked("d", "r3")], 3)) == {"a", "b", "c"}


@given(
    st.lists(st.sampled_from("xyz"), min_size=2, max_size=7),
    st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 6)), st.sampled_from([1.0, 50.0, 100.0]), max_size=12),
    st.integers(2, 5),
)
def test_no_alike_domain_has_a_faster_slowest_link_than_the_chosen(
    racks: list[str], links: dict[tuple[int, int], float], count: int
) -> None:
    nodes = [
        racked(f"n{i}", rack, {f"n{a}": gbps for (a, b), gbps in links.items() if b == i and a < len(racks)})
        for i, rack in enumerate(racks)
    ]
    chosen = topology.gather(nodes, count)
    if len(nodes) < count:
        assert chosen is None
        return
    assert chosen is not None
    assert len({one.id for one, _ in chosen}) == count
    own = {one.labels["rack"] for one, _ in chosen}
    if any(racks.count(rack) >= count for rack in racks):
        assert len(own) == 1
    measured = topology.MeasuredLinks([one for one, _ in nodes])
    if len(own) == 1:
        here = measured.slowest({one.id for one, _ in chosen})
        for rack in {rack for rack in racks if racks.count(rack) == count}:
            assert measured.slowest({one.id for one, _ in nodes if one.labels["rack"] == rack}) <= here


def test_a_gang_goes_to_the_domain_with_the_fastest_links_then_to_the_smallest() -> None:
    def machine(name: str, rack: str, gbps: str = "", **more: str) -> tuple[object, None]:
        return node(name, 8, labels={"rack": rack, **({"link-gbps": gbps} if gbps else {}), **more}), None

    slow = [machine("a", "r1", "100"), machine("b", "r1", "100")]
    fast = [machine("c", "r2", "400"), machine("d", "r2", "400"), machine("e", "r2", "400")]
    names = lambda chosen: [one.name for one, _ in chosen]  # noqa: E731
    assert names(topology.gather([*slow, *fast], 2)) == ["c", "d"]
    assert names(topology.gather([machine("a", "r1"), machine("b", "r1"), machine("c", "r2")], 2)) == ["a", "b"]
    measured = [(replace(one, fetch_gbps=800.0), None) for one, _ in slow]
    assert names(topology.gather([*measured, *fast], 2)) == ["c", "d"], "what is declared comes first"
    unsaid = [(replace(one, labels={"rack": "r3"}, fetch_gbps=800.0), None) for one, _ in slow]
    assert names(topology.gather([*fast, *unsaid], 2)) == ["a", "b"], "what was measured, where nothing is declared"
    absurd = [machine("x", "r4", "inf"), machine("y", "r4", "1e300"), machine("z", "r4", "fast")]
    assert [topology.bandwidth(one) for one, _ in absurd] == [0.0, 0.0, 0.0]
    mixed = [machine("a", "r1", zone="z"), machine("b", "r2", zone="z"), machine("c", "r1", zone="y")]
    assert names(topology.gather(mixed, 2, "rack")) == ["a", "c"]
    assert names(topology.gather(mixed, 2, "zone")) == ["a", "b"]
