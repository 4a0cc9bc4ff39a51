"""docker-compose.yml as an administrator uses it: built, brought up, worked with, ended and brought back.

Runs where a docker engine answers on this host and has, or can pull, the images that the file begins with.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

from deploy.local.service import ROOT

WITHOUT_ENGINE = "no docker engine: "
# What a stage tries that has been told where everything is.
THIEF = """
import os, socket, sys
print("uid", os.getuid())
for path in ("/run/yard/django.key", "/run/join/token", "/var/lib/switchyard-agent/node.json"):
    try:
        print("read", open(path).read())
    except OSError as error:
        print("cannot read", path, type(error).__name__)
for name in ("db", "redis"):
    try:
        print("reached", socket.create_connection((name, {"db": 5432, "redis": 6379}[name]), 5))
    except OSError as error:
        print("cannot reach", name)
print("capabilities", next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")))
"""


def docker(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def why_not() -> str:
    """Why the file cannot be brought up here; empty where it can."""
    if shutil.which("docker") is None:
        return "there is no program docker"
    if not os.environ.get("DOCKER_HOST", "unix://").startswith("unix://"):
        return "DOCKER_HOST is another host, whose loopback is not ours"
    for words in (["info"], ["compose", "version"]):
        asked = docker(*words)
        if asked.returncode != 0:
            return f"docker {' '.join(words)}: {asked.stderr.strip()[-200:]}"
    for variable, image in BASES.items():
        named = os.environ.get(variable, image)
        if docker("image", "inspect", named).returncode != 0:
            pulled = docker("pull", "--quiet", named)
            if pulled.returncode != 0:
                return f"{named} is not here and cannot be pulled: {pulled.stderr.strip()[-200:]}"
    return ""


BASES = {
    "YARD_PYTHON_IMAGE": "python:3.13-slim",
    "YARD_POSTGRES_IMAGE": "postgres:18",
    "YARD_VALKEY_IMAGE": "valkey/valkey:9",
}


@dataclass
class Project:
    """One compose project of its own name, image and ports."""

    name: str
    port: int
    agents_port: int
    token: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *words: str) -> str:
        """What docker compose prints; it must succeed."""
        environment = os.environ | {"YARD_PORT": str(self.port), "YARD_IMAGE": f"{self.name}:trial"}
        environment["YARD_AGENTS_PORT"] = str(self.agents_port)
        done = docker("compose", "--project-name", self.name, "--progress", "quiet", *words, environment=environment)
        assert done.returncode == 0, f"docker compose {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def up(self, *words: str) -> None:
        self.compose("up", "--detach", "--wait", "--wait-timeout", "600", *words)

    def manage(self, *words: str) -> str:
        return self.compose("exec", "-T", "web", "python", "manage.py", *words).strip()

    def yard(self, *words: str) -> str:
        """What the yard command prints, of one who has a token; it must succeed."""
        environment = os.environ | {"YARD_URL": self.url, "YARD_TOKEN": self.token, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "switchyard", *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"yard {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def containers(self) -> list[dict[str, object]]:
        """Every container of it, as docker compose tells of it."""
        told = self.compose("ps", "--all", "--format", "json").strip()
        return list(json.loads(told)) if told.startswith("[") else [json.loads(line) for line in told.splitlines()]

    def ready(self) -> set[str]:
        asked = Request(f"{self.url}/api/v1/nodes", headers={"Authorization": f"Bearer {self.token}"})
        with urlopen(asked, timeout=30) as answer:
            return {node["name"] for node in json.load(answer)["results"] if node["state"] == "READY"}


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    reason = why_not()
    if reason:
        pytest.skip(WITHOUT_ENGINE + reason)
    with socket.socket() as door, socket.socket() as other:
        door.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        made = Project(f"yardtrial{os.getpid()}", door.getsockname()[1], other.getsockname()[1])
    try:
        made.up("--build")
        made.token = made.manage("yard_token", "admin", "--days", "1")
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "20")
        docker("image", "rm", f"{made.name}:trial")


def test_all_are_healthy_and_what_prepares_has_ended_well(project: Project) -> None:
    states = {each["Service"]: (each["State"], each["Health"], each["ExitCode"]) for each in project.containers()}
    for name in ("secrets", "migrate"):
        assert states.pop(name) == ("exited", "", 0)
    assert states
    assert set(states.values()) == {("running", "healthy", 0)}


def test_only_the_two_servers_are_open_on_the_host(project: Project) -> None:
    doors = {
        (each["Service"], door["URL"], door["PublishedPort"])
        for each in project.containers()
        for door in each["Publishers"] or []  # type: ignore[attr-defined]
        if door["PublishedPort"]
    }
    assert doors == {("web", "127.0.0.1", project.port), ("gateway", "127.0.0.1", project.agents_port)}


def test_the_documented_link_signs_in_once(project: Project) -> None:
    link = project.manage("sign_in_link")
    assert link.startswith(project.url)
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with browser.open(link, timeout=30) as answer:
        assert answer.url == f"{project.url}/"
        assert b"<title>Overview" in answer.read()
    with pytest.raises(HTTPError) as refused:
        build_opener(HTTPCookieProcessor(CookieJar())).open(link, timeout=30)
    with refused.value as answer:
        assert answer.code == 410


def test_nothing_that_opens_a_door_is_printed(project: Project) -> None:
    printed = project.compose("logs", "--no-color")
    for path in ("/run/yard/django.key", "/run/yard/database.password"):
        assert project.compose("exec", "-T", "web", "cat", path).strip() not in printed
    assert project.compose("exec", "-T", "agent-1", "cat", "/run/join/token").strip() not in printed
    assert "/sign-in/" not in project.compose("logs", "--no-color", "secrets", "migrate")


def test_a_real_job_of_stages_completes_with_its_output(project: Project, tmp_path: Path) -> None:
    assert project.ready() == {"agent-1", "agent-2"}
    folder = shutil.copytree(ROOT / "examples" / "finetune", tmp_path / "finetune")
    told = project.yard("submit", "--wait", "--env", "FINETUNE_STEPS=60", "--quiet", str(folder / "job.yaml"))
    number = told.split()[0]
    assert "COMPLETED" in project.yard("ps", "--all")
    assert "tokens learned from" in project.yard("logs", number, "--stage", "preprocess")


def test_a_stage_reaches_no_key_no_token_and_no_store(project: Project) -> None:
    said = project.yard("run", "--no-workdir", "--cpus", "1", "--", "python3", "-c", THIEF)
    assert "uid 65534" in said
    assert said.count("cannot read") == 3
    assert said.count("cannot reach") == 2
    assert "capabilities 0000000000000000" in said


def test_what_is_recorded_outlives_kills_a_restart_and_an_end(project: Project) -> None:
    number = project.yard("submit", "--wait", "--quiet", "--no-workdir", "--", "echo", "kept").split()[0]

    def is_kept() -> None:
        assert project.ready() == {"agent-1", "agent-2"}
        assert project.yard("logs", number) == "kept\n"
        assert "again" in project.yard("run", "--no-workdir", "--", "echo", "again")

    for words in (["kill", "--signal", "KILL"], ["restart"], ["down"]):
        project.compose(*words)
        project.up()
        is_kept()


def test_an_administrators_storage_of_a_pool_is_kept(project: Project) -> None:
    ask = "from controlplane.pools.models import Pool; p = Pool.objects.get(name='simulated'); "
    project.manage("shell", "--command", ask + "p.storage_path = '/elsewhere'; p.save()")
    project.compose("run", "--rm", "migrate")
    assert project.manage("shell", "--command", ask + "print(p.storage_path)").splitlines()[-1] == "/elsewhere"
