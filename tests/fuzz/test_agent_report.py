"""What a node sends, through the real doors: whatever it is, it is refused or stored within bounds, and harms nobody.

The node has a valid credential. After each message a cycle over the live store plans, records and starts a job on
another node.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels import consumer
from channels.generic import websocket
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents import protocol
from agents.protocol import HostSample, LogBatch, Report, TelemetryBatch
from controlplane.dispatch import agent_socket as link
from controlplane.dispatch.agent_socket import AgentLink
from controlplane.fleet.models import Alarm, Device, Host, Node
from controlplane.jobs.models import Part
from controlplane.scheduling import loop
from controlplane.scheduling.alarms import CycleAlarms
from scheduler.core.planning import aside
from tests.record.conftest import forget
from tests.record.test_aside import by_hand, windows
from tests.record.test_uploads import credential
from tests.record.yard import Agent, Yard, stage, states

EDGES = st.sampled_from(
    [0, -1, 1, 2**31, 2**50, 2**50 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 1e308, -1e308, 5e-324, "", "\x00",
     "a" * 5_000, "GPU-b-0", "cpu-b", "cpu-a", "../../etc", "#", None, True, [], {}, [[[]]]]
)  # fmt: skip
TEXTS = st.one_of(st.text(st.characters(codec="utf-8"), max_size=30), st.text("ab", max_size=9))
VALUES = st.one_of(EDGES, st.integers(-(2**64), 2**64), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
TREES = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


def shaped(shape: type, known: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the fields of a shape, each of which holds what it should."""
    fields = {field.name: known.get(field.name, st.sampled_from([0, 1])) for field in msgspec.structs.fields(shape)}
    required = {f.name: fields[f.name] for f in msgspec.structs.fields(shape) if f.required}
    kept = {name: strategy for name, strategy in fields.items() if name in known and name not in required}
    return st.fixed_dictionaries(required, optional=kept)


@st.composite
def hostile(draw: st.DrawFn, messages: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """A message in which at most two values were replaced by anything: one more and nearly all would be refused whole,
    and what is let in would never be tried."""
    message = deepcopy(draw(messages))  # strategies give out one and the same list again and again
    for _ in range(draw(st.integers(0, 2))):
        at: Any = message
        while True:
            steps = list(at) if isinstance(at, dict) else range(len(at))
            if not steps:
                break
            step = draw(st.sampled_from(list(steps)))
            if isinstance(at[step], dict | list) and at[step] and draw(st.integers(0, 4)):
                at = at[step]
                continue
            words, is_number = isinstance(at[step], str), isinstance(at[step], int | float)
            at[step] = deepcopy(draw(st.one_of(TREES, WORST_WORDS if words else WORST_NUMBERS if is_number else EDGES)))
            break
    return message


WORST_WORDS = st.sampled_from(["\x00", "a\x00b", "x" * 5_000, "x" * 20_000, ""])
WORST_NUMBERS = st.sampled_from([2**63 - 1, 2**63, 1e308, -1, -(2**63), 2**50 + 1, 2**31])
WORDS = st.sampled_from(["gpu", "cpu", "npu", "NVIDIA", "x"])
DEVICE = shaped(
    protocol.Device,
    {
        "uuid": st.sampled_from(["GPU-a-0", "GPU-b-0", "cpu-a", "cpu-b", "z"]),
        "kind": WORDS,
        "vendor": WORDS,
        "model": WORDS,
        "index": st.integers(0, 3),
        "memory_bytes": st.sampled_from([0, 2**30, 2**50]),
        "capacity_milli": st.sampled_from([1000, 4000, 10_000_000]),
        "numa": st.just(0),
        "pci": st.just("0000:01:00.0"),
        "simulated": st.booleans(),
        "health": st.sampled_from(["OK", "DEGRADED", "LOST"]),
        "health_reason": TEXTS,
        "features": st.dictionaries(WORDS.map(lambda w: f"{w}_tflops"), st.sampled_from([1.0, 989.0, 1e9])),
        "attributes": st.dictionaries(WORDS, TEXTS, max_size=2),
        "links": st.lists(shaped(protocol.Link, {"peer": WORDS, "type": WORDS, "gbps": st.just(900.0)}), max_size=2),
        "division": st.one_of(
            st.none(),
            shaped(
                protocol.Division,
                {
                    "mode": st.just("mig"),
                    "profiles": st.just({"1g.10gb": 7}),
                    "made": st.just([]),
                    "makes": st.booleans(),
                },
            ),
        ),
    },
)
INVENTORY = shaped(
    protocol.Inventory,
    {
        "hostname": WORDS, "os": WORDS, "arch": WORDS, "cpus": st.just(8), "memory_bytes": st.just(2**33),
        "isolation": WORDS, "runs_as": WORDS, "simulated": st.booleans(), "address": WORDS, "container_engine": WORDS,
        "executor": WORDS, "lacks": st.lists(TEXTS, max_size=2),
        "lacks_said": st.lists(st.just([["LacksGangs", {}]]), max_size=3),
        "labels": st.dictionaries(WORDS, TEXTS, max_size=3), "devices": st.lists(DEVICE, max_size=3),
        "interfaces": st.lists(shaped(protocol.Interface, {"name": WORDS}), max_size=1),
        "disks": st.lists(shaped(protocol.Disk, {"name": WORDS, "size_bytes": st.just(5)}), max_size=1),
        "file_systems": st.lists(shaped(protocol.FileSystem, {"mount": WORDS, "type": WORDS}), max_size=1),
    },
)  # fmt: skip
EXIT = shaped(
    protocol.Exit,
    {
        "cause": st.sampled_from(["", "EXIT_CODE", "OUT_OF_MEMORY", "CHECKPOINTED"]), "code": st.integers(0, 3),
        "signal": st.just(9), "detail": TEXTS, "stopped": st.booleans(), "ran_s": st.just(1.5),
        "said": st.lists(st.sampled_from(["ExitCode", "Nothing"]).map(lambda code: [code, {"code": 3}]), max_size=2),
        "energy_j": st.dictionaries(WORDS, st.just(4.0), max_size=2), "device_peak_bytes": st.just({"gpu": 5}),
        "released": st.lists(shaped(protocol.Released, {"uuid": WORDS}), max_size=2),
    },
)  # fmt: skip
CHECKPOINT = shaped(protocol.Checkpoint, {"step": st.integers(0, 9), "path": TEXTS, "age_s": st.just(1.0)})
PROGRESS = shaped(
    protocol.Progress,
    {
        "step": st.integers(0, 9),
        "total": st.integers(0, 9),
        "phase": TEXTS,
        "values": st.dictionaries(TEXTS, st.sampled_from([1, 2.5, "x", -(2**53), 1e300])),
    },
)
OUTPUT = shaped(protocol.Output, {"name": TEXTS, "digest": st.just("a" * 64), "size_bytes": st.just(3)})
HERE = shaped(
    protocol.Here,
    {
        "part": st.just("@part"), "attempt": st.just("@attempt"), "epoch": st.just(1),
        "phase": st.sampled_from([10, 20, 30, 40, 50, 90]), "spec_rev": st.just(1), "pid": st.just(7),
        "pid_start": st.just(7), "substate": TEXTS, "exit": st.one_of(st.none(), EXIT), "logs": st.just({"0.out": 3}),
        "devices": st.lists(WORDS, max_size=2), "checkpoints": st.lists(CHECKPOINT, max_size=2), "progress": PROGRESS,
        "notes": st.lists(TEXTS, max_size=2), "outputs": st.lists(OUTPUT, max_size=2),
    },
)  # fmt: skip
ERROR = shaped(protocol.DeviceError, {"uuid": st.sampled_from(["cpu-a", "cpu-b"]), "code": WORDS, "detail": TEXTS})
REPORT = shaped(
    Report,
    {
        "proto": st.just(1), "agent": st.just("1"), "boot_id": st.just("boot-1"), "start_seq": st.just(1),
        "seq": st.integers(1, 9), "seen_generation": st.integers(0, 9),
        "inventory": st.fixed_dictionaries({"hash": TEXTS}, optional={"full": INVENTORY}),
        "here": st.lists(HERE, max_size=2),
        "conditions": shaped(
            protocol.Conditions,
            {"disk_pressure": st.booleans(), "device_errors": st.lists(ERROR, max_size=2), "notes": st.lists(TEXTS)},
        ),
        "kept": shaped(protocol.Kept, {"digests": st.just(["b" * 64]), "url": st.just("http://x"), "key": TEXTS}),
    },
)  # fmt: skip
COUNTS = st.dictionaries(TEXTS, st.one_of(st.just(5), VALUES), max_size=2)
TELEMETRY = shaped(
    TelemetryBatch,
    {
        "devices": st.lists(
            shaped(
                protocol.DeviceSample,
                {
                    "uuid": st.just("cpu-a"),
                    "age_s": st.just(1.0),
                    "utilisation": st.sampled_from([None, 0.5, 37.0, -1.0]),
                },
            ),
            max_size=2,
        ),
        "parts": st.lists(shaped(protocol.PartSample, {"part": st.just("@part"), "age_s": st.just(1.0)}), max_size=2),
        "host": shaped(
            HostSample,
            {f.name: COUNTS for f in msgspec.structs.fields(HostSample)}
            | {"age_s": st.just(1.0), "queue": st.sampled_from([0.5, 1e15, -1.0])},
        ),
        "fetched": st.lists(
            st.fixed_dictionaries(
                {"size_bytes": st.sampled_from([0, 1, 2**53]), "took_s": st.sampled_from([1.0, 0.0, -1.0, 1e-15, 1e15])}
            ),
            max_size=2,
        ),
    },
)
CHUNK = shaped(
    protocol.LogChunk,
    {"part": st.just("@part"), "epoch": st.just(1), "rank": st.just(0), "stream": st.just("out"), "offset": st.just(0),
     "data": st.binary(max_size=9)},
)  # fmt: skip
LOGS = shaped(LogBatch, {"chunks": st.lists(CHUNK, max_size=3)})
ASKED = shaped(protocol.AskSources, {"digest": st.just("a" * 64), "failed": st.just([])})
JOIN = shaped(protocol.Enrol, {"token": TEXTS, "name": WORDS})

# Hypothesis runs all examples in one test: each begins with the world as it was left, as a live server would.
PATIENCE_S = 60  # only bounds a failure
law = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class World:
    """Node *a* is hostile and runs a job, node *b* is fine. All through the loop that a worker runs."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.bad, self.good = yard.agent("a"), yard.agent("b")
        self.job = yard.submit(cpus=1)
        self.cycle()
        self.bad.start() or self.good.start()
        self.part = Part.objects.get()
        self.client = Client(raise_request_exception=False)
        self.header = credential(self.bad)

    def cycle(self) -> None:
        loop.cycle()
        loop.recorder.flush()

    def named(self, tree: Any) -> Any:
        """A message with the names of this world in it."""
        if isinstance(tree, dict):
            return {key: self.named(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.named(value) for value in tree]
        return (
            {"@part": str(self.part.id), "@attempt": str(self.part.attempt_id)}.get(tree, tree)
            if isinstance(tree, str)
            else tree
        )

    def post(self, path: str, body: bytes) -> int:
        return self.client.post(path, body, content_type="application/octet-stream", headers=self.header).status_code

    def judge(self) -> None:
        """Others are served, what is stored is within bounds, and nobody was stopped."""
        self.good.report()
        job = self.yard.submit(cpus=1)
        self.cycle()
        attempt = stage(job).attempts.get()
        node = attempt.parts.get().node
        assert states(job)["main"] == "STARTING"
        assert not Alarm.objects.filter(kind__in=["cycle", "record", "pool", "stage"]).exists()
        assert not Alarm.objects.filter(subject="b").exists()
        agent = self.good if node == self.good.node else self.bad
        part = attempt.parts.get()
        agent.here.clear()
        report_end(agent, part)
        for device in Device.objects.filter(node=self.bad.node):
            assert 0 <= device.memory_bytes <= protocol.MOST_BYTES
            assert device.capacity_milli <= protocol.MOST_MILLI
            assert all(0 <= value <= protocol.MOST_RATE for value in device.features.values())
        assert len(Node.objects.get(name="a").labels) <= 200


def report_end(agent: Agent, part: Part) -> None:
    """The part has ended well, as its own node says."""
    from controlplane.jobs import record

    item = protocol.Here(
        part=str(part.id), attempt=str(part.attempt_id), epoch=part.epoch, phase=90, exit=protocol.Exit(code=0)
    )
    seq = Node.objects.get(id=part.node_id)
    message = Report(
        proto=1, agent="1", boot_id="boot-1", start_seq=seq.start_seq, seq=1, seen_generation=0,
        inventory=protocol.InventoryRef(hash=seq.inventory_hash), here=[item],
    )  # fmt: skip
    record.report(part.node_id, message)


async def _keep() -> None:
    """Connections stay: the test's transaction is in one of them."""


@pytest.fixture
def world(db: None, monkeypatch: pytest.MonkeyPatch) -> World:
    forget(monkeypatch)
    yard = Yard()
    yard.planner = aside.TolerantPlanner()
    monkeypatch.setattr(loop, "_store", yard.store)
    monkeypatch.setattr(loop, "_planner", yard.planner)
    monkeypatch.setattr(loop, "_alarms", CycleAlarms())
    monkeypatch.setattr(loop, "_arm", lambda *_, **__: None)
    monkeypatch.setattr(loop, "recorder", by_hand())
    monkeypatch.setattr(loop, "_last_s", 0.0)
    # Thousands of examples in one transaction leave much to be checked at its end.
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
    # All in the test's own transaction, which no other thread could see.
    monkeypatch.setattr(link, "in_thread", lambda call, *args: sync_to_async(call, thread_sensitive=True)(*args))
    monkeypatch.setattr(consumer, "aclose_old_connections", _keep)
    monkeypatch.setattr(websocket, "aclose_old_connections", _keep)
    monkeypatch.setattr(AgentLink, "channel_layer_alias", None)
    return World(yard)


def tell(world: World, raw: bytes) -> protocol.Desired | None:
    """One message over the agent's own socket: it is answered with orders, or the socket is closed with a reason."""

    async def talk() -> protocol.Desired | None:
        scope = {
            "type": "websocket",
            "path": protocol.LINK_PATH,
            "headers": [(b"authorization", world.header["Authorization"].encode())],
        }
        socket = ApplicationCommunicator(AgentLink.as_asgi(), scope)
        await socket.send_input({"type": "websocket.connect"})
        assert (await socket.receive_output(PATIENCE_S))["type"] == "websocket.accept"
        await socket.send_input({"type": "websocket.receive", "bytes": raw})
        answer = await socket.receive_output(PATIENCE_S)
        if answer["type"] == "websocket.close":
            assert answer["code"] in {protocol.CLOSE_PROTOCOL, protocol.CLOSE_SECOND_INCARNATION}
            assert answer["code"] != protocol.CLOSE_PROTOCOL or answer["reason"]
            orders = None
        else:
            orders = msgspec.json.decode(answer["text"], type=protocol.Desired)
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(PATIENCE_S)
        return orders

    orders = async_to_sync(talk)()
    # A later process of the agent counts on from a number of its own: this one goes on being the newest.
    Node.objects.filter(id=world.bad.node.id).update(start_seq=1)
    return orders


def test_a_hostile_node_is_told_why_and_jobs_start_on_the_other(world: World) -> None:
    """What was seen once: 2^63-1 bytes under three maintenance windows, and rates of 1e308."""
    windows(world.bad)
    Node.objects.filter(name="a").update(state="READY")
    for field, value, says in (
        ("memory_bytes", 2**63 - 1, "device gpu-3 memory_bytes is 9223372036854775807; at most 2^50"),
        ("features", {"bf16_tflops": 1e308}, "device gpu-3 features: at most 1000000000.0"),
    ):
        device = {
            "uuid": "GPU-a-3",
            "kind": "gpu",
            "vendor": "",
            "model": "",
            "index": 3,
            "memory_bytes": 1,
            field: value,
        }
        full = {
            "hostname": "a", "os": "", "arch": "", "cpus": 1, "memory_bytes": 1, "isolation": "", "runs_as": "",
            "devices": [device],
        }  # fmt: skip
        report = {
            "proto": 1, "agent": "1", "boot_id": "boot-1", "start_seq": 1, "seq": 2, "seen_generation": 0,
            "inventory": {"hash": "new", "full": full},
        }  # fmt: skip
        orders = tell(world, msgspec.json.encode(report))
        assert orders is not None
        assert orders.faults == [f"inventory refused: {says}"]
        assert not orders.want_inventory
        assert Alarm.objects.get(kind="inventory", subject="a").says == f"inventory refused: {says}"
        assert not Device.objects.filter(uuid="GPU-a-3").exists()
        world.judge()
    report["inventory"]["full"]["devices"] = []  # type: ignore[index]
    assert tell(world, msgspec.json.encode(report)) is not None
    # It ran a part once and says nothing of it: that stays to be told.
    assert set(Alarm.objects.values_list("kind", flat=True)) <= {"memory"}


@law
@given(message=hostile(REPORT))
def test_any_report_is_refused_or_stored_and_the_others_go_on(world: World, message: dict[str, Any]) -> None:
    tell(world, msgspec.json.encode(world.named(message)))
    world.judge()


@law
@given(
    raw=st.one_of(
        st.binary(max_size=200), st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000, b"9" * 50_000, b",,," * 500_000])
    )
)
def test_any_bytes_are_refused_in_words(world: World, raw: bytes) -> None:
    tell(world, raw)
    for path in ("logs", "telemetry", "sources", "enrol"):
        assert world.post(f"/agent/v1/{path}", raw) in {400, 403, 413}, path


@law
@given(message=hostile(TELEMETRY))
def test_any_measurement_is_refused_or_stored(world: World, message: dict[str, Any]) -> None:
    assert world.post("/agent/v1/telemetry", packed(world.named(message))) in {204, 400}
    host = Host.objects.filter(node=world.bad.node).first()
    assert host is None or len(str(host.counters)) < 100_000


@law
@given(
    message=st.one_of(hostile(LOGS), hostile(ASKED), hostile(JOIN)), path=st.sampled_from(["logs", "sources", "enrol"])
)
def test_any_log_question_or_request_to_join_is_answered(world: World, message: dict[str, Any], path: str) -> None:
    if path == "logs":
        assert world.post("/agent/v1/logs", packed(world.named(message))) in {200, 400}
    else:
        body = msgspec.json.encode(world.named(message))
        assert world.post(f"/agent/v1/{path}", body) in {200, 400, 403, 404}


def packed(tree: Any) -> bytes:
    """MessagePack, in which no whole number is larger than 64 bits."""
    return msgspec.msgpack.encode(_fitting(tree))


def _fitting(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _fitting(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_fitting(value) for value in tree]
    if isinstance(tree, int) and not -(2**63) <= tree < 2**64:
        return float(tree)
    return tree
