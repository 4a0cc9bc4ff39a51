"""A device of any kind by a command: what it prints is checked field by field, and what does not fit is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.devices import visible
from agents.devices.card import UnreadableOutput
from agents.devices.vendors import ProbedHost, command, discover
from agents.main import main
from agents.protocol import DeviceClaim

ROOT = Path(__file__).resolve().parents[2]
GOOD: dict[str, Any] = {"uuid": "q-0", "kind": "qpu", "vendor": "example", "model": "Q", "index": 0}


def told(**changes: object) -> str:
    device = {name: value for name, value in {**GOOD, **changes}.items() if value is not ...}
    return json.dumps({"devices": [GOOD, device] if "uuid" in changes or "index" in changes else [device]})


def test_the_least_that_a_device_must_say() -> None:
    (card,) = command.parse(json.dumps({"devices": [GOOD]}))
    assert (card.uuid, card.kind, card.vendor, card.model, card.index) == ("q-0", "qpu", "example", "Q", 0)
    assert (card.utilisation, card.power_w, card.memory_used_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (told(kind=...), "devices[0]: object missing required field `kind`"),
        (told(kind="QPU!"), "devices[0].kind: expected `str` matching regex"),
        (told(kind="cpu"), "devices[0].kind: the agent finds the CPU itself"),
        (told(memory_bytes="12"), "devices[0].memory_bytes: expected `int`, got `str`"),
        (told(memory_bytes=-1), "devices[0].memory_bytes: expected `int` >= 0"),
        (told(utilisation=97), "devices[0].utilisation: expected `float` <= 1.0"),
        (told(power_w=-3.0), "devices[0].power_w: expected `float` >= 0.0"),
        (told(energy_j=-1.0), "devices[0].energy_j: expected `float` >= 0.0"),
        (told(health="SO-SO"), "devices[0].health: invalid enum value 'SO-SO'"),
        (told(features={"watts": "many"}), "devices[0].features[...]: expected `float`, got `str`"),
        (told(colour="red"), "devices[0]: object contains unknown field `colour`"),
        (told(uuid="q-1"), "devices[1].index: another device has the same"),
        (told(index=1), "devices[1].uuid: another device has the same"),
        (told(uuid="a/b"), "devices[1].uuid: expected `str` matching regex"),
        (json.dumps([GOOD]), "its top: expected `object`, got `array`"),
        ('{"devices": 5}', "devices: expected `array`, got `int`"),
        ('{"devices": [', "its output is no JSON"),
    ],
)
def test_bad_output_is_refused_with_the_field(text: str, words: str) -> None:
    with pytest.raises(UnreadableOutput, match=re.escape(words)):
        command.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[command]]\nname = "x"\n', "command[0]: object missing required field `run`"),
        ('[[command]]\nname = "x"\nrun = []\n', "command[0].run: expected `array` of length >= 1"),
        ('[[command]]\nname = "x"\nrun = "list it"\n', "command[0].run: expected `array`, got `str`"),
        ('[[command]]\nname = "x"\nrun = ["a"]\ntimeout_s = 900\n', "command[0].timeout_s: expected `float` <= 60.0"),
        ('[[command]]\nname = "x"\nrun = ["a"]\nevery = 5\n', "command[0]: object contains unknown field `every`"),
        ('[[command]]\nname = "x"\nrun = ["a"]\n' * 2, 'two commands named "x"'),
        ("[[command", "is no TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_file_stops_the_agent_with_a_sentence(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "probes.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        command.read_commands(path)
    arguments = ["--url", "http://127.0.0.1:9", "--state", str(tmp_path / "state"), "--probes", str(path)]
    assert main(arguments) == 1
    assert words in capsys.readouterr().err


def test_devices_of_a_command_are_told_to_their_stage_and_hidden_from_others() -> None:
    shown = command.VisibleDevices(vendor="testbench", variables=["TESTBENCH_VISIBLE"], none="")
    listed = command.Command(name="bench", run=["no-such-program"], visible=shown)
    found = discover(ProbedHost("test", commands=(listed,)))
    assert found["command-bench"].discover() == []
    assert found["command-bench"].notes() == ["no-such-program is not installed"]
    claim = DeviceClaim("q-3", "qpu", "testbench", "Q", 3, 1000, 0)
    assert visible.variables([claim])["TESTBENCH_VISIBLE"] == "3"
    assert visible.variables([])["TESTBENCH_VISIBLE"] == ""
    for probe in found.values():
        probe.close()


def test_the_example_lists_a_simulated_device_that_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = command.read_commands(ROOT / "examples/qubo/probes.toml")
    (probe,) = command.probes(ProbedHost("test", commands=commands)).values()
    (device,) = probe.discover()
    assert (device.kind, device.simulated, device.health) == ("qpu", True, "OK")
    assert device.features["watts"] > 0
    assert [sample.uuid for sample in probe.sample([])] == [device.uuid]


def test_the_page_on_commands_names_every_field() -> None:
    page = (ROOT / "docs/how-to/any-device.md").read_text()
    for shape in (command.Listed, command.Command, command.VisibleDevices):
        for field in msgspec.structs.fields(shape):
            assert f"`{field.name}`" in page, f"{shape.__name__}.{field.name} is not described"
