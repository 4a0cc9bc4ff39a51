"""A real agent over the stand-in of NVIDIA's library: what it measures, and what a card that breaks does to a stage."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.protocol import Device, DeviceClaim, DeviceSample, Phase
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order

Cards = Callable[..., None]


@pytest.fixture(scope="module")
def library(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_standin.c")
    target = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, str(source)], check=True)
    return folder


@pytest.fixture
def cards(library: Path, tmp_path: Path, hands: Hands) -> Cards:
    """Writes the state of two cards; the agent, started by the test, looks at them."""
    state = tmp_path / "cards"

    def write(**lines: object) -> None:
        facts: dict[str, object] = {"count": 2, "0.uuid": "GPU-a", "1.uuid": "GPU-b", "0.power": 400_000}
        facts |= {"1.power": 100_000, "0.util": 95} | {name.replace("_", "."): value for name, value in lines.items()}
        draft = state.with_suffix(".draft")
        draft.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        draft.rename(state)

    write()
    hands.environment |= {"LD_LIBRARY_PATH": str(library), "NVML_STANDIN": str(state)}
    return write


def claim(index: int, milli: int = 1000) -> DeviceClaim:
    return DeviceClaim(f"GPU-{'ab'[index]}", "gpu", "nvidia", "H100", index, milli, 0)


def devices(model: Yard, name: str) -> dict[str, Device]:
    inventory = model.side(name).inventory
    return {device.uuid: device for device in inventory.devices} if inventory else {}


def samples(model: Yard, name: str, of: str) -> list[DeviceSample]:
    return [sample for batch in model.side(name).telemetry for sample in batch.devices if sample.uuid == of]


def test_a_stage_is_measured_and_its_end_tells_its_energy(hands: Hands, model: Yard, cards: Cards) -> None:
    hands.start()
    part = uuid.uuid4().hex
    model.want(hands.name, order(part, "sleep", "3", devices=[claim(0, 500), claim(1)]))
    end = model.ended(hands.name, part).exit
    assert end is not None
    assert end.cause == ""
    assert set(end.energy_j) == {"gpu"}
    # Half of 400 W and all of 100 W over the measured time; the first and last sample lie inside the stage's life.
    assert end.energy_j["gpu"] == pytest.approx(300.0 * end.energy_measured_s, rel=0.02)
    assert end.energy_measured_s <= end.ran_s + 1.0
    busy = model.wait(lambda: samples(model, hands.name, "GPU-a"))[-1]
    assert (busy.utilisation, busy.power_w) == (0.95, 400.0)
    (host, *_) = model.wait(lambda: [batch.host for batch in model.side(hands.name).telemetry if batch.host])
    assert "/" in host.free_bytes


def test_a_lost_card_is_told_at_once_and_is_the_cause_when_its_stage_dies(
    hands: Hands, model: Yard, cards: Cards
) -> None:
    hands.start()
    dies, lives = uuid.uuid4().hex, uuid.uuid4().hex
    wait = 'while [ ! -e "$TMPDIR/../../../go" ]; do sleep 0.1; done; exit 3'
    model.want(
        hands.name,
        order(dies, "/bin/sh", "-c", wait, devices=[claim(1)]),
        order(lives, "/bin/sh", "-c", wait, devices=[claim(0)]),
    )
    for part in (dies, lives):
        model.phase(hands.name, part, Phase.RUNNING)
    cards(**{"1_lost": 1})
    model.wait(lambda: [error.uuid for error in model.side(hands.name).report.conditions.device_errors] == ["GPU-b"])
    model.wait(lambda: devices(model, hands.name)["GPU-b"].health == "LOST")
    assert devices(model, hands.name)["GPU-a"].health == "OK"
    (hands.state / "go").touch()
    broken, fine = (model.ended(hands.name, part).exit for part in (dies, lives))
    assert broken is not None
    assert fine is not None
    assert (broken.cause, broken.code, broken.detail) == (
        "DEVICE_ERROR",
        3,
        "GPU-b: GPU is lost; ended with exit code 3",
    )
    assert (fine.cause, fine.code) == ("EXIT_CODE", 3)
    cards()
    model.wait(lambda: devices(model, hands.name)["GPU-b"].health == "OK")


def test_a_driver_that_hangs_holds_up_neither_reports_nor_stages(hands: Hands, model: Yard, cards: Cards) -> None:
    hands.start()
    model.wait(lambda: samples(model, hands.name, "GPU-a"))
    cards(hang=600)
    part = uuid.uuid4().hex
    model.want(hands.name, order(part, "true"))
    assert model.ended(hands.name, part).exit is not None
    first = model.side(hands.name).report
    assert first is not None
    model.wait(lambda: model.side(hands.name).report.seq >= first.seq + 3)
    before = len(model.side(hands.name).telemetry)
    model.wait(lambda: any(b.devices for b in model.side(hands.name).telemetry[before:]))
    assert not any(s.uuid == "GPU-a" for b in model.side(hands.name).telemetry[before:] for s in b.devices)
