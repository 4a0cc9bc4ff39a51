"""Quotas by kind, by model and by worth; what is without limit takes nothing, lends nothing and loses nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Device, Node, Project, Quota, Snapshot
from scheduler.core.resources.charges import charge
from scheduler.core.resources.usage import Usage
from scheduler.policies.gang import Gang
from scheduler.policies.quota import Quota as QuotaPolicy
from scheduler.policies.reclaim import Reclaim
from tests.core.worlds import alternative, node, primary, running, stage, starts, think

RIGHTS = Profile("rights", ((QuotaPolicy(), 1.0), (Gang(), 1.0), (Reclaim(), 1.0)))


def featured(name: str, gpus: int, model: str, tflops: float, gbps: float) -> Node:
    """A node of GPUs of which rate and bandwidth are declared."""
    one = node(name, gpus, model=model)
    features = {"bf16_tflops": tflops, "memory_gbps": gbps}
    return replace(one, devices=tuple(replace(d, features=features) if d.kind == "gpu" else d for d in one.devices))


FLEET = (featured("a", 4, "H100", 989.0, 3350.0), featured("b", 4, "T4", 65.0, 320.0))


def test_a_project_without_a_nominal_is_not_taken_from() -> None:
    """A class-500 stage of an unlimited project was once stopped for one of class 250."""
    rights = (Quota("lab", "gpu", None, cohort="all"), Quota("shop", "gpu", 2000, cohort="all"))
    going = tuple(running(i, {"a": [f"gpu{i}"]}, p50=9e4) for i in range(4))
    world = Snapshot((node("a", 4),), (stage(1, project="shop", priority=250),), going, quotas=rights)
    assert not think(world, RIGHTS).preempts
    bounded = (replace(rights[0], nominal_milli=2000), rights[1])
    assert len(think(replace(world, quotas=bounded), RIGHTS).preempts) == 1, "what was lent is taken back"


def test_who_has_no_limit_has_borrowed_nothing() -> None:
    rights = (
        Quota("lab", "gpu", None, cohort="all"),
        Quota("shop", "gpu", 1000, cohort="all"),
        Quota("hall", "gpu", 1000, cohort="all"),
    )
    going = (running(0, {"a": ["gpu0"]}, p50=9e4), running(1, {"a": ["gpu1"]}, p50=9e4))
    asked = tuple(stage(i, project="shop") for i in (1, 2))
    assert set(starts(think(Snapshot((node("a", 4),), asked, going, quotas=rights), RIGHTS))) == {"s001", "s002"}


def test_a_quota_of_a_model_bounds_that_model_only() -> None:
    rights = (Quota("lab", "gpu", 1000, model="h100"),)
    asked = (
        stage(1, alternatives=(alternative(1, model="H100"),)),
        stage(2, alternatives=(alternative(1, model="H100"),)),
        *(stage(i) for i in (3, 4, 5)),
    )
    plan = think(Snapshot(FLEET, asked, quotas=rights), RIGHTS)
    placed = {name: start.placement.nodes[0] for name, start in starts(plan).items()}
    assert placed == {"s001": "a", "s003": "b", "s004": "b", "s005": "b"}, "who may have any GPU gets one that is free"
    assert primary(plan, "s002") == "QuotaExhausted"
    reason = next(one.reasons[0] for one in plan.waits if one.stage == "s002")
    assert reason.params["kind"] == "gpu h100"


def test_a_normalised_quota_counts_what_devices_are_worth() -> None:
    rights = (Quota("lab", "gpu", 1000, normalised=True),)
    fast = tuple(stage(i, alternatives=(alternative(1, model="H100"),)) for i in (1, 2))
    slow = tuple(stage(i, alternatives=(alternative(1, model="T4"),)) for i in (3, 4, 5))
    assert not starts(think(Snapshot(FLEET, fast, quotas=rights), RIGHTS)), "an H100 is more than one A100"
    assert len(starts(think(Snapshot(FLEET, slow, quotas=rights), RIGHTS))) == 3
    assert len(starts(think(Snapshot(FLEET, fast, quotas=(replace(rights[0], nominal_milli=2500),)), RIGHTS))) == 1


NOMINAL = st.one_of(st.none(), st.integers(0, 6).map(lambda n: n * 1000))


@settings(deadline=None)
@given(st.data())
def test_nobody_is_brought_below_its_right_and_nobody_has_more_than_may_be_lent(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(["", "H100"]))
    rights = tuple(
        Quota(name, "gpu", data.draw(NOMINAL), data.draw(NOMINAL), cohort="all", model=model)
        for name in ("lab", "shop", "hall")
    )
    names = st.sampled_from(["lab", "shop", "hall"])
    going = tuple(
        running(
            i, {"a": [f"gpu{i}"]}, p50=9e4, project=data.draw(names), priority=data.draw(st.sampled_from([250, 500]))
        )
        for i in range(data.draw(st.integers(0, 4)))
    )
    asked = tuple(stage(i, data.draw(st.integers(1, 3)), project=data.draw(names)) for i in range(1, 7))
    plan = think(Snapshot(FLEET, asked, going, quotas=rights), RIGHTS)
    mine = {one.id: one for one in going}
    held = {name: sum(one.project == name for one in going) * 1000 for name in ("lab", "shop", "hall")}
    waiting, begun = {one.id: one for one in asked}, dict.fromkeys(held, 0)
    for start in plan.starts:
        gpus = [g for rank in start.placement.grants for g in rank if "gpu" in g.device]
        counted = [g for g in gpus if g.device.startswith("a/") or not model]
        begun[waiting[start.stage].project] += 1000 * len(counted)
    left = {name: held[name] + begun[name] for name in held}
    for stop in plan.preempts:
        left[mine[stop.victim].project] -= 1000
    for right in rights:
        if left[right.project] < held[right.project] + begun[right.project]:
            assert right.nominal_milli is not None, "who has no limit has borrowed nothing"
            assert left[right.project] >= right.nominal_milli
    held = {name: held[name] + begun[name] for name in held}
    nominal = sum(right.nominal_milli or 0 for right in rights)
    for right in rights:
        before = sum(one.project == right.project for one in going) * 1000
        if right.nominal_milli is not None and held[right.project] > before:
            assert held[right.project] <= nominal
            if right.borrowing_limit_milli is not None:
                assert held[right.project] <= right.nominal_milli + right.borrowing_limit_milli


CHANGES = st.lists(st.tuples(st.floats(0, 1e7), st.floats(0.01, 64), st.floats(0, 1e6)), max_size=12)


@given(CHANGES, st.randoms())
def test_use_is_the_same_in_whatever_order_it_is_told(held: list[tuple[float, float, float]], dice) -> None:  # type: ignore[no-untyped-def]
    """Each claim is told when it opens and when it closes; news may come late."""
    now = 1.2e7
    changes = [(at, rate) for at, rate, _ in held] + [(at + lasts, -rate) for at, rate, lasts in held]
    told, shuffled = Usage(), Usage()
    for at, by in sorted(changes):
        told = told.changed(at, by)
    for at, by in dice.sample(changes, len(changes)):
        shuffled = shuffled.changed(at, by)
    assert abs(told.at(now) - shuffled.at(now)) <= 1e-6 * (1.0 + sum(rate * lasts for _, rate, lasts in held))
    assert told.at(now) <= sum(rate * lasts for _, rate, lasts in held) + 1e-6
    later = told.at(now + told.half_life_s)
    assert abs(later - told.at(now) / 2) <= 1e-6 * (1.0 + told.at(now)), "and half of it counts a half-life later"


def test_an_hour_of_a_fast_device_counts_more() -> None:
    world = Snapshot(FLEET, (stage(1, project="shop"), stage(2, project="hall")))
    used = (Project("shop", 1.0, 100.0), Project("hall", 1.0, 50.0))
    assert think(replace(world, projects=used), "hybrid").starts[0].stage == "s002"
    fast, slow = (next(d for d in one.devices if d.kind == "gpu") for one in FLEET)
    assert charge(fast) > 2 > 0.3 > charge(slow) > 0
    unknown = Device("x", "n", "gpu", "", "", 0, 0, features={"bf16_tflops": 1e300, "memory_gbps": -1.0})
    assert 0 < charge(unknown) <= 32, "absurd figures are bounded"
