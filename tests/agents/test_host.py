"""One probe that hangs, dies or lags never holds up the others, and what comes late is not lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agents.protocol import Device, DeviceClaim, DeviceError, DeviceSample
from agents.runtimes.engine_watch import EngineWatch
from agents.telemetry.host import HostView


class Stub:
    """A probe of one device; ``gate`` holds it up while it is closed."""

    prompt = False
    period_s = 0.0

    def __init__(self, uuid: str) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.device = Device(uuid, "gpu", "test", "T", 0, 1)
        self.fault: DeviceError | None = None
        self.restless = False

    def discover(self) -> list[Device]:
        self.gate.wait(60)
        self.restless = False
        return [self.device]

    def sample(self, claims: list[DeviceClaim]) -> list[DeviceSample]:
        self.gate.wait(60)
        return [DeviceSample(self.device.uuid, 0.0, utilisation=0.5)]

    def errors(self) -> list[DeviceError]:
        return [self.fault] if self.fault else []

    def notes(self) -> list[str]:
        return []

    def memory_by_process(self) -> dict[str, dict[int, int]]:
        return {}

    def news(self) -> bool:
        return self.restless

    def close(self) -> None:
        self.gate.set()


@pytest.fixture
def stubs() -> Iterator[tuple[Stub, Stub]]:
    made = Stub("one"), Stub("other")
    yield made
    for stub in made:
        stub.close()


def view_of(stubs: tuple[Stub, Stub]) -> HostView:
    return HostView("node", {"one": stubs[0], "other": stubs[1]}, "none", "self", "127.0.0.1")


def uuids(view: HostView) -> list[str]:
    assert view.inventory is not None
    return [device.uuid for device in view.inventory.devices]


def test_a_probe_that_hangs_holds_up_no_other_and_is_heard_when_it_wakes(stubs: tuple[Stub, Stub]) -> None:
    view = view_of(stubs)
    stubs[0].gate.clear()
    # Long enough for the other to answer, on however busy a machine.
    assert view.look(2.0)
    assert uuids(view) == ["other"]
    for _ in range(2):
        assert [sample.uuid for sample in view.sample([], 1.0)] == ["other"]
    stubs[0].gate.set()
    view.sample([], 60.0)
    assert view.is_changed
    assert uuids(view) == ["one", "other"]
    assert not view.look(60.0)
    view.close()


def test_an_engine_that_answers_late_holds_up_nobody_and_is_told_with_a_sample(stubs: tuple[Stub, Stub]) -> None:
    answers = threading.Event()

    def ask() -> str:
        answers.wait(60)
        return "podman 5 (rootless)"

    engine = EngineWatch({}, is_root=False, ask=ask)
    view = HostView("node", {"one": stubs[0]}, "none", "self", "127.0.0.1", engine=engine)
    view.look(0.2)
    assert view.inventory is not None
    assert view.inventory.container_engine == ""
    answers.set()
    for _ in range(200):
        view.sample([], 0.1)
        if view.is_changed:
            break
    assert view.inventory.container_engine == "podman 5 (rootless)"
    view.close()


def test_a_late_sample_comes_with_its_age_and_once(stubs: tuple[Stub, Stub]) -> None:
    view = view_of(stubs)
    view.look(5.0)
    stubs[1].gate.clear()
    assert [sample.uuid for sample in view.sample([], 0.1)] == ["one"]
    stubs[1].gate.set()
    heard: list[str] = []
    while "other" not in heard:
        heard += [sample.uuid for sample in view.sample([], 1.0)]
    assert heard.count("other") == 1
    view.close()


def test_faults_news_and_accelerators_are_told_of_all_probes(stubs: tuple[Stub, Stub]) -> None:
    view = view_of(stubs)
    assert not view.has_accelerators
    view.look(5.0)
    assert view.has_accelerators
    stubs[1].fault, stubs[1].restless = DeviceError("other", "XID_79"), True
    assert view.conditions(False).device_errors == []
    view.sample([], 5.0)
    assert view.is_restless
    assert [error.code for error in view.conditions(False).device_errors] == ["XID_79"]
    view.look(5.0)
    assert not view.is_restless
    view.close()


def test_the_inventory_has_another_hash_only_when_it_differs(stubs: tuple[Stub, Stub]) -> None:
    view = view_of(stubs)
    assert view.look(5.0)
    before = view.hash
    assert not view.look(60.0)
    stubs[0].device = Device("one", "gpu", "test", "T", 0, 1, health="LOST")
    assert view.look(5.0)
    assert view.hash != before
    view.close()


def test_a_device_that_is_held_anew_is_measured_at_once(stubs: tuple[Stub, Stub]) -> None:
    for stub in stubs:
        stub.period_s = 600.0
    view = view_of(stubs)
    view.look()
    held = DeviceClaim("one", "gpu", "test", "T", 0, 1000, 0)

    def measured(claims: list[DeviceClaim]) -> list[str]:
        return sorted(sample.uuid for sample in view.sample(claims, 10.0))

    assert measured([]) == ["one", "other"]
    assert measured([]) == []
    assert measured([held]) == ["one"]
    assert measured([held]) == []
    assert measured([]) == []
    assert measured([held]) == ["one"], "another stage holds it"
    view.close()
