"""What an agent tells Prometheus of its devices, and that nobody who asks can keep it from its work."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agents.protocol import Device, DeviceError, DeviceSample
from agents.telemetry import metrics_server
from agents.telemetry.metrics import FRESH_S, METRICS, NATIVE, NodeReading, told
from agents.telemetry.metrics_server import HEAD_BYTES, MOST_CLIENTS, MetricsServer, endpoint

H100 = Device("GPU-a", "gpu", "NVIDIA", "NVIDIA H100", 3, 80 << 30, pci="0000:1b:00.0")
ASCEND = Device("npu-b", "npu", "huawei", "Ascend 910B4", 0, 32 << 30)
LONG = 32 << 20  # more than sockets buffer
BUSY = DeviceSample(
    "GPU-a", 0.0, utilisation=0.5, memory_used_bytes=20 << 30, power_w=310.5, temperature_c=61.0, clock_hz=1.98e9,
    throttled="power, thermal", energy_j=12_345.5,
)  # fmt: skip


def seen(*devices: Device, at: float = 100.0, errors: tuple[DeviceError, ...] = (), node: str = "n1") -> NodeReading:
    newest = {"GPU-a": (at, BUSY), "npu-b": (at, DeviceSample("npu-b", 0.0, utilisation=0.25, power_w=90.0))}
    return NodeReading(node, devices, newest, frozenset({"GPU-a"}), errors, 2)


def series(*nodes: NodeReading, now: float = 100.0) -> dict[tuple[str, str], float]:
    """The values by name and, where a series has one, its last label."""
    families = text_string_to_metric_families(told(nodes, now))
    return {(s.name, next(reversed(s.labels.values()))): s.value for family in families for s in family.samples}


def test_it_tells_what_was_measured_by_our_names_and_by_the_vendors() -> None:
    found = series(seen(H100, ASCEND, errors=(DeviceError("GPU-a", "XID_79"),)))
    ours = {name.removeprefix("switchyard_device_"): v for (name, last), v in found.items() if last == "NVIDIA H100"}
    assert ours == {
        "utilization_ratio": 0.5,
        "memory_used_bytes": 20 << 30,
        "memory_total_bytes": 80 << 30,
        "power_watts": 310.5,
        "temperature_celsius": 61,
        "clock_hertz": 1.98e9,
        "energy_joules_total": 12_345.5,
        "health": 1,
        "allocated": 1,
    }
    assert {last for name, last in found if name == "switchyard_device_throttled"} == {"power", "thermal"}
    assert found["switchyard_device_fault", "XID_79"] == 1
    assert found["switchyard_agent_parts", "n1"] == 2
    assert "\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{" in told([seen(H100)], 100.0)
    native = {name: v for (name, last), v in found.items() if name.startswith(("DCGM", "npu_")) and last == "n1"}
    assert native == {
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "DCGM_FI_DEV_FB_USED": 20 * 1024,
        "DCGM_FI_DEV_FB_FREE": 60 * 1024,
        "DCGM_FI_DEV_POWER_USAGE": 310.5,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total": 12_345_500,  # so this parser calls every counter
        "npu_chip_info_utilization": 25,
        "npu_chip_info_hbm_total_memory": 32 * 1024,
        "npu_chip_info_power": 90,
        "npu_chip_info_health_status": 1,
    }


def test_nothing_is_told_of_what_is_unknown_old_or_only_played() -> None:
    names = {name for name, _ in series(seen(H100), now=100 + FRESH_S + 1)}
    assert "switchyard_device_memory_total_bytes" in names
    assert names.isdisjoint({"switchyard_device_power_watts", "DCGM_FI_DEV_POWER_USAGE"})
    played = Device("GPU-a", "gpu", "nvidia", "H100", 0, 80 << 30, simulated=True)
    assert not [name for name, _ in series(seen(played)) if name.startswith("DCGM")]


@given(st.text(max_size=30), st.text(max_size=30))
def test_whatever_a_device_is_called_the_page_can_be_read(model: str, node: str) -> None:
    device = Device("GPU-a", "gpu", "nvidia", model, 0, 0)
    families = {
        family.name: family for family in text_string_to_metric_families(told([seen(device, node=node)], 100.0))
    }
    labels = families["switchyard_device_health"].samples[0].labels
    assert (labels["model"], labels["node"]) == (model, node)


def test_every_name_is_listed() -> None:
    listed = {one.name for one in METRICS} | {one.name for some in NATIVE.values() for one in some}
    page = told([seen(H100, ASCEND, errors=(DeviceError("GPU-a", "XID_79"),))], 100.0)
    assert {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")} <= listed


# -- the server


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(metrics_server, "HEAD_S", 0.2)
    monkeypatch.setattr(metrics_server, "ANSWER_S", 0.2)
    server = MetricsServer(lambda: "up 1\n")
    yield await server.open("127.0.0.1", 0)
    await server.close()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_it_answers_one_address_only(port: int) -> None:
    def status(answer: bytes) -> int:
        return int(answer.split()[1])

    answer = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nup 1\n")
    assert (await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    assert status(await ask(port, b"GET /metrics?a=b HTTP/1.0\r\n\r\n")) == 200
    assert status(await ask(port, b"GET /../etc/passwd HTTP/1.1\r\n\r\n")) == 404
    assert status(await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")) == 405
    assert status(await ask(port, b"\x16\x03\x01 hello\r\n\r\n")) == 400
    assert await ask(port, b"GET /" + b"x" * 3 * HEAD_BYTES) == b"", "too long to be a request"


async def test_who_is_slow_or_many_is_put_out_and_the_next_is_served(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CLIENTS + 5)]
    ends = await asyncio.gather(*(reader.read() for reader, _ in idle), return_exceptions=True)
    assert all(isinstance(end, ConnectionError) or end == b"" for end in ends), "none is kept waiting for ever"
    assert (await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"up 1\n")
    for _, writer in idle:
        writer.close()


async def test_who_does_not_read_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "ANSWER_S", 0.2)
    server = MetricsServer(lambda: "x" * LONG)
    port = await server.open("127.0.0.1", 0)
    deaf = [await asyncio.open_connection("127.0.0.1", port, limit=1024) for _ in range(MOST_CLIENTS)]
    async with asyncio.timeout(60):
        while server.clients < MOST_CLIENTS:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        for _, writer in deaf:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        # Whoever began to read before being put out would get all.
        while server.clients:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    assert (await ask(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n"), "the next is served"
    ends = await asyncio.gather(*(reader.read() for reader, _ in deaf), return_exceptions=True)
    assert all(isinstance(end, ConnectionError) or len(end) < LONG for end in ends)  # type: ignore[arg-type]
    for _, writer in deaf:
        writer.close()
    await server.close()


async def test_a_page_that_fails_is_an_answer_and_no_end() -> None:
    def fail() -> str:
        raise RuntimeError("no devices today")

    server = MetricsServer(fail)
    port = await server.open("127.0.0.1", 0)
    for _ in range(2):
        assert b" 500 " in await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
    await server.close()


def test_an_address_is_said_whole() -> None:
    assert endpoint("127.0.0.1:9471") == ("127.0.0.1", 9471)
    assert endpoint("[::1]:9471") == ("::1", 9471)
    for wrong in (":9471", "9471", "127.0.0.1", "::1:9471", "a:0", "a:70000", "[x]:1", "a b:1"):
        with pytest.raises(argparse.ArgumentTypeError):
            endpoint(wrong)
