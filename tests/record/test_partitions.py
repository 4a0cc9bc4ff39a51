"""Partitions in the record: what a node tells is what the engine may give, and the database lets no two overlap."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from agents import protocol
from agents.protocol import Division, Partition
from controlplane.fleet import world
from controlplane.fleet.models import Device
from controlplane.jobs.models import Claim, Job
from controlplane.jobs.spec import InvalidSpec
from controlplane.pools.models import Pool
from scheduler.core.model import partitions
from scheduler.core.planning import engine
from scheduler.profiles import named
from tests.record.yard import GIB, Agent, Yard, cpu, gpu, stage, states

NOW = 1_900_000_000.0
MADE = Division(
    "MIG",
    made=[
        Partition("3g.40gb", 0, 4, "MIG-a"),
        Partition("1g.10gb", 4, 1, "MIG-b"),
        Partition("1g.10gb", 6, 1, "MIG-c"),
    ],
)
MAKES = Division("MIG", {"1g.10gb": 7}, makes=True)


def card(name: str, division: Division | None, index: int = 0) -> protocol.Device:
    return msgspec.structs.replace(gpu(name, index), division=division)


def node(yard: Yard, *divisions: Division | None, cores: int = 32) -> Agent:
    return yard.agent("n1", cpu("n1", cores, 64), *(card("n1", each, i) for i, each in enumerate(divisions)))


def asking(profile: str, **more: Any) -> dict[str, Any]:
    return {"devices": {"kind": "gpu", "partition": profile}, **more}


def held(job: Job) -> Claim:
    return Claim.objects.get(part__attempt__stage__job=job, device__kind="gpu", closed_at=None)


def test_an_instance_that_is_there_is_given_to_one_and_the_process_is_told_its_uuid(yard: Yard) -> None:
    agent = node(yard, MADE)
    first, second, third = (yard.submit(**asking("1g.10gb")) for _ in range(3))
    yard.cycle()
    claims = {job.number: held(job) for job in (first, second)}
    assert [(one.partition, one.slots.lower, one.slots.upper, one.milli) for one in claims.values()] == [
        ("1g.10gb", 4, 5, 142),
        ("1g.10gb", 6, 7, 142),
    ]
    assert states(third)["main"] == "PENDING"
    orders = {wanted.spec.job: wanted.spec.devices for wanted in agent.look() if wanted.spec}
    (order,) = (each for each in orders[second.number] if each.kind == "gpu")
    assert order.partition == Partition("1g.10gb", 6, 1, "MIG-c")
    assert order.uuid == "GPU-n1-0"
    agent.start()
    agent.end(stage(first))
    yard.cycle()
    assert held(third).partition_uuid == "MIG-b"


def test_a_divided_card_is_never_given_whole_nor_in_shares(yard: Yard) -> None:
    node(yard, MADE, None)
    whole, share = (yard.submit(devices={"kind": "gpu", "milli": milli}) for milli in (1000, 500))
    yard.cycle()
    assert held(whole).device.index == 1
    assert states(share)["main"] == "PENDING"


def test_a_card_is_divided_as_asked_only_where_its_pools_allow_it(yard: Yard) -> None:
    agent = node(yard, msgspec.structs.replace(MAKES, whole=True))
    Pool.objects.update(repartition=True)
    jobs = [yard.submit(**asking(profile)) for profile in ("3g.40gb", "1g.10gb", "1g.10gb")]
    whole = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    layout = {(one.partition, one.slots.lower, one.slots.upper) for one in map(held, jobs)}
    assert len(layout) == 3
    assert sorted(slot for _, low, high in layout for slot in range(low, high)) == sorted(
        {slot for _, low, high in layout for slot in range(low, high)}
    )
    assert states(whole)["main"] == "PENDING", "who asks for no partition gets a card that is not divided"
    (order,) = (each for each in agent.look()[0].spec.devices if each.kind == "gpu")  # type: ignore[union-attr]
    assert order.partition is not None
    assert order.partition.uuid == ""
    (device,) = (one for one in world.nodes()[0].devices if one.kind == "gpu")
    assert (device.partitions, device.made, device.whole) == ("h100-80gb", None, True)
    Pool.objects.update(repartition=False)
    (device,) = (one for one in world.nodes()[0].devices if one.kind == "gpu")
    assert device.made == ()


def test_the_engine_hears_of_what_is_held(yard: Yard) -> None:
    node(yard, MADE)
    yard.submit(**asking("3g.40gb"))
    yard.cycle()
    (running,) = yard.store.load(NOW).running
    (grant,) = (one for one in running.placement.grants[0] if one.part is not None)
    assert (grant.part, grant.memory_bytes) == (partitions.Partition(0, "3g.40gb"), 40 * GIB)


def test_where_the_slots_are_not_told_instances_are_numbered(yard: Yard) -> None:
    unplaced = [Partition("1g.10gb", None, 1, uuid) for uuid in ("MIG-z", "MIG-y")]
    node(yard, Division("MIG", made=unplaced))
    jobs = [yard.submit(**asking("1g.10gb")) for _ in range(2)]
    yard.cycle()
    assert [held(job).partition_uuid for job in jobs] == ["MIG-y", "MIG-z"]


def test_a_card_that_was_divided_anew_meanwhile_is_passed_over(yard: Yard) -> None:
    agent = node(yard, MADE)
    job = yard.submit(**asking("3g.40gb"))
    snapshot = yard.store.load(NOW)
    agent.devices = [cpu("n1", 32, 64), card("n1", Division("MIG", made=[Partition("7g.80gb", 0, 8, "MIG-all")]))]
    agent.report()
    plan = engine.plan(snapshot, named("hybrid"), NOW)
    assert [start.stage for start in plan.starts] == [str(stage(job).id)]
    assert yard.store.apply(snapshot, plan, NOW).skipped == (str(stage(job).id),)
    assert states(job)["main"] == "PENDING"


def test_the_database_lets_no_two_open_claims_overlap(yard: Yard) -> None:
    node(yard, MADE)
    first, bystander = yard.submit(**asking("3g.40gb")), yard.submit()
    yard.cycle()
    other = bystander.stages.get().attempts.get().parts.get()
    fields = {"part": other, "device": held(first).device, "milli": 10, "opened_at": timezone.now()}
    for slots in ((0, 4), (1, 2), (3, 5)):
        with pytest.raises(IntegrityError, match="do not overlap"), transaction.atomic():
            Claim.objects.create(**fields, partition="1g.10gb", slots=slots)
    with pytest.raises(IntegrityError, match="partition_held_once"), transaction.atomic():
        Claim.objects.create(**fields, partition="3g.40gb", slots=(6, 7), partition_uuid="MIG-a")
    with pytest.raises(IntegrityError, match="claim_of_a_partition_has_slots"), transaction.atomic():
        Claim.objects.create(**fields, partition="1g.10gb")
    with pytest.raises(IntegrityError, match="closed"), transaction.atomic():
        Claim.objects.filter(id=held(first).id).update(slots=(4, 8))
    beside = Claim.objects.create(**fields, partition="1g.10gb", slots=(4, 5))
    Claim.objects.filter(id=beside.id).update(closed_at=timezone.now())
    assert beside.slots == (4, 5), "what lies beside is another matter"
    Claim.objects.filter(id=beside.id).delete()
    with pytest.raises(IntegrityError, match="oversold"), transaction.atomic():
        Claim.objects.create(**{**fields, "milli": 1000})


def test_an_exclusive_device_is_given_in_partitions_too(yard: Yard) -> None:
    node(yard, MADE)
    Device.objects.update(mode="exclusive")
    job = yard.submit(**asking("1g.10gb"))
    yard.cycle()
    assert held(job).milli == 142


@pytest.mark.parametrize(
    ("divisions", "profile", "words"),
    [
        ([None], "3g.40gb", "no device of it is divided"),
        ([MADE], "7g.80gb", "of partitions it has 2 × 1g.10gb, 1 × 3g.40gb"),
        (
            [MAKES, None],
            "7g.80gb",
            "1 could be divided so if an administrator allowed it (repartition of pool default)",
        ),
        ([MADE, MAKES], "vir02", "2 × 1g.10gb, 1 × 3g.40gb"),
    ],
)
def test_what_no_device_has_is_refused_with_what_there_is(
    yard: Yard, divisions: list[Division | None], profile: str, words: str
) -> None:
    node(yard, *divisions)
    with pytest.raises(InvalidSpec) as refused:
        yard.submit(devices={"partition": profile})
    (fault,) = refused.value.errors
    assert fault.code == "NoMatchingDevice"
    assert words in fault.detail
    assert fault.detail.endswith(words)


def test_a_share_that_must_be_held_waits_for_a_device_that_holds_it(yard: Yard) -> None:
    loose, held_softly = gpu("n1", 0), msgspec.structs.replace(gpu("n1", 1), sharing="soft")
    agent = yard.agent("n1", cpu("n1", 32, 64), loose, held_softly)
    wants = {"kind": "gpu", "milli": 500, "sharing": "soft"}
    jobs = [yard.submit(devices=wants) for _ in range(3)]
    yard.cycle()
    assert [held(job).device.index for job in jobs[:2]] == [1, 1]
    assert states(jobs[2])["main"] == "PENDING"
    agent.devices = [cpu("n1", 32, 64), loose]
    with pytest.raises(InvalidSpec) as refused:
        yard.submit(devices={**wants, "sharing": "hard"})
    assert "500/1000 held hard" in str(refused.value)
    with pytest.raises(InvalidSpec, match="must be one of"):
        yard.submit(devices={**wants, "sharing": "some"})
