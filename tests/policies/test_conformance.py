"""What every policy that the scan finds must be, whatever it judges."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import policies, profiles
from scheduler.core.hooks import answers
from scheduler.core.model.profile import Profile
from scheduler.core.model.reasons import RANK
from scheduler.core.model.types import Plan, Project, Quota, Snapshot
from scheduler.core.planning import engine
from tests.core.worlds import NOW, alternative, check_laws, node, running, stage
from tests.examples_count import examples

FOUND = sorted([*policies.discover(), *policies.discover(policies.RESEARCH)])


def busy_world() -> Snapshot:
    return Snapshot(
        (node("a", 4), node("b", 2, model="A100"), node("c", 0, npus=2)),
        (
            stage(1, gpus=4),
            stage(2, nodes=2, gpus=2),
            stage(3, priority=1000, gpus=2),
            stage(4, alternatives=(alternative(1), alternative(0, 4, index=1)), project="shop"),
            stage(5, alternatives=(alternative(1, milli=250),)),
        ),
        (running(7, {"a": ["gpu0", "gpu1"]}, priority=250, p50=9000), running(8, {"b": ["gpu0"]}, p50=500)),
        projects=(Project("lab", 1, 500), Project("shop", 1, 10)),
        quotas=(Quota("lab", "gpu", 6000), Quota("shop", "gpu", 1000, 1000)),
    )


@pytest.fixture(params=FOUND)
def policy(request: pytest.FixtureRequest) -> object:
    return policies.build(request.param, {})


def decide(policy: object, world: Snapshot, timetable: str = "repair") -> Plan:
    return engine.plan(world, Profile("one", ((policy, 1.0),), timetable=timetable), NOW)  # type: ignore[arg-type]


def test_it_is_frozen_data_with_a_promise_and_at_least_one_ability(policy: object) -> None:
    assert dataclasses.is_dataclass(policy)
    assert type(policy).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert (type(policy).__doc__ or "").strip()
    assert answers(type(policy))


@pytest.mark.parametrize("timetable", ["none", "keep", "repair"])
def test_alone_in_a_profile_it_keeps_the_laws(policy: object, timetable: str) -> None:
    world = busy_world()
    plan = decide(policy, world, timetable)
    check_laws(world, plan)
    assert all(reason.code in RANK for one in plan.waits for reason in one.reasons)


def test_it_judges_the_same_in_any_order_and_twice(policy: object) -> None:
    world, dice = busy_world(), random.Random(5)
    other = dataclasses.replace(
        world, nodes=tuple(dice.sample(world.nodes, 3)), waiting=tuple(dice.sample(world.waiting, 5))
    )
    assert decide(policy, world) == decide(policy, other) == decide(policy, world)


def test_it_changes_nothing_that_it_sees(policy: object) -> None:
    world = busy_world()
    decide(policy, world)
    assert world == busy_world()


def test_an_unknown_policy_or_parameter_is_refused_with_what_exists() -> None:
    with pytest.raises(ValueError, match=r"there are alternatives, .*backfill, "):
        policies.build("wishes", {})
    with pytest.raises(ValueError, match='no parameter "speed"; it takes patience_s'):
        policies.build("priority", {"speed": 1})


def test_a_profile_with_a_wrong_word_is_refused_with_what_exists() -> None:
    with pytest.raises(ValueError, match='no profile "magic"; there are static, dynamic, hybrid'):
        profiles.named("magic")
    with pytest.raises(ValueError, match='no setting "depht"; it takes policies, timetable'):
        profiles.load("mine", {"depht": 3})
    with pytest.raises(ValueError, match="one of none, keep, repair"):
        profiles.load("mine", {"timetable": "always"})
    with pytest.raises(ValueError, match="there is no policy"):
        profiles.load("mine", {"policies": {"wishes": {}}})


@pytest.mark.parametrize(
    "spec", [[], "hybrid", None, {"policies": ["priority"]}, {"policies": {"priority": None}}, {"policies": None}]
)
def test_a_profile_of_another_shape_is_refused_with_what_it_must_be(spec: object) -> None:
    with pytest.raises(ValueError, match='profile "mine" must be a mapping of settings; its policies'):
        profiles.load("mine", spec)  # type: ignore[arg-type]


def numbers(param: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    """What a parameter may be, its limits among it, and what JSON makes of it."""
    if isinstance(param.default, bool):
        return st.booleans()
    least, most = param.metadata.get("range", (0.0, policies.MOST))
    if isinstance(param.default, int):
        return st.sampled_from((least, most)).map(int) | st.integers(int(least), int(most))
    number = st.sampled_from((least, most)) | st.floats(least, most)
    if isinstance(param.default, tuple):
        return st.lists(number, min_size=1, max_size=policies.MOST_NUMBERS, unique=True).map(sorted)
    return number


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Any profile that a pool may have."""
    chosen = draw(st.lists(st.sampled_from(sorted(policies.discover())), unique=True, max_size=8))
    some = {
        name: {
            "weight": draw(st.floats(0, profiles.MOST_WEIGHT)),
            **{
                one.name: draw(numbers(one))
                for one in dataclasses.fields(policies.discover()[name])
                if draw(st.booleans())
            },
        }
        for name in chosen
    }
    rotates = draw(st.sampled_from(["none", "event", 1, 604_800]))
    return {
        "policies": some,
        "rotates": rotates,
        "timetable": draw(st.sampled_from(["none", "keep", "repair"])) if rotates == "none" else "none",
        "plan_with": draw(st.sampled_from(["p50", "p90"])),
        "start_early": draw(st.booleans()),
        "depth": draw(st.sampled_from([0, 1, 1_000_000])),
        "repair_depth": draw(st.sampled_from([0, 1, 1_000_000])),
        "horizon_s": draw(st.sampled_from([1.0, 3600.0, 366 * 86_400.0])),
        "drift": draw(st.sampled_from([0.0, 0.05, 1.0])),
    }


@settings(max_examples=examples(200), deadline=None)
@given(specs())
def test_whatever_profile_a_pool_may_have_it_decides_and_keeps_the_laws(spec: dict[str, Any]) -> None:
    """As it comes back from a database, where lists are lists and numbers what JSON makes of them."""
    chosen = profiles.load("mine", json.loads(json.dumps(spec)), live=True)
    world = busy_world()
    check_laws(world, engine.plan(world, chosen, NOW))


@settings(max_examples=examples(50), deadline=None)
@given(specs(), st.randoms(use_true_random=False))
def test_in_which_order_a_profile_is_written_means_nothing(spec: dict[str, Any], dice: random.Random) -> None:
    """Databases keep the keys of a mapping in an order of their own."""
    names = list(spec["policies"])
    dice.shuffle(names)
    other = dict(reversed(list({**spec, "policies": {name: spec["policies"][name] for name in names}}.items())))
    assert profiles.load("mine", other) == profiles.load("mine", spec)


def test_the_gentlest_way_to_make_room_is_tried_first() -> None:
    chosen = profiles.load("mine", {"policies": {"preempt": {}, "reclaim": {}, "elastic": {}}})
    assert [type(one).__name__ for one in chosen.evicts] == ["Elastic", "Reclaim", "Preempt"]


def test_a_yardstick_is_for_simulations_only() -> None:
    for name in policies.discover(policies.RESEARCH):
        spec = {"policies": {name: {}}}
        assert profiles.load("mine", spec).policies
        with pytest.raises(ValueError, match=f'policy "{name}" is a yardstick for simulations; a pool may have'):
            profiles.load("mine", spec, live=True)


@pytest.mark.parametrize(
    ("policy", "params", "told"),
    [
        ("attained_service", {"thresholds": [7, 7]}, "thresholds must be 1 to 16 numbers that grow"),
        ("attained_service", {"thresholds": list(range(17))}, "1 to 16 numbers"),
        ("attained_service", {"thresholds": [1, float("nan")]}, "1 to 16 numbers"),
        ("attained_service", {"thresholds": 5}, "1 to 16 numbers"),
        ("elastic", {"most_doublings": 10**400}, "must be a whole number from 0 to 20"),
        ("elastic", {"most_doublings": 2.5}, "must be a whole number from 0 to 20"),
        ("max_min", {"round_s": 0}, "must be a number from 1 to 604800"),
        ("fifo", {"strict": 1}, "must be true or false"),
        ("balance", {"stay": float("inf")}, r"must be a number from 0 to 1e\+09"),
    ],
)
def test_a_parameter_out_of_range_is_refused_with_what_it_may_be(
    policy: str, params: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        policies.build(policy, params)


@pytest.mark.parametrize("value", ["no", 1, None, []])
def test_start_early_is_true_or_false_and_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"sets start_early to .*; it must be true or false"):
        profiles.load("mine", {"start_early": value})


def test_a_profile_bears_no_meaning_in_its_name() -> None:
    world = busy_world()
    for name, spec in profiles.PROFILES.items():
        assert engine.plan(world, profiles.load("another", spec), NOW) == engine.plan(world, profiles.named(name), NOW)
