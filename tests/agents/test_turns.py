"""Who shares a queue: parts that meet on queued devices, directly or through each other, and nobody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agents.protocol import DeviceClaim
from agents.resources.feedback_queue import QueueRules
from agents.resources.turns import Turns


def part(name: str, *devices: str, kind: str = "gpu") -> Any:
    claims = [DeviceClaim(uuid, kind, "v", "m", 0, 500, 0) for uuid in devices]
    return SimpleNamespace(intent=SimpleNamespace(part=name, devices=claims))


def nothing(_: Any) -> float:
    return 0.0


def test_without_a_queued_device_nobody_pauses() -> None:
    assert Turns().paused([part("a", "g0"), part("b", "g0")], 0.0, nothing) == set()
    assert Turns(["npu"]).paused([part("a", "g0"), part("b", "g0")], 0.0, nothing) == set()


def test_one_of_those_who_share_a_device_runs() -> None:
    turns = Turns(["gpu"])
    assert turns.paused([part("a", "g0"), part("b", "g0"), part("c", "g1")], 0.0, nothing) == {"b"}
    assert turns.is_contended


def test_a_uuid_queues_that_device_and_no_other_of_its_kind() -> None:
    everybody = [part("a", "g0"), part("b", "g0"), part("c", "g1"), part("d", "g1")]
    assert Turns(["g1"]).paused(everybody, 0.0, nothing) == {"d"}


def test_parts_that_meet_through_a_third_are_in_one_queue() -> None:
    """With a queue for each device, b could get a turn on one of its two while a or c has the other, for ever."""
    everybody = [part("a", "g0"), part("b", "g0", "g1"), part("c", "g1")]
    turns, ran, now = Turns(["gpu"], QueueRules((1.0,), boost_s=1e9)), [], 0.0
    for _ in range(30):
        paused = turns.paused(everybody, now, nothing)
        ran.append({"a", "b", "c"} - paused)
        now += 0.5
    assert all(len(running) == 1 for running in ran)
    assert set().union(*ran) == {"a", "b", "c"}


def test_the_time_of_being_allowed_counts_and_levels_outlive_who_leaves() -> None:
    turns = Turns(["gpu"], QueueRules((1.0, 4.0), boost_s=1e9))
    pair = [part("a", "g0"), part("b", "g0")]
    assert turns.paused(pair, 0.0, nothing) == {"b"}
    assert turns.paused(pair, 1.0, nothing) == {"a"}  # a used up its second
    assert turns.paused([*pair, part("c", "g0")], 1.5, nothing) == {"a", "c"}
    assert turns.paused([*pair, part("c", "g0")], 2.0, nothing) == {"a", "b"}
    assert turns.paused([pair[0]], 2.1, nothing) == set()
    assert not turns.is_contended


def test_a_cpu_counts_what_was_computed() -> None:
    used = {"a": 0.0, "b": 0.0}
    turns = Turns(["cpu"], QueueRules((1.0, 4.0), boost_s=1e9))
    pair = [part("a", "c0", kind="cpu"), part("b", "c0", kind="cpu")]

    def cpu_s(asked: Any) -> float:
        return used[asked.intent.part]

    assert turns.paused(pair, 0.0, cpu_s) == {"b"}
    assert turns.paused(pair, 100.0, cpu_s) == {"b"}  # a waits for its disk: it has used nothing
    used["a"] = 1.0
    assert turns.paused(pair, 100.1, cpu_s) == {"a"}
