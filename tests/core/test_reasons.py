"""Each reason for waiting is given when it is true, with its numbers, and has a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.matching.feasible import never_fits
from scheduler.core.model.funnel import Filter
from scheduler.core.model.lifecycle import Health, NodeState, State
from scheduler.core.model.reasons import CATALOGUE, ranked, sentence
from scheduler.core.model.types import Device, Plan, Pool, Quota, Reason, Snapshot
from tests.core.worlds import NOW, alternative, begun, node, primary, running, stage, starts, think, waits


def reason(plan: Plan, code: str, stage_id: str = "s001") -> Reason:
    """The reason of that code; its sentence leaves no number open."""
    found = next(one for one in waits(plan)[stage_id].reasons if one.code == code)
    assert "?" not in sentence(found)
    return found


def world(*waiting, gpus: int = 4, **more):  # type: ignore[no-untyped-def]
    return Snapshot((node("a", gpus),), tuple(waiting), **more)


def test_held() -> None:
    plan = think(world(stage(1, state=State.HELD, held_by="eve")))
    assert primary(plan, "s001") == "Held"
    assert reason(plan, "Held").params["who"] == "eve"


def test_dependency_never_satisfied() -> None:
    assert primary(think(world(stage(1, unmet=("gone",), blocked_by="gone"))), "s001") == "DependencyNeverSatisfied"


def test_dependency_pending_names_the_stage_and_expects_its_end() -> None:
    going = running(7, {"a": ["gpu0"]}, since=40, p50=100)
    plan = think(world(stage(1, unmet=("r007",)), running=(going,)))
    assert primary(plan, "s001") == "DependencyPending"
    assert reason(plan, "DependencyPending").params["stages"] == "train"
    assert waits(plan)["s001"].planned.start_at == NOW + 60


def test_begin_time() -> None:
    plan = think(world(stage(1, begin_at=NOW + 600)))
    assert primary(plan, "s001") == "BeginTime"
    assert waits(plan)["s001"].planned.start_at == NOW + 600
    assert plan.wake_at == NOW + 600


def test_backoff_after_failure() -> None:
    plan = think(world(stage(1, retry_at=NOW + 20, attempts=1, max_attempts=3)))
    assert primary(plan, "s001") == "BackoffAfterFailure"
    assert reason(plan, "BackoffAfterFailure").params == {"attempt": 2, "of": 3, "seconds": 20}


def test_no_matching_device_is_also_refused_at_submission() -> None:
    asked = stage(1, alternatives=(alternative(1, kind="npu"),))
    plan = think(world(asked))
    assert primary(plan, "s001") == "NoMatchingDevice"
    assert "npu" in reason(plan, "NoMatchingDevice").params["asks"]
    assert never_fits(asked, world()).code == "NoMatchingDevice"


def test_exceeds_cluster_max() -> None:
    asked = stage(1, nodes=2)
    assert primary(think(world(asked)), "s001") == "ExceedsClusterMax"
    assert never_fits(asked, world()).code == "ExceedsClusterMax"


def test_what_is_only_busy_or_down_is_not_refused_at_submission() -> None:
    down = replace(node("a", 4), state=NodeState.LOST)
    assert never_fits(stage(1, gpus=4), Snapshot((down,), running=(running(1, {"a": ["gpu0"]}),))) is None


def test_exceeds_quota_max() -> None:
    plan = think(world(stage(1, gpus=4), quotas=(Quota("lab", "gpu", 1000, 1000),)))
    assert primary(plan, "s001") == "ExceedsQuotaMax"
    assert reason(plan, "ExceedsQuotaMax").params["limit"] == "2"


def test_quota_exhausted() -> None:
    plan = think(world(stage(1), running=(running(7, {"a": ["gpu0"]}),), quotas=(Quota("lab", "gpu", 1000),)))
    assert primary(plan, "s001") == "QuotaExhausted"
    assert reason(plan, "QuotaExhausted").params["held"] == "1"


def test_pool_stopped() -> None:
    plan = think(world(stage(1), pools=(Pool("default", stopped_by="root"),)))
    assert primary(plan, "s001") == "PoolStopped"


def test_nodes_unavailable() -> None:
    drained = replace(node("b", 8), state=NodeState.DRAINED)
    plan = think(Snapshot((node("a", 4), drained), (stage(1, gpus=8),)))
    assert primary(plan, "s001") == "NodesUnavailable"
    assert reason(plan, "NodesUnavailable").params["nodes"] == 1
    assert dict(waits(plan)["s001"].funnel) == {
        Filter.ALL: 2,
        Filter.IN_POOL: 2,
        Filter.MATCHING: 1,
        Filter.READY: 0,
    }


def test_an_unhealthy_device_makes_its_node_unavailable() -> None:
    sick = node("a", 1)
    devices: tuple[Device, ...] = tuple(
        replace(one, health=Health.UNHEALTHY) if one.kind == "gpu" else one for one in sick.devices
    )
    assert primary(think(Snapshot((replace(sick, devices=devices),), (stage(1),))), "s001") == "NodesUnavailable"


def test_an_image_needs_a_node_with_a_container_engine() -> None:
    bare, equipped = node("a", 4, runs_images=False), node("b", 4)
    asked = stage(1, alternatives=(replace(alternative(1), image="registry.local/pytorch:2.9"),))
    assert starts(think(Snapshot((bare, equipped), (asked,))))["s001"].placement.nodes == ("b",)
    plan = think(Snapshot((bare,), (asked,)))
    assert primary(plan, "s001") == "ImageUnavailable"
    said = "its image cannot be fetched: no node of pool default with 1 gpu · 1 core 1 GiB has a container engine"
    assert sentence(reason(plan, "ImageUnavailable")) == said
    assert dict(waits(plan)["s001"].funnel)[Filter.WITH_ENGINE] == 0
    assert never_fits(asked, Snapshot((bare,))) is None, "an engine can be started any moment"


def test_a_gang_needs_a_container_engine_on_each_of_its_nodes() -> None:
    image = replace(alternative(1), image="registry.local/pytorch:2.9")
    nodes = (node("a", 4, runs_images=False), node("b", 4))
    plan = think(Snapshot(nodes, (stage(1, nodes=2, alternatives=(image,)), stage(2, nodes=2))))
    assert set(starts(plan)) == {"s002"}
    assert "only 1 of 2 nodes of pool default" in str(reason(plan, "ImageUnavailable").params["detail"])


def test_where_no_engine_is_another_way_without_an_image_is_taken() -> None:
    alternatives = (replace(alternative(1), image="registry.local/pytorch:2.9"), alternative(1, index=1))
    plan = think(Snapshot((node("a", 4, runs_images=False),), (stage(1, alternatives=alternatives),)))
    assert starts(plan)["s001"].placement.alternative == 1


def test_waiting_for_preemption_lasts_until_the_victims_are_gone() -> None:
    victim = running(7, {"a": ["gpu0"]}, priority=250, p50=50_000)
    plan = think(world(stage(1, priority=1000), gpus=1, running=(victim,)))
    assert primary(plan, "s001") == "WaitingForPreemption"
    assert [one.victim for one in plan.preempts] == ["r007"]
    stopping = replace(victim, state=State.STOPPING, evicted_for="s001", stop_by_at=NOW + 12)
    later = think(world(stage(1, priority=1000), gpus=1, running=(stopping,)))
    assert not later.preempts
    assert reason(later, "WaitingForPreemption").params == {"victims": "#7 train", "count": 1, "seconds": 12}


def test_fragmented() -> None:
    going = tuple(running(i, {one: ["gpu0", "gpu1"]}) for i, one in enumerate("ab"))
    plan = think(Snapshot((node("a", 4), node("b", 4)), (stage(1, gpus=4),), going))
    assert primary(plan, "s001") == "Fragmented"
    assert reason(plan, "Fragmented").params == {"free": 4, "kind": "gpu", "needed": 4}


def test_shares_of_several_devices_do_not_make_one() -> None:
    half = stage(1, alternatives=(alternative(1, milli=600),))
    going = replace(running(7, {"a": ["gpu0", "gpu1"]}))
    grants = tuple(replace(one, milli=500) if "gpu" in one.device else one for one in going.placement.grants[0])
    going = replace(going, placement=replace(going.placement, grants=(grants,)))
    assert primary(think(world(half, gpus=2, running=(going,))), "s001") == "Fragmented"


def test_capacity_insufficient_says_what_is_left() -> None:
    plan = think(world(stage(1, gpus=4), running=(running(7, {"a": ["gpu0"]}),)))
    assert primary(plan, "s001") == "CapacityInsufficient"
    assert reason(plan, "CapacityInsufficient").params["free"] == "3 gpu"
    assert dict(waits(plan)["s001"].funnel)[Filter.ENOUGH_FREE] == 0


def test_reserved_for_higher_names_the_promise_and_the_length_that_would_fit() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100)
    gang, short, long = stage(1, gpus=4), stage(2, p50=99), stage(3, p50=500)
    plan = think(world(gang, short, long, running=(going,)))
    assert set(starts(plan)) == {"s002"}
    assert primary(plan, "s003") == "ReservedForHigher"
    found = reason(plan, "ReservedForHigher", "s003")
    assert found.params == {"promised": "#1 train", "fits_s": 100}


def test_priority_behind_counts_those_ahead() -> None:
    plan = think(world(stage(1), stage(2), stage(3), gpus=1))
    assert set(starts(plan)) == {"s001"}
    assert reason(plan, "PriorityBehind", "s003").params["ahead"] == 1
    assert primary(
        think(world(stage(1, gpus=2), stage(2), gpus=2, running=(running(7, {"a": ["gpu0"]}),)), "fifo"), "s002"
    ) == ("PriorityBehind")


def test_planned_later_and_planned_device_busy_belong_to_kept_timetables() -> None:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=150)
    snap = world(stage(1), gpus=1, running=(going,))
    snap = begun(snap, think(snap, "static"), NOW)
    freed = replace(snap, running=())
    assert primary(think(freed, "static", NOW + 50), "s001") == "PlannedLater"
    assert primary(think(snap, "static", NOW + 160), "s001") == "PlannedDeviceBusy"


def test_reasons_come_in_the_order_of_the_catalogue_one_per_code() -> None:
    mixed = [Reason(one.code) for one in reversed(CATALOGUE)] + [Reason("Held")]
    assert [one.code for one in ranked(mixed)] == [one.code for one in CATALOGUE]


@pytest.mark.parametrize(
    ("ahead", "says"), [(1, "1 stage is ahead"), (2, "2 stages are ahead"), (11, "11 stages are ahead")]
)
def test_one_is_singular(ahead: int, says: str) -> None:
    assert sentence(Reason("PriorityBehind", {"ahead": ahead})) == says
