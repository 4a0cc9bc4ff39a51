"""docker-compose.yml is in step with the code: images, commands, options and variables exist, and doors stay shut.

``test_compose_up.py`` brings it up where a container engine answers.
"""

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

TEXT = (ROOT / "docker-compose.yml").read_text()
# What docker compose itself reads, or passes on to a program of the image that is not ours.
READ_BY_OTHERS = {"PGPASSFILE": "libpq", "FORWARDED_ALLOW_IPS": "uvicorn"}


def plain(value: Any) -> Any:
    """What the file says where nobody sets a variable."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case str():
            former = None
            while former != value:
                former, value = value, re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", value)
    return value


COMPOSE: dict[str, Any] = plain(yaml.safe_load(TEXT))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "switchyard"}
OTHERS = {name: service for name, service in SERVICES.items() if name not in OURS}
# Nothing of ours imports from its working folder, which a job might write.
RUNS_AGENT = ["python", "-P", "-m", "agents"]
AGENTS = {name: service for name, service in OURS.items() if service["command"][: len(RUNS_AGENT)] == RUNS_AGENT}
STAY = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """Where each volume is, by its name."""
    return dict(each.split(":")[:2] for each in service.get("volumes", []))


def sources() -> Iterator[Path]:
    for room in ("agents", "controlplane", "deploy", "scheduler"):
        yield from (ROOT / room).rglob("*.py")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_parts_of_a_production_stack_are_there() -> None:
    assert set(SERVICES) >= {
        "db",
        "redis",
        "migrate",
        "web",
        "gateway",
        "worker",
        "scheduler",
        "beat",
        "agent-1",
        "agent-2",
    }


@pytest.mark.parametrize("name", STAY)
def test_each_service_that_stays_comes_back_and_is_checked_for_health(name: str) -> None:
    assert STAY[name]["restart"] == "unless-stopped"
    check = STAY[name]["healthcheck"]
    assert check["test"]
    assert {"interval", "timeout", "retries"} <= set(check)


@pytest.mark.parametrize("name", SERVICES.keys() - STAY.keys())
def test_each_service_that_ends_is_waited_for(name: str) -> None:
    waited = [other["depends_on"][name] for other in SERVICES.values() if name in other.get("depends_on", {})]
    assert waited
    assert all(each == {"condition": "service_completed_successfully"} for each in waited)


@pytest.mark.parametrize("name", SERVICES)
def test_whoever_depends_on_one_that_stays_waits_for_its_health(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other not in STAY or how == {"condition": "service_healthy"}


def test_the_image_is_built_once_and_shared() -> None:
    builders = {name for name, service in SERVICES.items() if "build" in service}
    assert builders == {"secrets"}
    assert len({service["image"] for service in OURS.values()}) == 1


def test_what_the_build_may_be_told_is_asked_for() -> None:
    told = set(OURS["secrets"]["build"]["args"])
    assert told == set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_gets_more_rights_and_logs_have_an_end(name: str) -> None:
    service = SERVICES[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "privileged" not in service
    assert service.get("network_mode", "none") == "none"
    assert not any(each.startswith(("/", ".")) for each in volumes(service)), "a folder of the host"


@pytest.mark.parametrize("name", OURS)
def test_ours_hold_no_right_but_those_that_an_agent_needs(name: str) -> None:
    service = OURS[name]
    assert service["cap_drop"] == ["ALL"]
    if name in AGENTS:
        assert not {"SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "SETPCAP", "MKNOD"} & set(service["cap_add"])
    else:
        assert service["read_only"] is True
        assert "cap_add" not in service
        assert "user" not in service, "the image's own user is not root"


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_sees_no_secret_and_no_store(name: str) -> None:
    """Stages are strangers' code: what their container cannot see, they cannot take."""
    agent = AGENTS[name]
    assert not agent.get("environment")
    assert "env_file" not in agent
    assert not {"secrets", "postgres", "blobs", "decisions"} & volumes(agent).keys()
    assert not set(agent["networks"]) & {net for store in OTHERS.values() for net in store["networks"]}
    assert "--run-as" not in agent["command"], "a root agent runs stages as nobody unless it is told otherwise"


def test_the_router_sees_its_own_key_and_no_store() -> None:
    router = OURS["router"]
    assert set(volumes(router)) == {"router"}
    assert not set(router["networks"]) & {net for store in OTHERS.values() for net in store["networks"]}
    assert option(router["command"], "--key-file") == "/run/router/router.key"
    host = re.fullmatch(r"http://(\w+):8470", option(router["command"], "--control"))
    assert host
    assert host[1] in OURS["web"]["environment"]["YARD_ALLOWED_HOSTS"].split(",")
    assert set(router["networks"]) & set(OURS[host[1]]["networks"])
    assert all(set(router["networks"]) & set(agent["networks"]) for agent in AGENTS.values())


def test_the_stores_are_reached_by_the_control_plane_only() -> None:
    for name, service in SERVICES.items():
        for network in service.get("networks", []):
            if COMPOSE["networks"][network] == {"internal": True}:
                assert name not in AGENTS
    assert all(
        COMPOSE["networks"][network] == {"internal": True} for store in OTHERS.values() for network in store["networks"]
    )


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_joins_the_gateway_by_its_name_with_the_token_that_migrate_leaves(name: str) -> None:
    from agents.main import parser

    command, prepare = AGENTS[name]["command"], OURS["migrate"]["command"]
    parsed = parser().parse_args(command[len(RUNS_AGENT) :])
    assert parsed.url == "http://gateway:8471"
    assert parsed.plain_http
    assert set(AGENTS[name]["networks"]) & set(OURS["gateway"]["networks"])
    assert "gateway" in OURS["gateway"]["environment"]["YARD_ALLOWED_HOSTS"].split(",")
    assert parsed.join_token_file == prepare[-1]
    assert Path(parsed.join_token_file).parent == Path(volumes(AGENTS[name])["join"])
    assert volumes(OURS["migrate"])["join"] == volumes(AGENTS[name])["join"]
    assert volumes(AGENTS[name])["shared"] == prepare[-2]
    assert parsed.serve_peers.startswith(f"{parsed.name}:")
    assert parsed.name == name
    assert volumes(AGENTS[name])[name] == parsed.state


def test_each_volume_is_somebodys() -> None:
    assert {volume for service in SERVICES.values() for volume in volumes(service)} == set(COMPOSE["volumes"])


def test_folders_of_volumes_are_in_the_image_with_their_owner() -> None:
    """A new volume takes owner and mode from the image; one that the image lacks would be root's."""
    made = set(re.findall(r"(?<= )/[\w/-]+", " ".join(re.findall(r"install -d .*", (ROOT / "Dockerfile").read_text()))))
    wanted = {place for service in OURS.values() for place in volumes(service).values()}
    assert wanted <= made


def test_workers_renew_the_file_that_their_check_looks_at() -> None:
    for service in (OURS["scheduler"], OURS["worker"]):
        assert service["environment"]["YARD_ALIVE_FILE"] in service["healthcheck"]["test"]


@pytest.mark.parametrize("name", [name for name in OURS if "healthcheck" in OURS[name]])
def test_each_check_of_ours_is_understood(name: str) -> None:
    from deploy.container import parser as container_parser

    kind, *words = OURS[name]["healthcheck"]["test"]
    runs = [words] if kind == "CMD" else [run.split() for run in words[0].split(" || ")]
    for program, flag, *rest in runs:
        assert program == "python"
        if flag == "-c":
            compile(rest[0], name, "exec")
        else:
            assert (flag, *rest[:2]) == ("-P", "-m", "deploy.container")
            assert container_parser().parse_args(rest[2:]).command == "recent"


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_read_by_the_code(name: str) -> None:
    text = "".join(path.read_text() for path in sources())
    unread = [
        variable
        for variable in (OURS[name].get("environment") or {})
        if f'"{variable}"' not in text and variable not in READ_BY_OTHERS
    ]
    assert unread == []


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_understood_by_the_program_it_starts(name: str) -> None:
    program, *arguments = OURS[name]["command"]
    match program:
        case "python":
            assert arguments[:2] == ["-P", "-m"]
            understood_by_module(arguments[2], arguments[3:])
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

        parser().parse_args(arguments)
    elif module == "router":
        from router.__main__ import command_line

        command_line().parse_args(arguments)
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
    assert served == set(settings.QUEUES)


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


def test_only_the_three_servers_are_published_and_on_loopback_only() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "web": ["127.0.0.1:8470:8470"],
        "gateway": ["127.0.0.1:8471:8471"],
        "router": ["127.0.0.1:8472:8472"],
    }


def test_the_address_that_people_are_told_is_the_port_that_is_published() -> None:
    told = re.search(r"YARD_URL: (.*)", TEXT)
    published = re.search(r"ports: \[\"(.*)\"\]", TEXT)
    assert told
    assert published
    port = "${YARD_PORT:-8470}"
    assert port in told[1]
    assert port in published[1]


def test_each_variable_that_an_administrator_may_set_is_documented() -> None:
    page = (ROOT / "docs" / "how-to" / "production.md").read_text()
    assert [name for name in set(re.findall(r"\$\{(\w+)", TEXT)) if f"`{name}`" not in page] == []


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

    def made() -> dict[str, str]:
        make_secrets(tmp_path / "yard", tmp_path / "router")
        return {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}

    first = made()
    assert made() == first
    names = ("database.password", "django.key", "pgpass", "router.key", "secrets.keys")
    assert set(first) == {"router/router.key", *(f"yard/{name}" for name in names)}
    assert first["router/router.key"] == first["yard/router.key"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*") if path.is_file())
