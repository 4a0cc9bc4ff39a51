"""A snapshot as text: canonical, and the same when it is read back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler.core.model import encode
from scheduler.core.model.types import Project, Quota, Snapshot
from tests.core.worlds import NOW, begun, node, running, stage, think


def world() -> Snapshot:
    snap = Snapshot(
        (node("b", 2), node("a", 1, npus=1)),
        (stage(2), stage(1, gpus=2, nodes=2, pinned=("a", "b"))),
        (running(7, {"b": ["gpu0"]}),),
        projects=(Project("lab", 2.0, 17.5),),
        quotas=(Quota("lab", "gpu", 9000),),
        speeds={("train", "H100"): 1.25},
    )
    return begun(snap, think(snap), NOW)


def test_what_is_read_back_gives_the_same_text_and_the_same_plan() -> None:
    text = encode.dump(world(), NOW)
    back, now = encode.load(text)
    assert now == NOW
    assert encode.dump(back, now) == text
    assert think(back) == think(world())


def test_the_order_of_things_leaves_no_trace() -> None:
    one = world()
    other = replace(one, nodes=one.nodes[::-1], waiting=one.waiting[::-1])
    assert encode.dump(one) == encode.dump(other)


def test_what_is_wrong_is_told_with_its_place() -> None:
    body = json.loads(encode.dump(world()))
    body["snapshot"]["nodes"][0]["state"] = "ASLEEP"
    with pytest.raises(ValueError, match=r"snapshot.nodes\[0\].state is 'ASLEEP'; it must be one of JOINING"):
        encode.load(json.dumps(body))
    with pytest.raises(ValueError, match="not JSON"):
        encode.load("{")
