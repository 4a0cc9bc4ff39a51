"""The systemd units start what docker-compose.yml starts."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from deploy.local.service import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def read(unit: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return parser


@pytest.mark.parametrize("name", ["web", "gateway", "scheduler", "worker", "questions", "beat", "router"])
def test_a_unit_runs_its_containers_command(name: str) -> None:
    unit = read(ROOT / "deploy" / "systemd" / f"switchyard-{name}.service")
    program, *options = shlex.split(unit["Service"]["ExecStart"].replace("%%", "%"))
    other_program, *other = SERVICES[name]["command"]
    assert Path(program).name == other_program
    places = {  # the container's and the host's
        "0.0.0.0": "127.0.0.1",
        "/tmp/beat": "/var/lib/switchyard/beat",
        "http://web:8470": "http://127.0.0.1:8470",
        "/run/router/router.key": "%d/router.key",
    }
    assert options == [places.get(word, word) for word in other]


def test_the_agents_options_exist() -> None:
    from agents.main import parser

    unit = read(ROOT / "deploy" / "systemd" / "switchyard-agent.service")
    _, safe, flag, module, *options = shlex.split(unit["Service"]["ExecStart"])
    assert (safe, flag, module) == ("-P", "-m", "agents")
    parser().parse_args(options)


def test_the_end_of_the_agent_ends_no_stage() -> None:
    assert read(ROOT / "deploy" / "systemd" / "switchyard-agent.service")["Service"]["KillMode"] == "process"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_unit_comes_back(unit: Path) -> None:
    assert read(unit)["Service"]["Restart"] == "always"


def test_the_agent_tells_systemd_that_it_is_up_and_that_it_goes_round() -> None:
    service = read(ROOT / "deploy" / "systemd" / "switchyard-agent.service")["Service"]
    assert (service["Type"], service["NotifyAccess"], service["WatchdogSec"]) == ("notify", "main", "60")
