"""Who shares a device keeps to the memory that was given, where somebody tells who uses how much."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.devices import cap
from agents.devices.cap import GRACE_S, SLACK, SLACK_BYTES, MemoryCaps, Over, is_share
from agents.protocol import DeviceClaim, Partition, Phase
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order

Names = Callable[[], str]
GIB = 1 << 30


def claim(milli: int = 250, memory: int = 4 * GIB, uuid_: str = "card", **more: object) -> DeviceClaim:
    return DeviceClaim(uuid_, "gpu", "acme", "A1", 0, milli, memory, **more)  # type: ignore[arg-type]


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 9), unique=True, max_size=4)),
    st.dictionaries(st.integers(1, 12), st.integers(0, 40 * GIB)),
)
def test_a_part_answers_for_its_own_processes_only(families: dict[str, list[int]], used: dict[int, int]) -> None:
    over, _ = MemoryCaps().judge({"card": used}, {name: [claim()] for name in families}, families.__getitem__, 0.0)
    for name, pids in families.items():
        held = sum(used.get(pid, 0) for pid in pids)
        assert (name in over) == (held > 4 * GIB * SLACK + SLACK_BYTES)
        assert name not in over or over[name].used_bytes == held


@pytest.mark.parametrize(
    "free", [claim(1000), claim(memory=0), claim(partition=Partition("1g.10gb", uuid="MIG-1")), claim(uuid_="other")]
)
def test_whole_devices_partitions_and_what_nobody_tells_are_not_watched(free: DeviceClaim) -> None:
    over, ended = MemoryCaps().judge({"card": {7: 80 * GIB}}, {"p": [free]}, lambda _: [7], 0.0)
    assert (over, ended) == ({}, [])


def test_the_grace_counts_anew_once_it_keeps_to_its_share() -> None:
    caps = MemoryCaps()

    def judge(bytes_: int, now: float) -> list[str]:
        return caps.judge({"card": {7: bytes_}}, {"p": [claim()]}, lambda _: [7], now)[1]

    assert judge(9 * GIB, 0.0) == []
    assert judge(9 * GIB, GRACE_S - 1) == []
    assert judge(3 * GIB, GRACE_S) == []
    assert judge(9 * GIB, GRACE_S + 1) == []
    assert judge(9 * GIB, 2 * GRACE_S + 1) == ["p"]


def test_why_it_was_ended_outlives_the_agent_and_no_nonsense_is_read(tmp_path: Path) -> None:
    over = Over(claim(), 9 * GIB)
    cap.remember(str(tmp_path), over)
    assert cap.remembered(str(tmp_path)) == over.said
    huge = {"device": "g", "used_bytes": 10**400, "given_bytes": 1}
    for text in ("[]", "{}", '{"device": 1}', "[" * 9999, json.dumps(huge), json.dumps({**huge, "used_bytes": -1})):
        (tmp_path / cap.FILE).write_text(text)
        assert cap.remembered(str(tmp_path)) is None


def test_a_cpu_is_shared_by_cores() -> None:
    assert not is_share(DeviceClaim("c", "cpu", "x", "y", 0, 500, 1))


@pytest.fixture
def node(model: Yard, tmp_path: Path) -> Iterator[Hands]:
    """An agent whose one card is told by a command, which reads from ``usage`` who uses it."""
    made = Hands(model, tmp_path, f"cap-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    device = {"uuid": f"card-{uuid.uuid4().hex[:8]}", "kind": "gpu", "vendor": "acme", "model": "A1", "index": 0,
              "memory_bytes": 16 * GIB}  # fmt: skip
    (tmp_path / "device.json").write_text(json.dumps(device))
    (tmp_path / "usage.json").write_text("[]")
    script = (
        "import json, sys, pathlib\nhere = pathlib.Path(sys.argv[1])\n"
        "device = json.loads((here / 'device.json').read_text())\n"
        "device['processes'] = json.loads((here / 'usage.json').read_text())\n"
        "print(json.dumps({'devices': [device]}))\n"
    )
    (tmp_path / "list.py").write_text(script)
    probes = tmp_path / "probes.toml"
    probes.write_text(
        f'[[command]]\nname = "acme"\nrun = ["python3", "{tmp_path}/list.py", "{tmp_path}"]\nevery_s = 1\n'
    )
    made.environment["YARD_AGENT_DEVICE_MEMORY_GRACE_S"] = "2"
    made.start("--run-as", "root" if os.geteuid() == 0 else "self", "--probes", str(probes))
    yield made
    made.clear()


def test_a_share_that_takes_its_neighbours_memory_is_warned_and_then_ended(
    node: Hands, part: Names, tmp_path: Path
) -> None:
    side = node.yard.side(node.name)
    card = node.yard.wait(lambda: next(d for d in side.inventory.devices if d.kind == "gpu"))  # type: ignore[union-attr]
    assert card.sharing == "soft"
    greedy, modest = part(), part()
    share = DeviceClaim(card.uuid, "gpu", "acme", "A1", 0, 250, 0)
    for name in (greedy, modest):
        script = "echo $YARD_DEVICE_MEMORY_BYTES; sleep 300"
        node.yard.want(node.name, order(name, "sh", "-c", script, devices=[share]))
    pids = {name: node.yard.phase(node.name, name, Phase.RUNNING).pid for name in (greedy, modest)}
    used = [{"pid": pids[greedy], "memory_bytes": 9 * GIB}, {"pid": pids[modest], "memory_bytes": 4 * GIB}]
    draft = tmp_path / "usage.draft"
    draft.write_text(json.dumps(used))
    draft.rename(tmp_path / "usage.json")
    node.yard.wait(lambda: any("9216 MiB of gpu 0" in note for note in side.here[greedy].notes))
    end = node.yard.ended(node.name, greedy).exit
    assert end is not None
    assert (end.cause, end.stopped) == ("OUT_OF_MEMORY", False)
    assert end.detail == "used 9216 MiB of gpu 0, of which it was given 4096 MiB"
    assert side.here[modest].phase == Phase.RUNNING
    assert side.here[modest].notes == []
    said = node.yard.wait(lambda: bytes(node.yard.logs[(modest, 0, "out")]))
    assert said.split()[0] == str(4 * GIB).encode()
