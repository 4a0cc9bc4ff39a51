"""Pilots in the record and in a real Ray agree, whatever is killed, lost or refused in between.

Here a pilot's agent is a program that waits: nothing joins. tests/providers/test_ray.py has real agents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import connection
from django.utils import timezone

from controlplane.fleet.models import Alarm, Node
from controlplane.operations import pilots as duty
from controlplane.providers.models import NodeProvider, Pilot
from deploy.local.service import ROOT
from tests.conftest import CLUSTER
from tests.providers.ray_cluster import RayOnThisHost
from tests.providers.scripted_http import Asked, ScriptedServer, serving
from tests.record.yard import Yard

pytestmark = pytest.mark.django_db(transaction=True)

SHAPE = {"name": "small", "cpus": 1, "memory_gib": 0.25}


@pytest.fixture
def lab(yard: Yard, ray: RayOnThisHost, tmp_path: Path, settings: Any) -> Iterator[NodeProvider]:
    """A provider that wants one node always."""
    settings.PROVIDER_ENDPOINTS = str(ray.endpoints)
    waits = tmp_path / "agent"
    waits.write_text(
        f'#!/bin/sh\ncase $1 in -c) exec {sys.executable} "$@";; esac\n'
        "case $* in *stop-all*) exit 0;; esac\nexec sleep 600\n"
    )
    waits.chmod(0o755)
    yield NodeProvider.objects.create(
        name="lab", kind="ray", pool=yard.pool, shapes=[SHAPE], min_nodes=1, max_nodes=2, hours=0.5,
        settings={"python": str(waits), "state_below": str(tmp_path), "endpoint": "ray", "grace_s": 1},
    )  # fmt: skip
    ray.empty()


def look() -> None:
    """Let the duty look at all providers now, also where it would wait before it asks again."""
    NodeProvider.objects.update(retry_at=None)
    duty.look()


def the_pilot() -> Pilot:
    return Pilot.objects.exclude(state="GONE").get()


def until(holds: Callable[[], bool], ray: RayOnThisHost) -> None:
    def looked() -> bool:
        look()
        return holds()

    ray.until(looked)


def test_a_pilot_is_asked_for_once_runs_and_leaves_when_its_provider_is_disabled(lab, ray) -> None:
    look()
    pilot = the_pilot()
    assert (pilot.state, pilot.handle) == ("QUEUED", pilot.label)
    until(lambda: the_pilot().state == "UP", ray)
    pilot = the_pilot()
    assert ray.live() == [pilot.label]
    assert pilot.window is not None
    assert pilot.window.node == pilot.node == Node.objects.get(name="lab-1")
    assert timedelta(minutes=28) < pilot.ends_at - pilot.created_at < timedelta(minutes=31)
    look()
    assert ray.live() == [pilot.label]
    NodeProvider.objects.update(enabled=False)
    until(lambda: not Pilot.objects.exclude(state="GONE").exists(), ray)
    assert ray.live() == []
    assert Node.objects.get(name="lab-1").state == "DRAINED"


def test_the_token_is_in_no_command_line_of_the_ray(lab, ray) -> None:
    seen: list[bytes] = []
    with relayed(ray) as relay:
        relay.before = lambda asked: seen.append(asked.body)
        look()
    until(lambda: the_pilot().state == "UP", ray)
    token = json.loads(seen[0])["runtime_env"]["env_vars"]["YARD_JOIN_TOKEN"]
    assert len(token) > 20
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token.encode() not in process.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


class Relay:
    """Stands between the control plane and Ray: ``before`` and ``after`` are called around each submission."""

    def __init__(self, ray: RayOnThisHost) -> None:
        self.ray = ray
        self.before: Callable[[Asked], object] = lambda _: None
        self.after: Callable[[Asked], object] = lambda _: None
        self.lost = threading.Event()

    def __call__(self, asked: Asked) -> tuple[int, bytes]:
        is_submission = (asked.method, asked.path) == ("POST", "/api/jobs/")
        if is_submission:
            self.before(asked)
        if self.lost.is_set():
            return 0, b""
        headers = {name: asked.headers[name] for name in ("authorization", "content-type") if name in asked.headers}
        url = self.ray.url + asked.path
        answer = httpx.request(asked.method, url, headers=headers, content=asked.body, timeout=60, trust_env=False)
        if is_submission:
            self.after(asked)
        return answer.status_code, answer.content


class relayed:  # noqa: N801
    """The endpoint leads to a relay meanwhile."""

    def __init__(self, ray: RayOnThisHost) -> None:
        self.ray, self.relay = ray, Relay(ray)
        self.server = serving(self.relay)

    def __enter__(self) -> Relay:
        scripted: ScriptedServer = self.server.__enter__()
        (self.ray.endpoints / "ray" / "url").write_text(scripted.url)
        return self.relay

    def __exit__(self, *_: Any) -> None:
        (self.ray.endpoints / "ray" / "url").write_text(self.ray.url)
        self.server.__exit__(None, None, None)


_WORKER = """
import django; django.setup()
from controlplane.operations import pilots
pilots.look()
"""


@pytest.mark.parametrize("moment", ["after the submission", "before it"])
def test_a_worker_that_is_killed_around_the_submission_doubles_and_leaks_nothing(lab, ray, moment) -> None:
    before = set(ray.jobs() or [])
    name = connection.settings_dict["NAME"]
    url = f"postgresql://switchyard@/{name}?host={CLUSTER.sockets}&passfile={CLUSTER.password_file}"
    with relayed(ray) as relay:
        started = threading.Event()

        def kill(_: Asked) -> None:
            started.wait(60)
            worker.kill()
            worker.wait()
            if moment == "before it":
                relay.lost.set()

        if moment == "after the submission":
            relay.after = kill
        else:
            relay.before = kill
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER], cwd=ROOT,
            env={
                **os.environ, "DATABASE_URL": url, "PYTHONPATH": str(ROOT),
                "YARD_PROVIDER_ENDPOINTS": str(ray.endpoints),
            },
        )  # fmt: skip
        started.set()
        worker.wait(120)
    assert worker.returncode == -signal.SIGKILL
    written = the_pilot()
    assert (written.state, written.handle) == ("ASKED", "")
    look()
    if moment == "after the submission":
        assert the_pilot().handle == written.label
        assert set(ray.jobs() or []) - before == {written.label}
    else:
        # Nobody knows whether it will still come: nothing else is asked for meanwhile.
        assert set(ray.jobs() or []) == before
        assert the_pilot() == written
        Pilot.objects.update(created_at=timezone.now() - timedelta(minutes=5))
        look()
        written.refresh_from_db()
        assert (written.state, written.why) == ("GONE", "never_came")
        Pilot.objects.filter(pk=written.pk).update(gone_at=timezone.now() - timedelta(minutes=1))
        until(lambda: ray.live() == [the_pilot().label] != [written.label], ray)


def test_ray_itself_refuses_a_second_pilot_of_one_label(lab, ray) -> None:
    look()
    first = the_pilot()
    ray.until(lambda: ray.live() == [first.label])
    assert duty.kinds.engine("ray", lab.settings).up(_order(first)) == first.label
    assert ray.live() == [first.label]


def _order(pilot: Pilot) -> Any:
    from controlplane.providers.engine import PilotOrder

    return PilotOrder(pilot.label, "lab-1", SHAPE, 0.5, "http://127.0.0.1:1", "t" * 43)


def test_a_wrong_token_is_a_refusal_that_is_said(lab, ray) -> None:
    place = ray.endpoints / "ray" / "token"
    place.write_text("f" * 32)
    try:
        look()
    finally:
        place.write_text(ray.token)
    lab.refresh_from_db()
    assert lab.condition.startswith("Ray: 40")
    assert "f" * 32 not in lab.condition
    assert not Pilot.objects.exists()


def test_what_nobody_knows_is_stopped_and_a_strangers_job_is_left_alone(lab, ray) -> None:
    stray, other = f"yard-{lab.tag}-{'0' * 32}", f"yard-{'a' * 12}-{'0' * 32}"
    headers = {"Authorization": f"Bearer {ray.token}"}
    for label in (stray, other):
        body = {"submission_id": label, "entrypoint": "exec sleep 600", "entrypoint_num_cpus": 1}
        httpx.post(f"{ray.url}/api/jobs/", json=body, headers=headers, trust_env=False, timeout=60).raise_for_status()
    NodeProvider.objects.update(enabled=False)
    Pilot.objects.create(
        provider=lab, shape="small", hours=1, label=f"yard-{lab.tag}-{'1' * 32}", created_at=timezone.now()
    )
    until(lambda: stray not in ray.live(), ray)
    assert ray.live() == [other]


@pytest.mark.long
def test_a_head_that_is_down_is_a_condition_that_is_asked_again_ever_later(lab, ray) -> None:
    until(lambda: the_pilot().state == "UP", ray)
    before = the_pilot()
    ray.kill_head()
    try:
        for failures in (1, 2, 3):
            look()
            lab.refresh_from_db()
            assert lab.failures == failures
        assert lab.condition == "endpoint ray (ConnectionRefusedError) cannot be reached"
        assert lab.retry_at - lab.looked_at == timedelta(seconds=20)
        assert Alarm.objects.get(kind="provider").subject == "lab"
        assert the_pilot() == before
    finally:
        ray.start_head()
    look()
    before.refresh_from_db()
    # The new head knows nothing of it, and it never joined.
    assert (before.state, before.why) == ("GONE", "vanished")
    Pilot.objects.update(gone_at=timezone.now() - timedelta(minutes=1))
    until(lambda: the_pilot().state == "UP", ray)
    assert ray.live() == [the_pilot().label]
