"""Jobs that were submitted on a node while its uplink was cut are in the record once, whatever happened meanwhile."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.local.service import ROOT
from switchyard import node_socket
from switchyard.problem import ApiProblem, Unreachable
from tests.chaos.partition import DOWN, UP, Partition
from tests.chaos.stack import eventually
from tests.chaos.test_job import Yard

pytestmark = pytest.mark.chaos

NAME = "box"
ALLOW = f"""
[[allow]]
account = "{pwd.getpwuid(os.geteuid()).pw_name}"
project = "default"
cpus = 1
running = 4
"""
GRANT = (
    "from controlplane.local_jobs.models import LocalGrant; from controlplane.fleet.models import Node;"
    "from controlplane.accounts.models import Project, Token;"
    f"LocalGrant.objects.create(node=Node.objects.get(name='{NAME}'), project=Project.objects.get(name='default'),"
    "user=Token.objects.order_by('id').first().user)"
)


@pytest.fixture
def uplink(yard: Yard) -> Iterator[Partition]:
    made = Partition(int(yard.up.agents_url.rpartition(":")[2]))
    yield made
    made.close()


def start(yard: Yard, state: Path, url: str) -> None:
    command = [sys.executable, "-m", "agents", "--url", url, "--state", str(state), "--name", NAME]
    more = ["--join-token-file", str(state / "join"), "--run-as", str(os.geteuid()), "--edge", str(state / "edge.toml")]
    yard.agents.append(subprocess.Popen([*command, *more], cwd=ROOT, start_new_session=True))


def submit(at: str, name: str, run: str) -> str:
    job = node_socket.uuid7()
    node_socket.ask(at, "submit", id=job, job={"name": name, "run": run, "cpus": 0.1, "memory": "64MiB"})
    return job


def shown(at: str, job: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = node_socket.ask(at, "show", id=job)
    except Unreachable:
        return {"state": "", "number": None}
    return found


def moment(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


def test_what_ran_while_the_uplink_was_cut_joins_once(yard: Yard, uplink: Partition, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "join").write_text(yard.join_token())
    (state / "edge.toml").write_text(ALLOW)
    start(yard, state, uplink.url)
    assert eventually(lambda: any(n["name"] == NAME and n["state"] == "READY" for n in yard.client.nodes.list()))
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", GRANT], cwd=ROOT, env=yard.up.environment, check=True,
        capture_output=True,
    )  # fmt: skip
    at, ran, go = str(state / "edge.sock"), tmp_path / "ran", tmp_path / "go"
    ran.touch()
    uplink.block(UP, DOWN)
    uplink.cut()
    accepted: list[str] = []

    def accepts() -> bool:
        try:
            accepted.append(submit(at, "short", f"echo short >> {ran}; date +%s.%N; exit 0"))
        except ApiProblem:
            return False
        return True

    assert eventually(accepts)
    short = accepted[0]
    long = submit(at, "long", f"echo long >> {ran}; until [ -e {go} ]; do sleep 0.1; done")
    assert eventually(lambda: shown(at, short)["state"] == "COMPLETED")
    assert eventually(lambda: shown(at, long)["state"] == "RUNNING")
    assert eventually(lambda: any(n["name"] == NAME and n["state"] == "LOST" for n in yard.client.nodes.list()))
    yard.agents[-1].kill()
    yard.agents[-1].wait()
    start(yard, state, uplink.url)
    assert eventually(lambda: shown(at, long)["state"] == "RUNNING")
    failed = submit(at, "failed", f"echo failed >> {ran}; exit 7")
    assert eventually(lambda: shown(at, failed)["state"] == "FAILED")
    uplink.heal()

    def joined() -> bool:
        return all(shown(at, job)["number"] for job in (short, long, failed))

    assert eventually(joined), [shown(at, job) for job in (short, long, failed)]
    # The connection breaks and comes again: what is offered twice joins once.
    uplink.cut()
    one = yard.client.jobs.get(shown(at, short)["number"])
    assert (one.id, one.state, one["project"]) == (short, "COMPLETED", "default")
    assert eventually(lambda: bool("".join(yard.client.jobs.logs(one)).strip()))
    ended = float("".join(yard.client.jobs.logs(one)).strip())
    assert abs(moment(one["ended_at"]) - ended) < 2.0, "it ended when its process did"
    other = yard.client.jobs.get(shown(at, failed)["number"])
    assert other.state == "FAILED"
    assert other.stages[0]["exit_code"] == 7
    running = yard.client.jobs.get(shown(at, long)["number"])
    assert running.state == "RUNNING"
    go.touch()
    running.wait(timeout_s=90)
    assert running.refresh().state == "COMPLETED"
    (line,) = yard.client.jobs.receipt(running)["lines"]
    assert line["allocated_device_s"] > 0
    assert sorted(ran.read_text().split()) == ["failed", "long", "short"], "each ran once"
    numbers = [job.number for job in yard.client.jobs.list() if job.name in ("short", "long", "failed")]
    assert len(numbers) == len(set(numbers)) == 3
    said = [event["text"] for event in yard.client.jobs.events(one)]
    assert any("while it was cut off" in text for text in said), said
