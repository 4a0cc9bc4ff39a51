"""Partitions as people meet them: asked for in a job file, and told by the API and the pages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from controlplane.jobs import demand
from controlplane.pools.models import Pool
from controlplane.queries import devices, pools
from scheduler.core.model.types import Ask
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text
from tests.controlplane.test_spec import accepted, refused, sentence
from tests.record.test_partitions import MADE, MAKES, card
from tests.record.yard import GIB, Agent, cpu


def asked(**devices: Any) -> Ask:
    (stage,) = accepted({"run": "true", "devices": devices}).stages
    return demand.ways(stage.request)[0].asks[0]


def divided(town: Town) -> Agent:
    """A machine with a card that its operator divided, and one that its agent would divide."""
    return town.agent("n1", cpu("n1", 8, 64), card("n1", MADE), card("n1", MAKES, 1))


def test_a_partition_is_asked_for_by_its_name_and_has_a_kind_and_a_share_of_its_own() -> None:
    assert asked(partition="1g.10gb") == Ask("gpu", 1, 142, 0, partition="1g.10gb")
    assert asked(partition="vir04", count=2) == Ask("npu", 2, 500, 0, partition="vir04")
    assert asked(model="H100", partition="3g.40gb").model == "H100"
    smallest = asked(kind="gpu", partition="smallest", milli=300, memory="20GiB")
    assert smallest == Ask("gpu", 1, 300, 20 * GIB, partition="smallest")


@pytest.mark.parametrize(
    ("ask", "spoken"),
    [
        ({"partition": "1g.10gb", "model": "H100"}, "1g.10gb of H100 · 1 core"),
        ({"partition": "1g.10gb", "count": 2}, "2 x 1g.10gb of gpu · 1 core"),
        ({"partition": "smallest", "kind": "gpu"}, "smallest of gpu · 1 core"),
    ],
)
def test_a_partition_is_said_in_few_words(ask: dict[str, Any], spoken: str) -> None:
    (stage,) = accepted({"run": "true", "devices": ask}).stages
    assert demand.asked(stage.request).text == spoken


def test_what_is_no_partition_is_refused_with_the_nearest_that_are() -> None:
    wrong = {"run": "true", "devices": {"kind": "gpu", "partition": "1g.11gb"}}
    said = sentence(wrong, "/devices/partition")
    assert 'none is called "1g.11gb"; the nearest are' in said
    assert "1g.10gb" in said.partition("nearest")[2]
    lost = sentence({"run": "true", "devices": {"kind": "gpu", "partition": "half"}}, "/devices/partition")
    assert "there are 1g.10gb, " in lost
    assert refused({"run": "true", "devices": {"kind": "gpu", "partition": 7}}) == {
        "/devices/partition": "unknown_value"
    }


def test_a_partition_of_another_kind_or_with_a_share_is_refused() -> None:
    assert refused({"run": "true", "devices": {"kind": "gpu", "partition": "vir02"}}).keys() == {"/devices/partition"}
    assert refused({"run": "true", "devices": {"kind": "cpu", "partition": "1g.10gb"}}) == {
        "/devices/partition": "exclusive"
    }
    wrong = {"run": "true", "devices": {"partition": "1g.10gb", "milli": 100}}
    assert "ask partition: smallest" in sentence(wrong, "/devices/milli")


def test_the_api_tells_how_devices_are_divided_and_who_holds_which_partition(town: Town) -> None:
    job = town.running(divided(town), devices={"partition": "1g.10gb"})
    told = town.owner.read("/devices/GPU-n1-0")
    msgspec.convert(told, devices.Device)
    assert told["division"]["made"][1] == {"profile": "1g.10gb", "slot": 4, "size": 1, "uuid": "MIG-b"}
    assert [(claim["partition"], claim["slot"], claim["milli"]) for claim in told["claims"]] == [("1g.10gb", 4, 142)]
    assert town.owner.read("/devices/cpu-n1")["division"] is None
    (stage,) = town.owner.read(f"/jobs/{job.number}")["stages"]
    held = {device["kind"]: (device["partition"], device["slot"]) for device in stage["placed"][0]["devices"]}
    assert held == {"cpu": (None, None), "gpu": ("1g.10gb", 4)}


def test_a_dry_run_tells_the_partition_and_a_pool_whether_more_are_made(town: Town) -> None:
    divided(town)
    ask = {"run": "true", "devices": {"partition": "7g.80gb"}}
    answer = town.owner.post("/jobs", ask)
    assert answer.status_code == 422
    assert "1 could be divided so if an administrator allowed it" in answer.content.decode()
    Pool.objects.update(repartition=True)
    assert msgspec.convert(town.owner.read("/pools/default"), pools.Pool).repartition
    (stage,) = json.loads(town.owner.post("/jobs?dry_run=placement", ask).content)["stages"]
    (given,) = (device for device in stage["devices"] if device["kind"] == "gpu")
    assert (given["partition"], given["slot"]) == ("7g.80gb", 0)


def test_the_pages_say_which_partition_of_which_device(town: Town) -> None:
    job = town.running(divided(town), devices={"partition": "1g.10gb"})
    client = browser(town.owner)
    assert "1g.10gb at slot 4 of GPU 0" in text(client, f"/jobs/{job.number}")
    node = text(client, "/nodes/n1")
    assert "MIG: 2 × 1g.10gb, 1 × 3g.40gb" in node
    assert "MIG: divided as asked, where the pool allows it" in node
    assert "1g.10gb at slot 4" in node
