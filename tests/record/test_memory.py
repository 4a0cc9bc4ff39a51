"""The dry run warns of too little memory and tells what would do, from the peaks of finished stages like it."""

from __future__ import annotations

from typing import Any

from controlplane.jobs.models import Job
from controlplane.scheduling.memory_advice import MemoryPeaks
from controlplane.whatif import dry_run
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states

GIB = 2**30


def ran(yard: Yard, agent: Agent, peak_gib: float, **end: Any) -> None:
    """A stage like the others ended, and held so much at most."""
    job = yard.submit(name="tune", memory="8GiB")
    yard.cycle()
    assert agent.start() == ["main"]
    agent.end(stage(job), peak_memory_bytes=int(peak_gib * GIB), **end)
    assert states(job)["main"] in {"COMPLETED", "FAILED"}


def told(yard: Yard, memory: str) -> Any:
    (shown,) = dry_run.dry_run({"name": "tune", "run": "true", "memory": memory}, yard.user)["stages"]
    return shown["memory"]


def test_what_nobody_used_is_offered_back_and_what_was_too_little_is_warned_of(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8, memory_gib=64))
    for peak in (1.0, 2.0):
        ran(yard, agent, peak)
    assert told(yard, "8GiB") is None, "two say nothing about the third"
    ran(yard, agent, 1.5)
    dry_run._advisor = MemoryPeaks()
    advice = told(yard, "8GiB")
    assert (advice["verdict"], advice["largest_bytes"], advice["asked_bytes"]) == ("generous", 2 * GIB, 8 * GIB)
    assert advice["suggested_bytes"] == 2.5 * GIB
    assert advice["basis"] == "peaks of 3 finished stages like it"
    assert told(yard, "3GiB") is None, "that fits"
    assert told(yard, "2GiB")["verdict"] == "tight"


def test_who_ran_out_of_memory_needs_more_than_it_asked(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8, memory_gib=64))
    ran(yard, agent, 7.9, code=137, cause="OUT_OF_MEMORY")
    advice = told(yard, "8GiB")
    assert (advice["verdict"], advice["suggested_bytes"], advice["ran_out"]) == ("tight", 16 * GIB, 1)


def held(yard: Yard, agent: Agent, gib: float, **asks: Any) -> None:
    """A stage like the others ended, and one of its GPUs held so much at most."""
    job = yard.submit(name="sft", devices={"kind": "gpu", **asks})
    yard.cycle()
    assert agent.start() == ["main"]
    agent.end(stage(job), device_peak_bytes={"gpu": int(gib * GIB)})


def on_device(yard: Yard, **asks: Any) -> Any:
    spec = {"name": "sft", "run": "true", "devices": {"kind": "gpu", **asks}}
    (shown,) = dry_run.dry_run(spec, yard.user)["stages"]
    return shown["device_memory"]


def test_the_same_of_the_memory_of_devices(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8, memory_gib=64), gpu("a"))
    for gib in (31.0, 30.0):
        held(yard, agent, gib)
    assert on_device(yard) is None, "two say nothing about the third"
    held(yard, agent, 20.0, milli=500, memory="40GiB")
    dry_run._advisor = MemoryPeaks()
    advice = on_device(yard)
    assert (advice["verdict"], advice["kind"]) == ("generous", "gpu")
    assert (advice["asked_bytes"], advice["largest_bytes"]) == (80 * GIB, 31 * GIB)
    assert advice["suggested_bytes"] == 37.25 * GIB
    assert advice["basis"] == "peaks of 3 finished stages like it"
    assert on_device(yard, milli=500, memory="70GiB")["asked_bytes"] == 70 * GIB
    assert on_device(yard, milli=500, memory="40GiB") is None, "that fits"
    assert on_device(yard, milli=500, memory="30GiB")["verdict"] == "tight"
    assert on_device(yard, milli=500) is None, "it asks for no memory"
    (shown,) = dry_run.dry_run({"name": "sft", "run": "true"}, yard.user)["stages"]
    assert shown["device_memory"] is None
    assert Job.objects.count() == 3, "it is advice: nothing was changed"


def test_who_fills_a_whole_device_is_not_told_to_ask_for_more(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8, memory_gib=64), gpu("a"))
    for _ in range(3):
        held(yard, agent, 79.0)
    dry_run._advisor = MemoryPeaks()
    assert on_device(yard) is None
    assert on_device(yard, memory="79GiB")["verdict"] == "tight"
