"""The agents' HTTP calls: logs by offset, measurements, bundles, joining."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from django.conf import settings
from django.test import Client

from agents.protocol import DeviceSample, HostSample, LogBatch, LogChunk, LogReceipt, PartSample, TelemetryBatch
from controlplane.accounts.service import digest
from controlplane.fleet import service as fleet
from controlplane.fleet.models import DeviceSample as DeviceRow
from controlplane.fleet.models import Host
from controlplane.fleet.models import PartSample as PartRow
from controlplane.jobs import logs
from controlplane.jobs.models import Bundle, Part
from tests.record.yard import Agent, Yard


@pytest.fixture
def agent(yard: Yard) -> Agent:
    agent = yard.agent("a")
    yard.submit()
    yard.cycle()
    agent.start()
    return agent


def credential(agent: Agent) -> dict[str, str]:
    secret = f"a secret that only {agent.node.name} knows"
    agent.node.credential_digest = digest(secret)
    agent.node.save(update_fields=["credential_digest"])
    return {"Authorization": f"Node {agent.node.id}:{secret}"}


def post(client: Client, agent: Agent, path: str, message: Any) -> Any:
    body = msgspec.msgpack.encode(message)
    return client.post(path, body, content_type="application/msgpack", headers=credential(agent))


def send(client: Client, agent: Agent, *chunks: tuple[int, bytes], epoch: int = 1, part: str = "") -> LogReceipt:
    part = part or next(iter(agent.here))
    batch = LogBatch([LogChunk(part, epoch, 0, "out", offset, data) for offset, data in chunks])
    answer = post(client, agent, "/agent/v1/logs", batch)
    assert answer.status_code == 200
    return msgspec.msgpack.decode(answer.content, type=LogReceipt)


def stored() -> bytes:
    return b"".join(piece for part in Part.objects.all() for piece in logs.pieces(part, "out"))


def test_bytes_are_stored_once_and_in_order_however_they_come(client: Client, agent: Agent) -> None:
    assert send(client, agent, (0, b"hello ")).streams[0].committed == 6
    assert send(client, agent, (0, b"hello ")).streams[0].committed == 6
    assert send(client, agent, (9, b"late")).streams[0].committed == 6
    assert send(client, agent, (3, b"lo wor"), (9, b"ld")).streams[0].committed == 11
    assert stored() == b"hello world"


def test_a_stale_epoch_or_a_foreign_part_writes_nothing(client: Client, yard: Yard, agent: Agent) -> None:
    assert send(client, agent, (0, b"x"), epoch=7).streams[0].refused == "stale_epoch"
    other = yard.agent("b")
    assert send(client, other, (0, b"x"), part=next(iter(agent.here))).streams[0].refused == "unknown"
    assert stored() == b""


def test_garbage_is_answered_with_a_sentence(client: Client, agent: Agent) -> None:
    for path in ("/agent/v1/logs", "/agent/v1/telemetry"):
        answer = client.post(path, b"\xc1nonsense", content_type="application/msgpack", headers=credential(agent))
        assert answer.status_code == 400
        assert "this is no batch" in answer.json()["detail"]
        assert client.post(path, b"", content_type="application/msgpack").status_code == 401


def test_measurements_of_this_node_are_kept_and_others_are_not(client: Client, yard: Yard, agent: Agent) -> None:
    yard.agent("b")
    part = next(iter(agent.here))
    batch = TelemetryBatch(
        devices=[
            DeviceSample(uuid="cpu-a", age_s=1.0, utilisation=0.5),
            DeviceSample(uuid="cpu-b", age_s=1.0, utilisation=0.9),
        ],
        parts=[PartSample(part=part, age_s=0.5, cpu=1.5, rss_bytes=1000), PartSample(part="no", age_s=0.5)],
    )
    assert post(client, agent, "/agent/v1/telemetry", batch).status_code == 204
    assert [row.utilisation for row in DeviceRow.objects.all()] == [0.5]
    assert [str(row.part_id) for row in PartRow.objects.all()] == [part]


def test_the_newest_measurement_of_a_host_is_kept_with_what_it_moves_in_a_second(client: Client, agent: Agent) -> None:
    def told(age_s: float, received: int, written: int) -> HostSample:
        net, disk = {"eth0": received}, {"sda": written}
        return HostSample(age_s, {"io_full": 1.5}, net, {"eth0": 7}, {"sda": 0}, disk, {"/": 5 << 30})

    for sample in (told(20.0, 1_000, 0), told(10.0, 21_000, 5_000), told(60.0, 1, 1)):
        batch = TelemetryBatch([], [], sample)
        assert post(client, agent, "/agent/v1/telemetry", batch).status_code == 204
    host = Host.objects.get(node=agent.node)
    assert host.counters["received"] == {"eth0": 21_000}
    assert host.per_s["received"]["eth0"] == pytest.approx(2_000, rel=0.1)
    assert host.per_s["written"]["sda"] == pytest.approx(500, rel=0.1)
    assert (host.per_s["sent"], host.free_bytes, host.pressure) == ({"eth0": 0.0}, {"/": 5 << 30}, {"io_full": 1.5})
    # A counter that began anew says nothing of now.
    post(client, agent, "/agent/v1/telemetry", TelemetryBatch([], [], told(0.0, 5, 9_000)))
    host.refresh_from_db()
    assert host.per_s["received"] == {}
    assert host.per_s["written"]["sda"] == pytest.approx(400, rel=0.1)


def test_what_the_devices_of_a_part_drew_is_kept(client: Client, agent: Agent) -> None:
    part = next(iter(agent.here))
    samples = [PartSample(part, 1.0, 0.5, 7, {"gpu": 12.5}), PartSample(part, 0.0, 0.5, 7)]
    assert post(client, agent, "/agent/v1/telemetry", TelemetryBatch([], samples)).status_code == 204
    assert list(PartRow.objects.order_by("at").values_list("energy_j", flat=True)) == [{"gpu": 12.5}, None]


def test_a_bundle_goes_only_to_nodes_that_run_a_job_with_it(client: Client, agent: Agent) -> None:
    data = b"not really a tar, but the server does not care"
    digest = hashlib.sha256(data).hexdigest()
    path = settings.BLOBS / digest[:2] / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    Bundle.objects.create(sha256=digest, size_bytes=len(data))
    assert client.get(f"/agent/v1/bundles/{digest}", headers=credential(agent)).status_code == 404
    part = Part.objects.get(id=next(iter(agent.here)))
    job = part.attempt.stage.job
    job.bundle = digest
    job.save(update_fields=["bundle"])
    answer = client.get(f"/agent/v1/bundles/{digest}", headers=credential(agent))
    assert b"".join(answer) == data


def test_joining_over_http(client: Client, yard: Yard) -> None:
    token = fleet.make_join_token(yard.pool)
    body = {"token": token, "name": "fresh"}
    answer = client.post("/agent/v1/enrol", body, content_type="application/json")
    assert answer.status_code == 200
    granted = answer.json()
    assert fleet.authenticate(f"Node {granted['node']}:{granted['credential']}") is not None
    again = client.post("/agent/v1/enrol", body, content_type="application/json")
    assert again.status_code == 403
    assert "join token" in again.json()["detail"]
    assert client.post("/agent/v1/enrol", b"[1", content_type="application/json").status_code == 400
