"""One node, stage or pool whose rows are bad never stops the others, and everybody can see what was set aside."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from agents import protocol
from agents.protocol import InventoryRef, Report
from controlplane.dispatch import report_decoder
from controlplane.fleet import alarms, maintenance, world
from controlplane.fleet.models import Alarm, Device, Node
from controlplane.jobs.models import Attempt, Job, Stage
from controlplane.pools.models import Pool
from controlplane.scheduling import loop
from controlplane.scheduling.alarms import CycleAlarms
from controlplane.scheduling.recorder import Recorder
from scheduler.core.planning import aside
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def by_hand() -> Recorder:
    """A recorder that writes when it is told to, and has no thread with a connection of its own."""
    recorder = Recorder()
    recorder._pid = os.getpid()
    return recorder


@pytest.fixture
def live(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """The yard with the loop that a worker runs."""
    yard.planner = aside.TolerantPlanner()
    monkeypatch.setattr(loop, "_store", yard.store)
    monkeypatch.setattr(loop, "_planner", yard.planner)
    monkeypatch.setattr(loop, "_alarms", CycleAlarms())
    monkeypatch.setattr(loop, "_arm", lambda *_, **__: None)
    monkeypatch.setattr(loop, "recorder", by_hand())
    return yard


def said(kind: str) -> dict[str, str]:
    return dict(Alarm.objects.filter(kind=kind).values_list("subject", "says"))


def told_to_owner(job: Job) -> str:
    """The first reason for which its only stage waits."""
    code: str = stage(job).reasons[0]["code"]
    return code


def windows(agent: Agent, count: int = 3) -> None:
    now = timezone.now()
    for i in range(count):
        maintenance.plan(
            node=agent.node,
            starts_at=now + timedelta(hours=1, minutes=i),
            ends_at=now + timedelta(hours=3, minutes=i),
            reason="x",
            actor="ada",
        )


def test_memory_from_before_the_bounds_under_three_windows_stops_nobody_else(live: Yard) -> None:
    bad, _ = live.agent("a", cpu("a"), gpu("a")), live.agent("b")
    Device.objects.filter(uuid="GPU-a-0").update(memory_bytes=2**63 - 1)
    windows(bad)
    job = live.submit(cpus=1)
    loop.cycle()
    assert states(job)["main"] == "STARTING"
    assert stage(job).attempts.get().parts.get().node.name == "b"
    assert said(alarms.NODE) == {"a": "device gpu-0 memory_bytes is 9223372036854775807; at most 2^50"}
    bad.report()
    loop.cycle()
    assert said(alarms.NODE) == {}


def test_rates_from_before_the_bounds_set_one_node_aside_and_decisions_are_written(live: Yard) -> None:
    live.agent("a", cpu("a"), gpu("a"))
    live.agent("b", cpu("b"), gpu("b"))
    Device.objects.filter(uuid="GPU-a-0").update(features={"bf16_tflops": 1e308})
    job = live.submit(devices={"kind": "gpu", "count": 1})
    recorder = by_hand()
    done = live.cycle()
    recorder.note(done, 0.1, 1.0)
    assert len(recorder.flush()) == 1
    assert states(job)["main"] == "STARTING"
    assert stage(job).attempts.get().parts.get().node.name == "b"


def test_labels_that_are_no_words_count_as_the_words_that_they_print_as(live: Yard) -> None:
    live.agent("a")
    Node.objects.update(labels={"rack": 3, "x": [1]})
    assert world.nodes()[0].labels == {"rack": "3", "x": "[1]"}


def test_a_stage_whose_row_cannot_be_used_waits_alone(live: Yard) -> None:
    live.agent("a")
    bad, good = live.submit(cpus=1), live.submit(cpus=1)
    request = stage(bad).request
    with connection.cursor() as cursor:
        broken = json.dumps({k: v for k, v in request.items() if k != "preemptible"})
        cursor.execute("UPDATE jobs_stage SET request = %s::jsonb WHERE id = %s", [broken, stage(bad).id])
    loop.cycle()
    assert states(good)["main"] == "STARTING"
    assert said(alarms.STAGE) == {f"#{bad.number} main": "KeyError: 'preemptible'"}
    assert told_to_owner(bad) == "SetAside"
    loop.cycle()
    assert told_to_owner(bad) == "SetAside"


def test_a_stage_that_runs_and_whose_row_cannot_be_used_keeps_its_devices(live: Yard) -> None:
    agent = live.agent("a", cpu("a", cores=4))
    job = live.submit(cpus=3)
    loop.cycle()
    agent.start()
    Attempt.objects.filter(stage__job=job).update(estimate={"p50_s": 1})
    other = live.submit(cpus=1)
    loop.cycle()
    assert states(other)["main"] == "STARTING"
    assert f"#{job.number} main" in said(alarms.STAGE)
    too_much = live.submit(cpus=2)
    loop.cycle()
    assert states(too_much)["main"] == "PENDING"


def decided_with(pool: str) -> str:
    """The profile that the last cycle used there."""
    return next(one.profile for one in loop._store.load(loop._last_at).pools if one.name == pool)


def test_a_pool_whose_profile_is_gone_goes_on_with_the_one_that_decided_last(live: Yard) -> None:
    agent = live.agent("a")
    lost = Pool.objects.create(name="lost", profile="fifo")
    agent.node.pools.add(lost)
    loop.cycle()
    job = live.submit(pool="lost", cpus=1)
    Pool.objects.filter(name="lost").update(profile="of-last-year")
    loop.cycle()
    assert states(job)["main"] == "STARTING"
    assert decided_with("lost") == "fifo"
    assert said(alarms.PROFILE) == {"lost": "there is no profile of-last-year; fifo decides instead"}
    Pool.objects.filter(name="lost").update(profile="dynamic")
    loop.cycle()
    assert decided_with("lost") == "dynamic"
    assert not said(alarms.PROFILE)


def test_a_pool_whose_profile_was_never_known_is_decided_by_the_default(live: Yard) -> None:
    agent = live.agent("a")
    lost = Pool.objects.create(name="lost", profile="of-last-year")
    agent.node.pools.add(lost)
    job = live.submit(pool="lost", cpus=1)
    loop.cycle()
    assert states(job)["main"] == "STARTING"
    assert decided_with("lost") == "hybrid"
    assert said(alarms.PROFILE) == {"lost": "there is no profile of-last-year; hybrid decides instead"}


def test_what_makes_the_engine_raise_is_found_and_set_aside(live: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine itself fails for one stage and for one node: every other stage starts."""
    agents = [live.agent(name) for name in "abcde"]
    jobs = [live.submit(name=f"j{i}", cpus=1) for i in range(6)]
    bad_stage, bad_node = str(stage(jobs[3]).id), str(agents[2].node.id)

    def plan(snapshot, *rest):  # type: ignore[no-untyped-def]
        if any(one.id == bad_node and one.devices for one in snapshot.nodes):
            raise OverflowError("node")
        if any(one.id == bad_stage for one in snapshot.waiting):
            raise ZeroDivisionError("stage")
        return whole(snapshot, *rest)

    whole = aside.engine.plan
    monkeypatch.setattr(aside.engine, "plan", plan)
    base = aside.engine.Planner.think

    def remembered(self, snapshot, *rest):  # type: ignore[no-untyped-def]
        plan(snapshot, *rest[:2])
        return base(self, snapshot, *rest)

    monkeypatch.setattr(aside.engine.Planner, "think", remembered)
    loop.cycle()
    assert [states(job)["main"] for job in jobs] == ["STARTING"] * 3 + ["PENDING"] + ["STARTING"] * 2
    assert said(alarms.NODE) == {"c": "it cannot be planned: OverflowError: node"}
    assert said(alarms.STAGE) == {f"#{jobs[3].number} main": "it cannot be planned: ZeroDivisionError: stage"}
    assert not Stage.objects.filter(attempts__parts__node=agents[2].node).exists()
    assert told_to_owner(jobs[3]) == "SetAside"


def test_a_cycle_that_does_not_come_through_is_an_alarm_until_one_does(
    live: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(live.store, "load", lambda now: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                loop.cycle()
    assert said(alarms.CYCLE) == {"scheduler": "no cycle comes through: ZeroDivisionError: division by zero"}
    loop.cycle()
    assert said(alarms.CYCLE) == {}


def test_a_decision_that_cannot_be_written_keeps_no_other_from_being_so(live: Yard) -> None:
    live.agent("a")
    live.submit(cpus=1)
    first = live.cycle()
    live.submit(cpus=1)
    second = live.cycle()
    starts = tuple(replace(one, why="\x00") for one in first.plan.starts)
    bad = replace(first, plan=replace(first.plan, starts=starts))
    recorder = by_hand()
    recorder.note(bad, 0.1, 1.0)
    recorder.note(second, 0.1, 2.0)
    assert len(recorder.flush()) == 1
    assert "a decision has no row" in said(alarms.RECORD)["decision"]
    recorder.flush()
    assert said(alarms.RECORD) == {}


def test_an_inventory_out_of_bounds_is_refused_with_the_device_the_value_and_the_bound(live: Yard) -> None:
    agent = live.agent("a")
    device = msgspec.structs.replace(gpu("a", index=3), memory_bytes=2**63 - 1)
    inventory = protocol.Inventory(
        hostname="a", os="Linux", arch="x", cpus=1, memory_bytes=1, isolation="", runs_as="", devices=[cpu("a"), device]
    )
    message = Report(
        proto=1, agent="1", boot_id="b", start_seq=1, seq=1, seen_generation=0, inventory=InventoryRef("h", inventory)
    )
    taken, faults, refused = report_decoder.report(msgspec.json.encode(message))
    assert refused.text == "inventory refused: device gpu-3 memory_bytes is 9223372036854775807; at most 2^50"
    assert (taken.inventory.full, faults) == (None, [])
    assert agent.node.devices.count() == 1


@pytest.mark.parametrize("field", ["hostname", "os", "address", "runs_as"])
def test_no_text_with_a_nul_comes_in(field: str) -> None:
    full = {"hostname": "a", "os": "", "arch": "", "cpus": 1, "memory_bytes": 1, "isolation": "", "runs_as": ""}
    message = {
        "proto": 1, "agent": "1", "boot_id": "b", "start_seq": 1, "seq": 1, "seen_generation": 0,
        "inventory": {"hash": "h", "full": {**full, field: "a\x00"}},
    }  # fmt: skip
    taken, _, refused = report_decoder.report(msgspec.json.encode(message))
    assert taken.inventory.full is None
    assert refused.text.startswith(f"inventory refused: {field} is a")
    assert refused.text.endswith("no NUL may be in it")
