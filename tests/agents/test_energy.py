"""Energy is watts over the time of a claim by its share, and what nobody tells is absent, never 0."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import Device, DeviceClaim, DeviceSample
from agents.telemetry.energy import LONGEST_GAP_S, EnergyMeter

GPU = Device("GPU-a", "gpu", "nvidia", "H100", 0, 1)
OTHER = Device("GPU-b", "gpu", "nvidia", "H100", 1, 1)
CPU = Device("cpu-0", "cpu", "amd", "EPYC", 0, 1, capacity_milli=8000)
KNOWN = {device.uuid: device for device in (GPU, OTHER, CPU)}


def claim(device: Device, milli: int = 1000) -> DeviceClaim:
    return DeviceClaim(device.uuid, device.kind, device.vendor, device.model, device.index, milli, 0)


def drawn(uuid: str, watts: float | None, age_s: float = 0.0, joules: float | None = None) -> DeviceSample:
    return DeviceSample(uuid, age_s, power_w=watts, energy_j=joules)


def test_a_whole_device_and_a_share_of_cores_draw_by_their_share(tmp_path: Path) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU, 500), claim(CPU, 2000)])}
    for second in range(11):
        meter.note([drawn("GPU-a", 300.0), drawn("cpu-0", 80.0)], KNOWN, parts, float(second))
    assert meter.joules("p") == {"gpu": 1500.0, "cpu": 200.0}
    assert meter.measured_s("p") == 10.0


def test_a_kind_with_one_silent_device_is_unknown_and_the_others_are_told(tmp_path: Path) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU), claim(OTHER), claim(CPU, 8000)])}
    for second in range(3):
        meter.note([drawn("GPU-a", 300.0), drawn("GPU-b", None), drawn("cpu-0", 80.0)], KNOWN, parts, float(second))
    assert meter.joules("p") == {"cpu": 160.0}
    assert meter.joules("nobody") == {}


def test_a_silence_is_left_out_and_shows_in_the_measured_span(tmp_path: Path) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU)])}
    for second in (0.0, 1.0, 2.0 + LONGEST_GAP_S, 3.0 + LONGEST_GAP_S):
        meter.note([drawn("GPU-a", 100.0)], KNOWN, parts, second)
    assert meter.joules("p") == {"gpu": 200.0}
    assert meter.measured_s("p") == 2.0


def test_an_agent_that_restarts_goes_on_counting(tmp_path: Path) -> None:
    parts = {"p": (str(tmp_path), [claim(GPU)])}
    first = EnergyMeter()
    for second in range(21):
        first.note([drawn("GPU-a", 100.0)], KNOWN, parts, float(second))
    again = EnergyMeter()
    for second in range(6):
        again.note([drawn("GPU-a", 100.0)], KNOWN, parts, float(second))
    assert again.joules("p")["gpu"] >= 1500.0


@given(
    watts=st.lists(st.floats(0, 1000), min_size=2, max_size=30),
    shares=st.lists(st.integers(1, 1000), min_size=1, max_size=4).filter(lambda found: sum(found) <= 1000),
)
def test_the_parts_of_a_device_never_draw_more_than_the_device(watts: list[float], shares: list[int]) -> None:
    meter = EnergyMeter()
    parts = {f"p{at}": (f"/nowhere/{at}", [claim(GPU, milli)]) for at, milli in enumerate(shares)}
    for second, power in enumerate(watts):
        meter.note([drawn("GPU-a", power)], KNOWN, parts, float(second))
    whole = sum((one + other) / 2 for one, other in itertools.pairwise(watts))
    assert sum(meter.joules(part)["gpu"] for part in parts) <= whole + 0.1 * len(shares)


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"joules": {"gpu": 5}}'])
def test_a_broken_account_on_disk_stops_nobody(tmp_path: Path, broken: str) -> None:
    (tmp_path / "energy.json").write_text(broken)
    meter = EnergyMeter()
    meter.note([drawn("GPU-a", 10.0)], KNOWN, {"p": (str(tmp_path), [claim(GPU)])}, 1.0)
    assert set(meter.joules("p")) == {"gpu"}


def test_what_the_hardware_counted_wins_over_watts_and_bridges_a_silence(tmp_path: Path) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU, 500)])}
    meter.note([drawn("GPU-a", 100.0, joules=1000.0)], KNOWN, parts, 0.0)
    meter.note([drawn("GPU-a", 100.0, joules=1500.0)], KNOWN, parts, 1.0)
    assert meter.joules("p") == {"gpu": 250.0}
    meter.note([drawn("GPU-a", None, joules=2500.0)], KNOWN, parts, 5.0 + LONGEST_GAP_S)
    assert meter.joules("p") == {"gpu": 750.0}
    assert meter.measured_s("p") == 5.0 + LONGEST_GAP_S


@pytest.mark.parametrize("after", [5.0, 1e12], ids=["begun anew", "beyond all reason"])
def test_a_counter_that_was_set_anew_counts_for_nothing_and_watts_stand_in(tmp_path: Path, after: float) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU)])}
    meter.note([drawn("GPU-a", 100.0, joules=9000.0)], KNOWN, parts, 0.0)
    meter.note([drawn("GPU-a", 100.0, joules=after)], KNOWN, parts, 1.0)
    assert meter.joules("p") == {"gpu": 100.0}
    meter.note([drawn("GPU-a", 100.0, joules=after + 70.0)], KNOWN, parts, 2.0)
    assert meter.joules("p") == {"gpu": 170.0}
    assert meter.measured_s("p") == 2.0


def test_two_claims_on_one_device_both_draw(tmp_path: Path) -> None:
    meter = EnergyMeter()
    parts = {"p": (str(tmp_path), [claim(GPU, 300), claim(GPU, 200)])}
    for second, joules in enumerate((0.0, 1000.0)):
        meter.note([drawn("GPU-a", None, joules=joules)], KNOWN, parts, float(second))
    assert meter.joules("p") == {"gpu": 500.0}


def test_what_was_counted_while_no_agent_ran_is_not_lost(tmp_path: Path) -> None:
    parts = {"p": (str(tmp_path), [claim(GPU)])}
    first = EnergyMeter()
    first.note([drawn("GPU-a", None, joules=1000.0)], KNOWN, parts, 100.0)
    again = EnergyMeter()
    again.note([drawn("GPU-a", None, joules=4000.0)], KNOWN, parts, 160.0)
    assert again.joules("p") == {"gpu": 3000.0}
    assert again.measured_s("p") == 60.0


@pytest.mark.parametrize("counters", ["5", "[]", '{"GPU-a": 5}', '{"GPU-a": [1, true]}', '{"GPU-a": ["x", 1]}'])
def test_broken_counters_on_disk_are_left_out(tmp_path: Path, counters: str) -> None:
    (tmp_path / "energy.json").write_text(f'{{"joules": {{"gpu": 5.0}}, "counters": {counters}}}')
    meter = EnergyMeter()
    meter.note([drawn("GPU-a", None, joules=10.0)], KNOWN, {"p": (str(tmp_path), [claim(GPU)])}, 1.0)
    assert meter.joules("p") == {"gpu": 5.0}
