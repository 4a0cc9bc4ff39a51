"""Every reason is given first in some world; and where a person can act, what is suggested makes the stage start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from scheduler.core.explain import counterfactual
from scheduler.core.explain.counterfactual import SENTENCES, CounterfactualChange, Findings
from scheduler.core.model.lifecycle import Health, NodeState, State
from scheduler.core.model.profile import Profile
from scheduler.core.model.reasons import CATALOGUE, sentence
from scheduler.core.model.types import (
    Alternative,
    Budget,
    CalendarEntry,
    Limit,
    Node,
    Pool,
    Project,
    Quota,
    Reason,
    Snapshot,
    Stage,
)
from scheduler.core.planning import engine
from scheduler.profiles import PROFILES, load, named
from tests.core.worlds import NOW, STEADY, alternative, begun, node, primary, running, stage, starts, think, waits

HOUR = 3600.0
DEFERRING = load("deferring", {**PROFILES["hybrid"], "policies": {"fair_share": {"defer_above": 1.0}, "gang": {}}})


def world(*waiting: Stage, gpus: int = 4, **more: Any) -> Snapshot:
    return Snapshot((node("a", gpus),), tuple(waiting), **more)


def racks(free: int) -> Snapshot:
    """Two racks of two nodes with one GPU each; ``free`` of each rack are free."""
    nodes = tuple(node(f"{rack}{i}", 1, labels={"rack": rack}) for rack in "ab" for i in range(2))
    busy = tuple(
        running(10 + i, {f"{rack}{n}": ["gpu0"]}, p50=9000) for i, rack in enumerate("ab") for n in range(2 - free)
    )
    return Snapshot(nodes, (stage(1, nodes=2, within="rack", within_required=True),), busy)


def late(**more: Any) -> Stage:
    """Stage 1 as the last to come."""
    return stage(1, submitted_at=NOW, eligible_at=NOW, **more)


def promised(last: Stage) -> Snapshot:
    """A gang is promised the node when what runs there ends; a long stage of one GPU would be in its way."""
    return world(stage(2, gpus=4), last, running=(running(7, {"a": ["gpu0"]}, since=0, p50=1800),))


@dataclass(frozen=True)
class Case:
    """A world in which stage 1 waits for this reason first; ``kind`` is a change that lets it start."""

    code: str
    snapshot: Callable[[], Snapshot]
    kind: str = ""
    profile: str | Profile = STEADY
    now: float = NOW


def kept(now: float) -> Snapshot:
    going = running(7, {"a": ["gpu0"]}, since=0, p50=100, p90=150)
    snap = world(stage(1), gpus=1, running=(going,))
    snap = begun(snap, think(snap, "static"), NOW)
    return snap if now > NOW + 150 else replace(snap, running=())


def away() -> Snapshot:
    here, there = node("a", 1, labels={"site": "here"}), node("b", 8, labels={"site": "there"})
    return Snapshot((here, there), (stage(1, gpus=4, site="here"),))


def sick() -> Snapshot:
    bad = node("a", 1)
    devices = tuple(replace(one, health=Health.UNHEALTHY) if one.kind == "gpu" else one for one in bad.devices)
    return Snapshot((replace(bad, devices=devices),), (stage(1),))


def scattered() -> Snapshot:
    going = tuple(running(i, {one: ["gpu0", "gpu1"]}, p50=9000) for i, one in enumerate("ab"))
    return Snapshot((node("a", 4), node("b", 4)), (stage(1, gpus=4),), going)


def bare(name: str) -> Node:
    """A node without a container engine."""
    return node(name, 4, runs_images=False)


def in_image() -> Alternative:
    return replace(alternative(1), image="registry.local/pytorch:2.9")


def evicting() -> Snapshot:
    victim = running(7, {"a": ["gpu0"]}, priority=250, p50=50_000)
    return world(stage(1, priority=1000), gpus=1, running=(victim,))


def unfair() -> Snapshot:
    projects = (Project("lab", 1.0, 900.0), Project("other", 1.0, 100.0))
    return world(stage(1), stage(2, gpus=8, project="other"), gpus=4, projects=projects)


def drifted() -> Snapshot:
    """A project was promised the next GPU; then one comes that is owed much more."""
    projects = (Project("lab", 1.0, 9000.0), Project("other", 1.0, 0.0))
    before = world(
        stage(1), projects=projects, gpus=1, running=(running(7, {"a": ["gpu0"]}, since=0, project="third"),)
    )
    before = begun(before, think(before), NOW)
    return replace(before, waiting=(*before.waiting, stage(2, project="other")))


def two_owed() -> Snapshot:
    """Two stages of the project that is owed; one GPU is free: the stage of the other project is deferred."""
    projects = (Project("lab", 1.0, 900.0), Project("other", 1.0, 100.0))
    return world(stage(1), stage(2, project="other"), stage(3, project="other"), gpus=1, projects=projects)


GOING: dict[str, Any] = {"running": (running(7, {"a": ["gpu0"]}, p50=9000),)}
CASES = (
    Case("Held", lambda: world(stage(1, state=State.HELD, held_by="eve")), "release"),
    Case("DependencyNeverSatisfied", lambda: world(stage(1, unmet=("gone",), blocked_by="gone")), "drop-need"),
    Case("DependencyPending", lambda: world(stage(1, unmet=("r007",)), **GOING)),
    Case("JobDependency", lambda: world(stage(1, awaits=Reason("JobDependency", {"jobs": "#7 (afterok)"})))),
    Case("NamesakePending", lambda: world(stage(1, awaits=Reason("NamesakePending", {"user": "bob", "name": "n"})))),
    Case("ArrayLimit", lambda: world(stage(1, awaits=Reason("ArrayLimit", {"array": 42, "limit": 2})))),
    Case("SourcePending", lambda: world(stage(1, awaits=Reason("SourcePending", {"url": "https://x/c", "rev": "v1"})))),
    Case("BeginTime", lambda: world(stage(1, begin_at=NOW + 600)), "begin"),
    Case("BackoffAfterFailure", lambda: world(stage(1, retry_at=NOW + 20, attempts=1, max_attempts=3))),
    Case(
        "InvalidSpec",
        lambda: world(stage(1, time_limit_s=48 * HOUR), pools=(Pool("default", max_limit_s=24 * HOUR),)),
        "limit",
    ),
    Case("BundleUnavailable", lambda: world(stage(1, bundle_gone=True)), "bundle"),
    Case("ImageUnavailable", lambda: world(stage(1, image_missing="manifest unknown")), "image"),
    Case("SecretMissing", lambda: world(stage(1, secret_missing="HF_TOKEN")), "secret"),
    Case("PoolRefused", lambda: world(stage(1, pool_refused=True)), "allow-pool"),
    Case("ImageUnavailable", lambda: Snapshot((bare("a"),), (stage(1, alternatives=(in_image(),)),)), "no-image"),
    Case("NoMatchingDevice", lambda: world(stage(1, alternatives=(alternative(1, model="B200"),))), "model"),
    Case("ExceedsClusterMax", lambda: world(stage(1, nodes=2)), "nodes"),
    Case("DataResidency", away, "site"),
    Case("NodesAvoided", lambda: world(stage(1, avoid=("a",))), "avoid"),
    Case("NodesRestricted", lambda: world(stage(1, only=(("b",),))), "only"),
    Case("MountMissing", lambda: world(stage(1, mounts=("/data",))), "mounts"),
    Case("ExceedsQuotaMax", lambda: world(stage(1, gpus=4), quotas=(Quota("lab", "gpu", 1000, 1000),)), "quota"),
    Case("QuotaExhausted", lambda: world(stage(1), quotas=(Quota("lab", "gpu", 1000),), **GOING), "quota"),
    Case("Budget", lambda: world(stage(1), budgets=(Budget(7, "lab", "", 10.0, 10.5, NOW + 600),)), "budget"),
    Case(
        "UserLimit",
        lambda: world(stage(1, user="bob"), pools=(Pool("default", user_limit=1),), **GOING),
    ),
    Case("UserStages", lambda: world(stage(1, user="bob"), limits=(Limit(1, running=1),), **GOING)),
    Case(
        "UserDevices",
        lambda: world(stage(1, gpus=2, user="bob"), limits=(Limit(1, devices_milli=2000),), **GOING),
        "devices",
    ),
    Case("PoolStopped", lambda: world(stage(1), pools=(Pool("default", stopped_by="root"),)), "start-pool"),
    Case(
        "MaintenanceWindow",
        lambda: world(
            stage(1, p50=7200, time_limit_s=2 * HOUR, estimate=declared(2 * HOUR)),
            maintenance=(CalendarEntry("m1", ("a",), NOW + 2000, NOW + 9000),),
        ),
        "limit",
    ),
    Case(
        "Reserved",
        lambda: world(
            stage(1, p50=7200, time_limit_s=2 * HOUR, estimate=declared(2 * HOUR)),
            maintenance=(CalendarEntry("r1", ("a",), NOW + 2000, NOW + 9000, "", "demo", "vision"),),
        ),
        "limit",
    ),
    Case(
        "ReservationAhead",
        lambda: world(
            stage(1, reservation="demo"),
            maintenance=(CalendarEntry("r1", ("a",), NOW + 2000, NOW + 9000, "", "demo", "vision"),),
        ),
    ),
    Case("ReservationOver", lambda: world(stage(1, reservation="demo")), "reservation"),
    Case(
        "NodesUnavailable",
        lambda: Snapshot((replace(node("a", 4), state=NodeState.DRAINED),), (stage(1),)),
        "resume-nodes",
    ),
    Case("NodesUnavailable", sick, "mend-devices"),
    Case("WaitingForPreemption", evicting),
    Case("PromiseYielded", drifted, now=NOW + 1),
    Case("PlannedDeviceBusy", lambda: kept(NOW + 160), profile="static", now=NOW + 160),
    Case("PlannedLater", lambda: kept(NOW + 50), profile="static", now=NOW + 50),
    Case("TopologyUnsatisfied", lambda: racks(free=1), "domain"),
    Case("Fragmented", scattered, "devices"),
    Case("CapacityInsufficient", lambda: world(stage(1, gpus=4), **GOING), "devices"),
    Case(
        "ReservedForHigher",
        lambda: promised(late(time_limit_s=10 * HOUR, estimate=declared(10 * HOUR))),
        "limit",
    ),
    Case("FairShareDeferred", two_owed, profile=DEFERRING),
    Case(
        "PriorityBehind", lambda: world(stage(2, gpus=2, submitted_at=1.0), stage(1), gpus=2, **GOING), profile="fifo"
    ),
)
# Not a plan's reasons but those of a stage which no whole plan has named yet, that no plan can be made with, or for
# which somebody else's engine is bringing a node.
ELSEWHERE = {"PendingEvaluation", "SetAside", "ProviderBrings"}
ACTIONABLE = {entry.code for entry in CATALOGUE if entry.acts != "nobody"} - ELSEWHERE


def declared(limit_s: float) -> Any:
    found = stage(1).estimate
    return replace(found, p50_s=limit_s * 0.3, p90_s=limit_s, declared=True)


def find(case: Case) -> Findings:
    chosen = named(case.profile) if isinstance(case.profile, str) else case.profile
    return counterfactual.search(case.snapshot(), chosen, case.now, "s001")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.kind}")
def test_each_reason_is_first_where_it_is_true_and_says_its_numbers(case: Case) -> None:
    plan = think(case.snapshot(), case.profile, case.now)
    assert primary(plan, "s001") == case.code
    assert "?" not in sentence(waits(plan)["s001"].reasons[0])


def test_every_code_has_its_world() -> None:
    assert {case.code for case in CASES} | ELSEWHERE == {entry.code for entry in CATALOGUE}
    assert {case.code for case in CASES if case.kind} >= ACTIONABLE


def test_what_nobody_looked_at_yet_says_so() -> None:
    snap = world(stage(1, gpus=4), **GOING)
    plan = engine.Planner().plan(snap, STEADY, NOW)
    assert [one.reasons[0].code for one in plan.waits] == ["PendingEvaluation"]


@pytest.mark.parametrize("case", [case for case in CASES if case.kind], ids=lambda case: f"{case.code}-{case.kind}")
def test_what_is_suggested_makes_the_stage_start(case: Case) -> None:
    found = find(case)
    answer = next(one for one in found.answers if one.changes[-1].kind == case.kind)
    snap = case.snapshot()
    for change in answer.changes:
        snap = made(snap, change)
    plan = think(snap, case.profile, case.now)
    assert "s001" in starts(plan)
    assert answer.changes[-1].who in {"user", "lead", "admin"}
    assert "{" not in answer.changes[-1].text


def made(snap: Snapshot, change: CounterfactualChange) -> Snapshot:
    """The change as a person would make it, written apart from the search."""
    one = next(one for one in snap.waiting if one.id == "s001")
    params: Any = change.params
    fields: dict[str, Any] = {}
    match change.kind:
        case "release":
            fields = {"state": State.PENDING}
        case "drop-need":
            fields = {"unmet": (), "blocked_by": None}
        case "begin":
            fields = {"begin_at": None}
        case "reservation":
            fields = {"reservation": ""}
        case "bundle":
            fields = {"bundle_gone": False}
        case "image":
            fields = {"image_missing": ""}
        case "secret":
            fields = {"secret_missing": ""}
        case "allow-pool":
            fields = {"pool_refused": False}
        case "site":
            fields = {"site": ""}
        case "mounts":
            fields = {"mounts": ()}
        case "avoid":
            fields = {"avoid": ()}
        case "only":
            fields = {"only": ()}
        case "domain":
            fields = {"within_required": False}
        case "nodes":
            fields = {"nodes": params["nodes"]}
        case "devices":
            fields = {"alternatives": (alternative(params["count"]),)}
        case "model" | "no-image":
            fields = {"alternatives": (alternative(1),)}
        case "limit":
            limit = params["limit_s"]
            estimate = one.estimate if not one.estimate.declared else declared(limit)
            fields = {"time_limit_s": float(limit), "estimate": estimate}
        case "quota":
            right = replace(snap.quotas[0], nominal_milli=int(float(params["quota"]) * 1000))
            return replace(snap, quotas=(right,))
        case "budget":
            return replace(snap, budgets=())
        case "start-pool":
            return replace(snap, pools=(replace(snap.pools[0], stopped_by=""),))
        case "resume-nodes":
            return replace(snap, nodes=tuple(replace(each, state=NodeState.READY) for each in snap.nodes))
        case "mend-devices":
            return replace(snap, nodes=(node("a", 1),))
    assert fields, f"the test does not know how to make the change {change.kind}"
    return replace(snap, waiting=tuple(replace(one, **fields) if each is one else each for each in snap.waiting))


def test_gates_are_opened_together_and_another_change_comes_on_top() -> None:
    both = world(stage(1, gpus=4, state=State.HELD, begin_at=NOW + 600), **GOING)
    found = counterfactual.search(both, STEADY, NOW, "s001")
    assert {tuple(one.kind for one in answer.changes) for answer in found.answers} >= {("release", "begin", "devices")}


def test_what_it_costs_others_is_told() -> None:
    snap = world(stage(2), late(), gpus=1)
    found = counterfactual.search(snap, STEADY, NOW, "s001")
    urgent = next(one for one in found.answers if one.changes[0].kind == "priority")
    assert urgent.instead_of == ("s002",)


def test_who_must_be_stopped_first_is_told() -> None:
    going = running(7, {"a": ["gpu0"]}, priority=500, p50=50_000)
    found = counterfactual.search(world(stage(1), gpus=1, running=(going,)), STEADY, NOW, "s001")
    (raised,) = (one for one in found.answers if one.changes[0].kind == "priority")
    assert raised.preempts == ("r007",)


def test_a_measured_duration_is_not_cut_off() -> None:
    snap = promised(late(p50=5000, p90=7200, time_limit_s=10 * HOUR))
    found = counterfactual.search(snap, STEADY, NOW, "s001")
    assert not [one for one in found.answers if one.changes[-1].kind == "limit"]


def test_the_search_is_bounded_and_says_where_it_stopped() -> None:
    snap = world(stage(1, gpus=64), **GOING)
    found = counterfactual.search(snap, STEADY, NOW, "s001", tries=2)
    assert (found.tries, found.cut) == (2, True)


def test_what_starts_anyway_needs_nothing_and_what_does_not_wait_is_refused() -> None:
    assert counterfactual.search(world(stage(1)), STEADY, NOW, "s001").answers == ()
    with pytest.raises(KeyError, match="s009"):
        counterfactual.search(world(stage(1)), STEADY, NOW, "s009")


def test_every_sentence_takes_what_its_change_gives() -> None:
    assert all(who in {"user", "lead", "admin"} for _, who in SENTENCES.values())
