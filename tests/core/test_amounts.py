"""What a node has as a whole, disk space and bandwidths, runs out like its devices and counts as none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.explain import counterfactual
from scheduler.core.model.kinds import DISK, NETWORK, amount_id, is_accelerator, is_amount
from scheduler.core.model.reasons import sentence
from scheduler.core.model.types import Ask, Device, Grant, Quota, Running, Snapshot
from scheduler.core.resources.charges import charge
from scheduler.core.resources.speed import speed_of, worth
from scheduler.core.world import price
from scheduler.profiles import PROFILES, named
from tests.core.worlds import GIB, NOW, alternative, node, on_disk, running, stage, think, with_disk

CPU_ONLY = (alternative(0, 1),)


def holding(one: Running, space: int, mbps: int = 0) -> Running:
    """The running stage with so much of the disk of its only node."""
    (name,), (grants,) = one.placement.nodes, one.placement.grants
    held = (*grants, Grant(amount_id(name, DISK), mbps, space))
    return replace(one, placement=replace(one.placement, grants=(held,)))


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_node_runs_out_of_disk_space_and_the_reason_says_so(profile: str) -> None:
    there = with_disk(node("a", 4), 400 * GIB)
    held = holding(running(1, {"a": ["gpu0"]}), 300 * GIB)
    small = stage(1, alternatives=on_disk((alternative(1),), 100 * GIB))
    wide = stage(2, alternatives=on_disk((alternative(1),), 200 * GIB))
    plan = think(Snapshot((there,), (small, wide), (held,)), profile)
    assert [one.stage for one in plan.starts] == [small.id]
    (wait,) = plan.waits
    if named(profile).rotates != "none":
        return  # it waits for its turn
    reason = next(one for one in wait.reasons if one.code == "CapacityInsufficient")
    assert reason.params["kind"] == DISK
    assert sentence(reason) == (
        "needs 1 gpu · 1 core 1 GiB · 200 GiB of disk; the largest free share of a node is 0 GiB of disk"
    )


def test_a_stage_is_promised_the_time_at_which_disk_space_becomes_free() -> None:
    there = with_disk(node("a", 4), 400 * GIB)
    held = holding(running(1, {"a": ["gpu0"]}, p50=100.0, since=40.0), 300 * GIB)
    plan = think(Snapshot((there,), (stage(1, alternatives=on_disk((alternative(1),), 200 * GIB)),), (held,)), "hybrid")
    assert plan.waits[0].planned is not None
    assert plan.waits[0].planned.start_at == pytest.approx(NOW + 60.0)


@pytest.mark.parametrize(("kind", "ask"), [(DISK, Ask(DISK, 1, 600)), (NETWORK, Ask(NETWORK, 1, 600))])
def test_bandwidth_runs_out_too(kind: str, ask: Ask) -> None:
    there = node("a", 4)
    amount = Device(amount_id("a", kind), "a", kind, "", "", 1 << 20, 0, 1000)
    there = replace(there, devices=(*there.devices, amount))
    asking = tuple(replace(one, asks=(*one.asks, ask)) for one in CPU_ONLY)
    plan = think(Snapshot((there,), (stage(1, alternatives=asking), stage(2, alternatives=asking))), "hybrid")
    assert len(plan.starts) == 1
    assert any(f"600 MB/s of {kind}" in sentence(reason) for reason in plan.waits[0].reasons)


def test_nodes_that_tell_of_no_disk_are_no_place_for_who_asks_for_some() -> None:
    asking = stage(1, alternatives=on_disk(CPU_ONLY, GIB))
    (wait,) = think(Snapshot((node("a"),), (asking,)), "hybrid").waits
    assert wait.reasons[0].code == "NoMatchingDevice"
    assert sentence(wait.reasons[0]) == "no node of pool default has 1 core 1 GiB · 1 GiB of disk"


def test_they_count_as_no_devices() -> None:
    there = with_disk(node("a", 1), 400 * GIB, 5000)
    disk = there.devices[-1]
    assert not is_accelerator(disk.kind)
    assert (charge(disk), worth(disk, 5000), is_amount(disk.id)) == (0.0, 0.0, True)
    plain = running(1, {"a": ["gpu0"]})
    assert price.width(holding(plain, 300 * GIB, 5000)) == price.width(plain)
    devices = {one.id: one for one in there.devices}
    cores = [Grant("a/cpu0", 1000, GIB), Grant(disk.id, 5000, GIB)]
    assert speed_of("preprocess", "", cores, devices, {}) == speed_of("preprocess", "", cores[:1], devices, {})
    (start,) = think(Snapshot((there,), (stage(1, alternatives=on_disk(CPU_ONLY, GIB)),)), "hybrid").starts
    assert start.why.startswith("Xeon on a")


def test_no_quota_counts_them() -> None:
    there = with_disk(node("a", 2), 400 * GIB, 5000)
    asking = stage(1, alternatives=on_disk((alternative(1),), 100 * GIB, 2000))
    quotas = (Quota("lab", "gpu", 1000, 0), Quota("lab", "cpu", 1000, 0))
    assert len(think(Snapshot((there,), (asking,), quotas=quotas), "hybrid").starts) == 1


def test_who_waits_for_disk_space_is_told_with_how_much_it_would_start() -> None:
    there = with_disk(node("a", 4), 400 * GIB)
    held = holding(running(1, {"a": ["gpu0"]}, p50=9000.0), 300 * GIB)
    asking = stage(1, alternatives=on_disk((alternative(1),), 200 * GIB))
    found = counterfactual.search(Snapshot((there,), (asking,), (held,)), named("hybrid"), NOW, asking.id)
    (change,) = next(one.changes for one in found.answers if one.changes[0].kind == "disk")
    assert change.text == "with 100 GiB of disk per node instead of 200"
