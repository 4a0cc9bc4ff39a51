"""What the meter asks of its view and its line, with both played: one sample at a time, no socket and no clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agents.protocol import DeviceError, Exit, Timers
from agents.telemetry.host import HostView
from agents.telemetry.sampling import Meter
from tests.agents.test_host import Stub


class Stage:
    """A meter over one played device."""

    def __init__(self) -> None:
        self.probe = Stub("card")
        self.view = HostView("node", {"stub": self.probe}, "none", "self", "127.0.0.1")
        self.node: Any = SimpleNamespace(live=[], parts={}, timers=Timers(), changed=asyncio.Event())
        self.inventories = 0
        link: Any = SimpleNamespace(inventory_changed=self._resend)
        server: Any = None
        self.view.look(5.0)
        self.meter = Meter(self.node, self.view, link, server)

    def _resend(self) -> None:
        self.inventories += 1

    async def sample(self) -> None:
        await self.meter._sample()


@pytest.fixture
async def played() -> Any:
    made = Stage()
    yield made
    made.view.close()


async def test_a_calm_second_says_nothing(played: Stage) -> None:
    await played.sample()
    await played.sample()
    assert (played.inventories, played.node.changed.is_set()) == (0, False)


async def test_a_fault_is_reported_at_once_and_the_inventory_again_when_it_is_gone(played: Stage) -> None:
    await played.sample()
    played.probe.fault, played.probe.restless = DeviceError("card", "XID_79"), True
    await played.sample()
    assert played.node.changed.is_set()
    assert played.inventories == 1
    played.probe.fault = None
    await played.sample()
    assert played.inventories == 2
    await played.sample()
    assert played.inventories == 2


async def test_a_fault_that_the_look_does_not_confirm_leaves_no_mark_behind(played: Stage) -> None:
    await played.sample()
    played.probe.fault, played.probe.restless = DeviceError("card", "DEVICE_LOST"), True
    heal = played.probe.discover

    def discover() -> Any:
        played.probe.fault = None
        return heal()

    played.probe.discover = discover  # type: ignore[method-assign]
    await played.sample()
    assert played.view.conditions(False).device_errors == []
    assert played.inventories == 1


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (Exit(code=1, cause="EXIT_CODE"), "DEVICE_ERROR"),
        (Exit(signal=7, cause="SIGNAL"), "DEVICE_ERROR"),
        (Exit(code=0), ""),
        (Exit(signal=9, cause="OUT_OF_MEMORY"), "OUT_OF_MEMORY"),
        (Exit(code=1, cause="EXIT_CODE", stopped=True), "EXIT_CODE"),
    ],
)
async def test_a_broken_device_is_blamed_only_for_ends_that_it_may_have_caused(
    played: Stage, end: Exit, cause: str
) -> None:
    held = SimpleNamespace(intent=SimpleNamespace(folder="/nowhere", devices=[SimpleNamespace(uuid="card")]))
    other = SimpleNamespace(intent=SimpleNamespace(folder="/nowhere", devices=[SimpleNamespace(uuid="another")]))
    played.node.parts = {"p": held, "q": other}
    played.probe.fault = DeviceError("card", "XID_79", "Xid 79: the card fell off the bus")
    await played.sample()
    judged = played.node.measured("p", end)
    assert judged.cause == cause
    assert ("fell off the bus" in judged.detail) == (cause == "DEVICE_ERROR")
    assert played.node.measured("q", end) == end
