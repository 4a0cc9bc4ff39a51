"""Reports that arrive faster than they are recorded: the newest counts, and nothing that was sent once is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer

from agents.protocol import Desired, Inventory, InventoryRef, Kept, Report
from controlplane.dispatch import agent_socket, desired
from controlplane.dispatch.agent_socket import AgentLink, Received
from controlplane.fleet import alarms
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Alarm, Device, Node
from controlplane.pools.models import Pool
from tests.controlplane.test_feed import rows
from tests.controlplane.test_node_credentials import WAIT_S, link, pool
from tests.record.yard import cpu

__all__ = ["pool"]


def host(*devices: Any) -> Inventory:
    return Inventory(
        hostname="h",
        os="Linux",
        arch="x86_64",
        cpus=2,
        memory_bytes=2**34,
        isolation="none",
        runs_as="root",
        devices=list(devices),
    )


def report(seq: int, digest: str = "x", full: Inventory | None = None, kept: Kept | None = None) -> Report:
    inventory = InventoryRef(hash=digest, full=full)
    return Report(
        proto=1, agent="1", boot_id="b", start_seq=1, seq=seq, seen_generation=0, inventory=inventory, kept=kept
    )


async def answer(communicator: ApplicationCommunicator) -> Desired:
    while (output := await communicator.receive_output(WAIT_S))["type"] != "websocket.send":
        pass
    return msgspec.json.decode(output["text"], type=Desired)


async def test_of_reports_that_wait_only_the_newest_is_recorded(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    node, credential = await rows(fleet.enrol, await rows(fleet.make_join_token, pool), "a")
    recorded: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    take = AgentLink._take

    def slowly(self: AgentLink, one: Report, *more: Any) -> Any:
        recorded.append(one.seq)
        begun.set()
        assert go_on.wait(WAIT_S)
        return take(self, one, *more)

    monkeypatch.setattr(AgentLink, "_take", slowly)
    monkeypatch.setattr(agent_socket, "FLOOD_PAUSE_S", 0.0)
    async with link(node, credential) as own:
        assert (await own.receive_output(WAIT_S))["type"] == "websocket.accept"

        async def send(one: Report) -> None:
            await own.send_input({"type": "websocket.receive", "text": msgspec.json.encode(one).decode()})

        await send(report(1))
        while not begun.is_set():
            assert await own.receive_nothing(0.01)
        await send(report(2, full=host(cpu("a"))))
        for seq in range(3, 9):
            await send(report(seq))
        assert await own.receive_nothing()
        go_on.set()
        assert [(await answer(own)).answers_seq, (await answer(own)).answers_seq] == [1, 8]
    assert recorded == [1, 8]
    assert await rows(Device.objects.filter(node=node).count) == 1
    assert (await rows(Node.objects.get, id=node.id)).seq == 8


async def test_orders_that_cannot_be_made_are_an_alarm_and_the_link_lives(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, credential = await rows(fleet.enrol, await rows(fleet.make_join_token, pool), "a")
    async with link(node, credential) as own:
        assert (await own.receive_output(WAIT_S))["type"] == "websocket.accept"
        await own.send_input({"type": "websocket.receive", "text": msgspec.json.encode(report(1)).decode()})
        assert (await answer(own)).answers_seq == 1
        with monkeypatch.context() as broken:
            broken.setattr(desired, "compose", lambda *_: 1 / 0)
            await get_channel_layer().group_send(f"node.{node.id}", {"type": "nudge"})
            async with asyncio.timeout(WAIT_S):
                while not await rows(Alarm.objects.filter(kind=alarms.REPORT, subject="a").exists):  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.02)
        (found,) = await rows(list, Alarm.objects.filter(kind=alarms.REPORT))
        assert found.says == "no orders can be made for it: ZeroDivisionError: division by zero"
        await own.send_input({"type": "websocket.receive", "text": msgspec.json.encode(report(2)).decode()})
        assert (await answer(own)).answers_seq == 2
    assert not await rows(Alarm.objects.filter(kind=alarms.REPORT).exists), "a report that is taken clears it"


def test_what_a_node_says_once_outlives_the_report_that_said_it() -> None:
    kept, full = Kept(digests=["a" * 64]), host()
    once = Received(report(1, full=full, kept=kept), [], None)
    later = Received(report(2), [], None).after(once)
    assert (later.report.seq, later.report.kept, later.report.inventory.full) == (2, kept, full)
    other = Received(report(3, "y"), [], None).after(later)
    assert (other.report.inventory.full, other.report.inventory.hash) == (None, "y"), "it is of another inventory"
    newer = Kept(digests=["b" * 64])
    assert Received(report(4, kept=newer), [], None).after(later).report.kept == newer
