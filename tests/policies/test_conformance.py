"""What every policy that the scan finds must be, whatever it judges."""

from __future__ import annotations

import dataclasses
import random

import pytest

from scheduler import policies, profiles
from scheduler.core import engine
from scheduler.core.ports import ABILITIES
from scheduler.core.profile import Profile
from scheduler.core.reasons import RANK
from scheduler.core.types import Plan, Project, Quota, Snapshot
from tests.core.worlds import NOW, check_laws, node, running, stage, way

FOUND = sorted(policies.discover())


def busy_world() -> Snapshot:
    return Snapshot(
        (node("a", 4), node("b", 2, model="A100"), node("c", 0, npus=2)),
        (
            stage(1, gpus=4),
            stage(2, nodes=2, gpus=2),
            stage(3, priority=1000, gpus=2),
            stage(4, alternatives=(way(1), way(0, 4, index=1)), project="shop"),
            stage(5, alternatives=(way(1, milli=250),)),
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
    assert [ability for ability, protocol in ABILITIES.items() if isinstance(policy, protocol)]


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


@pytest.mark.parametrize("value", ["no", 1, None, []])
def test_start_early_is_true_or_false_and_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"sets start_early to .*; it must be true or false"):
        profiles.load("mine", {"start_early": value})


def test_a_profile_bears_no_meaning_in_its_name() -> None:
    world = busy_world()
    for name, spec in profiles.PROFILES.items():
        assert engine.plan(world, profiles.load("another", spec), NOW) == engine.plan(world, profiles.named(name), NOW)
