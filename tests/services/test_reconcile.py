"""Laws of the plans for the replicas of a service."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.services.reconcile import ReplicaHere, ReplicaStanding, Wish, most, reconcile, targets, weights

standings = st.sampled_from(list(ReplicaStanding))
replicas = st.builds(
    ReplicaHere,
    id=st.just(0),
    revision=st.integers(1, 3),
    standing=standings,
    outstanding=st.integers(0, 3),
    is_left=st.booleans(),
    drains_s=st.floats(0, 60),
)
worlds = st.lists(replicas, max_size=10).map(lambda many: [replace(one, id=n) for n, one in enumerate(many)])


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    surge, unavailable = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return Wish(
        revision=draw(st.integers(1, 3)),
        replicas=draw(st.integers(0, 5)),
        former=draw(st.none() | st.integers(1, 3)),
        surge=surge if surge or unavailable else 1,
        unavailable=unavailable,
        canary=draw(st.sampled_from([100, 100, 10, 50])),
        drain_s=30.0,
        failed=frozenset(draw(st.sets(st.integers(1, 3), max_size=2))),
        waits=frozenset(draw(st.sets(st.integers(1, 3), max_size=2))),
    )


@given(wishes(), worlds)
def test_never_more_are_started_than_there_may_be(wish: Wish, here: list[ReplicaHere]) -> None:
    plan = reconcile(wish, here)
    assert len(here) + len(plan.start) <= max(len(here), most(wish))
    assert most(wish) <= max(wish.replicas, 2) + wish.surge
    assert not set(plan.start) & (wish.waits | wish.failed)


@given(wishes(), worlds)
def test_enough_ready_ones_stay_where_there_are_enough(wish: Wish, here: list[ReplicaHere]) -> None:
    plan = reconcile(wish, here)
    ready = {one.id for one in here if one.standing is ReplicaStanding.READY}
    left = ready - set(plan.drain) - set(plan.stop)
    assert len(left) >= min(len(ready), wish.replicas - wish.unavailable)


@given(wishes(), worlds)
def test_what_serves_is_drained_before_it_is_stopped(wish: Wish, here: list[ReplicaHere]) -> None:
    plan = reconcile(wish, here)
    by_id = {one.id: one for one in here}
    for number in plan.stop:
        one = by_id[number]
        assert one.standing is ReplicaStanding.DRAINING
        assert (one.is_left and not one.outstanding) or one.drains_s >= wish.drain_s
    assert not set(plan.stop) & set(plan.drain)


@given(wishes(), worlds, st.randoms(use_true_random=False))
def test_the_order_of_the_replicas_does_not_matter(wish: Wish, here: list[ReplicaHere], dice: object) -> None:
    mixed = sorted(here, key=lambda one: dice.random())  # type: ignore[attr-defined]
    first, second = reconcile(wish, here), reconcile(wish, mixed)
    assert first.start == second.start
    assert set(first.drain) == set(second.drain)
    assert set(first.stop) == set(second.stop)


def settle(wish: Wish, here: list[ReplicaHere], broken: frozenset[int] = frozenset()) -> list[ReplicaHere]:
    """Follow the plans until nothing changes. Replicas become ready unless their revision is broken, drain and end."""
    number = max((one.id for one in here), default=0) + 1
    for _ in range(100):
        plan = reconcile(wish, here)
        floor = min(sum(one.standing is ReplicaStanding.READY for one in here), wish.replicas - wish.unavailable)
        after = []
        for one in here:
            if one.id in plan.stop:
                continue
            if one.id in plan.drain:
                one = replace(one, standing=ReplicaStanding.DRAINING, is_left=False, outstanding=0, drains_s=0.0)
            elif one.standing is ReplicaStanding.DRAINING:
                one = replace(one, is_left=True, outstanding=0)
            elif one.standing is ReplicaStanding.STARTING and one.revision not in broken:
                one = replace(one, standing=ReplicaStanding.READY)
            after.append(one)
        for revision in plan.start:
            after.append(ReplicaHere(number, revision, ReplicaStanding.STARTING))
            number += 1
        assert sum(one.standing is ReplicaStanding.READY for one in after) >= floor
        assert len(after) <= max(len(here), most(wish))
        if after == here:
            return after
        here = after
    raise AssertionError(f"it never settles: {wish} {here}")


# The former revision is the present one: a share of it is all of it.
@example(Wish(1, 2, former=1, canary=10), [ReplicaHere(0, 2, ReplicaStanding.READY)])
@given(wishes(), worlds)
def test_it_settles_at_what_is_wanted(wish: Wish, here: list[ReplicaHere]) -> None:
    wish = replace(wish, waits=frozenset())
    there: dict[int, int] = {}
    for one in settle(wish, here):
        assert one.standing is ReplicaStanding.READY
        there[one.revision] = there.get(one.revision, 0) + 1
    wanted = {revision: count for revision, count in targets(wish).items() if count}
    if wanted or wish.unavailable >= wish.replicas:
        assert there == wanted
    else:
        # Nothing can be started: what serves goes on serving.
        assert sum(there.values()) <= max(wish.replicas, len(here))


@given(st.integers(1, 5), st.integers(0, 2))
def test_a_revision_that_does_not_load_leaves_the_former_serving(count: int, surge: int) -> None:
    here = [ReplicaHere(n, 1, ReplicaStanding.READY) for n in range(count)]
    wish = Wish(2, count, former=1, surge=max(1, surge))
    tried = settle(wish, here, broken=frozenset({2}))
    assert sum(one.revision == 1 and one.standing is ReplicaStanding.READY for one in tried) == count
    back = settle(replace(wish, failed=frozenset({2})), tried, broken=frozenset({2}))
    assert [one.revision for one in back] == [1] * count


@given(st.integers(1, 5), st.integers(1, 2))
def test_a_rollback_returns_to_the_former_revision(count: int, surge: int) -> None:
    updated = settle(
        Wish(2, count, former=1, surge=surge), [ReplicaHere(n, 1, ReplicaStanding.READY) for n in range(count)]
    )
    assert [one.revision for one in updated] == [2] * count
    assert [one.revision for one in settle(Wish(1, count, former=2, surge=surge), updated)] == [1] * count


def test_a_canary_gets_its_share_and_no_more() -> None:
    wish = Wish(2, 10, former=1, canary=20)
    there = settle(wish, [ReplicaHere(n, 1, ReplicaStanding.READY) for n in range(10)])
    assert sorted(one.revision for one in there) == [1] * 8 + [2] * 2
    assert weights(wish) == {2: 20, 1: 80}


def test_one_that_does_not_answer_is_drained_and_replaced() -> None:
    here = [ReplicaHere(1, 1, ReplicaStanding.READY), ReplicaHere(2, 1, ReplicaStanding.UNHEALTHY, outstanding=2)]
    plan = reconcile(Wish(1, 2), here)
    assert (plan.start, plan.drain, plan.stop) == ((1,), (2,), ())


def test_scaled_to_zero_all_drain() -> None:
    plan = reconcile(
        Wish(1, 0), [ReplicaHere(1, 1, ReplicaStanding.READY), ReplicaHere(2, 1, ReplicaStanding.STARTING)]
    )
    assert (set(plan.drain), plan.start) == ({1, 2}, ())
