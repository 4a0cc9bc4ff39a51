"""docker-compose.yml is in step with the code: images, commands, options and variables exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.service import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "switchyard"}
OTHERS = {name: service for name, service in SERVICES.items() if name not in OURS}


def sources() -> Iterator[Path]:
    for room in ("agents", "controlplane", "deploy", "scheduler"):
        yield from (ROOT / room).rglob("*.py")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_parts_of_a_production_stack_are_there() -> None:
    assert set(SERVICES) >= {"db", "redis", "migrate", "web", "worker", "scheduler", "beat", "agent-1", "agent-2"}


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_that_stays_is_checked_for_health(name: str) -> None:
    service = SERVICES[name]
    if service.get("restart") == "unless-stopped":
        assert service["healthcheck"]["test"]


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_read_by_the_code(name: str) -> None:
    text = "".join(path.read_text() for path in sources())
    by_libpq = {"PGPASSFILE"}
    unread = [
        variable
        for variable in (OURS[name].get("environment") or {})
        if f'"{variable}"' not in text and variable not in by_libpq
    ]
    assert unread == []


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_understood_by_the_program_it_starts(name: str) -> None:
    program, *arguments = OURS[name]["command"]
    match program:
        case "python":
            assert arguments[0] == "-m"
            understood_by_module(arguments[1], arguments[2:])
        case "uvicorn":
            module, _, attribute = arguments[0].partition(":")
            assert find_spec(module) is not None
            assert attribute == "application"
            every_option_exists(["uvicorn"], arguments)
        case "celery":
            understood_by_celery(arguments)
        case _:
            pytest.fail(f"{program} is not a program of the image")


def understood_by_module(module: str, arguments: list[str]) -> None:
    if module == "agents":
        from agents.main import parser

        parsed = parser().parse_args(arguments)
        assert parsed.url == "http://127.0.0.1:8470"
    else:
        assert module == "deploy.container"
        from deploy.container import parser as container_parser

        container_parser().parse_args(arguments)


def understood_by_celery(arguments: list[str]) -> None:
    assert option(arguments, "-A") == "controlplane"
    assert find_spec("controlplane.celery") is not None
    command, options = arguments[2], arguments[3:]
    every_option_exists(["celery", "-A", "controlplane", command], options)


def every_option_exists(program: list[str], arguments: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", *program, "--help"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
    ).stdout
    for name in arguments:
        if name.startswith("--"):
            assert re.search(rf"{name}\b", shown), f"{' '.join(program)} has no {name}"


def test_every_queue_that_tasks_go_to_has_a_worker() -> None:
    from django.conf import settings

    served = {
        queue
        for service in OURS.values()
        if "--queues" in service["command"]
        for queue in option(service["command"], "--queues").split(",")
    }
    wanted = {settings.CELERY_TASK_DEFAULT_QUEUE} | {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()}
    assert served == wanted


def test_the_addresses_name_services_of_this_file() -> None:
    environment = OURS["web"]["environment"]
    assert re.search(r"@(\w+):", environment["DATABASE_URL"])[1] in SERVICES  # type: ignore[index]
    assert re.search(r"//(\w+):", environment["REDIS_URL"])[1] in SERVICES  # type: ignore[index]


def test_nothing_secret_stands_in_the_file() -> None:
    for service in SERVICES.values():
        for variable, value in (service.get("environment") or {}).items():
            if re.search("PASS|SECRET|TOKEN|KEY", variable):
                assert variable.endswith("FILE"), variable
                assert value.startswith("/run/yard/"), variable


def test_only_loopback_is_published() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_other_images_are_the_servers_that_tests_run_on() -> None:
    """A major version below what the embedded default runs would be a promise that no test keeps."""
    from deploy.local import postgres, valkey

    def major(*command: str) -> str:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return re.search(r"(\d+)\.", said)[1]  # type: ignore[index]

    images = {name: service["image"].rsplit(":", 1) for name, service in OTHERS.items()}
    assert images["db"] == ["postgres", major(str(postgres.binaries() / "postgres"), "--version")]
    assert images["redis"] == ["valkey/valkey", major(str(valkey.binary()), "--version")]


def test_the_image_holds_what_its_commands_need() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    rooms = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"tests", "bench"}
    assert copied >= rooms
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed >= copied | {"requirements.txt", "manage.py", "pyproject.toml"}


def test_the_image_starts_what_the_web_service_starts() -> None:
    command = re.search(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert command
    assert yaml.safe_load(command[1]) == OURS["web"]["command"]


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    from deploy.container import make_secrets

    make_secrets(tmp_path)
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    make_secrets(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == first
    assert set(first) == {"database.password", "django.key", "pgpass"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
