"""Simulations beside the cluster: within limits, run by a process of their own, cancelled, kept and private."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.background import BackgroundPhase
from controlplane.jobs.models import Stage
from controlplane.simulations import service, tasks, worker
from controlplane.simulations.models import Simulation
from tests.controlplane.people import Town

SMALL: dict[str, Any] = {
    "name": "small",
    "trace": {"generate": {"jobs": 12, "per_hour": 60, "median_s": 300}},
    "world": {"nodes": "2x8"},
    "profiles": ["hybrid", "fifo"],
}


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Most tests do the work of the process themselves."""
    if "transactional_db" not in request.fixturenames:
        monkeypatch.setattr(service, "ask_to_run", lambda _: None)


def posted(town: Town, **more: Any) -> Any:
    answer = town.owner.post("/simulations", {**SMALL, **more})
    return answer.status_code, json.loads(answer.content)


def test_a_simulation_is_accepted_lived_through_and_kept(town: Town) -> None:
    status, body = posted(town)
    assert (status, body["phase"], body["simulated"]) == (201, "WAITING", True)
    worker.run(body["id"])
    found = town.owner.read(f"/simulations/{body['id']}")
    assert (found["simulation"]["phase"], found["simulation"]["progress"]) == ("DONE", 1.0)
    assert [row["profile"] for row in found["result"]["summary"]] == ["hybrid", "fifo"]
    assert {row["figures"]["completed"] for row in found["result"]["summary"]} == {12}
    assert [one["id"] for one in town.owner.read("/simulations")["results"]] == [body["id"]]


def test_it_is_its_owners_and_staffs(town: Town) -> None:
    _, body = posted(town)
    assert town.mate.get(f"/simulations/{body['id']}").status_code == 404
    assert town.mate.read("/simulations")["results"] == []
    assert town.staff.read(f"/simulations/{body['id']}")["simulation"]["user"] == "owner"
    for path in (f"/simulations/{body['id']}", "/simulations"):
        assert town.anonymous.get(path).status_code == 401
    assert town.anonymous.post(f"/simulations/{body['id']}/cancel").status_code == 401
    assert town.mate.post(f"/simulations/{body['id']}/cancel").status_code == 404


@pytest.mark.parametrize(
    ("more", "pointer", "told"),
    [
        ({"profiles": ["magic"]}, "/profiles", "there are static"),
        ({"profiles": {"mine": {"policies": {"guess": {}}}}}, "/profiles", "there are alternatives"),
        ({"world": {"nodes": "9999x8"}}, "/world/nodes", "at most 20,000"),
        ({"trace": {"generate": {"jobs": 30_000}}}, "/trace", "at most 20,000"),
        ({"seeds": list(range(13))}, "/profiles", "at most 24"),
        ({"trace": {"file": "/etc/passwd"}}, "/trace/file", "no file may be named here"),
        ({"trace": {"history": {"days": 7}}}, "/trace/history", "no stage"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(town: Town, more: dict[str, Any], pointer: str, told: str) -> None:
    status, body = posted(town, **more)
    assert (status, body["errors"][0]["pointer"]) == (422, pointer)
    assert told in body["detail"]
    assert not Simulation.objects.exists()


def test_only_so_many_run_at_once(town: Town) -> None:
    for person in (town.owner, town.mate):
        for status in (201, 201, 429):
            assert person.post("/simulations", SMALL).status_code == status
    assert town.lead.post("/simulations", SMALL).status_code == 429
    service.end(Simulation.objects.filter(user=town.mate.user)[0].pk, BackgroundPhase.CANCELLED)
    assert posted(town)[0] == 429
    assert town.lead.post("/simulations", SMALL).status_code == 201


def test_one_whose_process_is_gone_is_given_up(town: Town) -> None:
    posted(town)
    Simulation.objects.update(seen_at=timezone.now() - timedelta(minutes=5))
    (found,) = town.owner.read("/simulations")["results"]
    assert (found["phase"], found["fault"]) == ("FAILED", "its process is gone")
    assert posted(town)[0] == 201


def test_a_fault_in_the_work_is_told(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.scenario import report

    _, body = posted(town)
    monkeypatch.setattr(report, "simulate", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.run(body["id"])
    assert "ZeroDivisionError" in town.owner.read(f"/simulations/{body['id']}")["simulation"]["fault"]


def test_the_own_history_is_a_trace(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu", "count": 1})
    agent.end(job.stages.get())
    Stage.objects.update(started_at=timezone.now() - timedelta(seconds=90))
    status, body = posted(town, trace={"history": {"days": 1}})
    assert (status, body["source"]) == (201, "history")
    worker.run(body["id"])
    found = town.owner.read(f"/simulations/{body['id']}")
    assert found["result"]["stages"] == 1
    assert "text" not in found["scenario"]["trace"]
    assert town.stranger.post("/simulations", {**SMALL, "trace": {"history": {"days": 1}}}).status_code == 422


def test_what_runs_and_waits_is_a_trace_on_the_nodes_of_a_pool(town: Town) -> None:
    agent = town.machine()
    town.running(agent, devices={"kind": "gpu", "count": 1})
    town.job(time_limit="2h")
    pool = agent.node.pools.get().name
    queue = {"trace": {"queue": {"pool": pool}}, "world": {"pool": pool}}
    status, body = posted(town, **queue)
    assert (status, body["source"]) == (201, "queue")
    worker.run(body["id"])
    found = town.owner.read(f"/simulations/{body['id']}")
    assert found["result"]["stages"] == 2
    assert found["result"]["nodes"] == 1
    assert found["scenario"]["world"]["nodes"].startswith("1x")
    assert {row["figures"]["completed"] for row in found["result"]["summary"]} == {2}
    stranger = town.stranger.post("/simulations", {**SMALL, **queue})
    assert "no stage that you may see" in json.loads(stranger.content)["detail"]
    for more, pointer in (
        ({"trace": {"queue": {"pool": "none"}}}, "/trace/queue/pool"),
        ({"trace": {"queue": [1]}}, "/trace/queue"),
        ({"trace": {"history": {"days": 1, "pool": 7}}}, "/trace/history/pool"),
        ({"world": {"pool": "none"}}, "/world/pool"),
        ({"world": {"pool": pool, "nodes": "2x8"}}, "/world/pool"),
    ):
        status, body = posted(town, **more)
        assert (status, body["errors"][0]["pointer"]) == (422, pointer)


def test_a_real_process_is_seen_and_stops_when_it_is_told(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = urlsplit(os.environ["DATABASE_URL"])
    own = place._replace(path=f"/{connection.settings_dict['NAME']}")
    monkeypatch.setenv("DATABASE_URL", own.geturl())
    running: list[threading.Thread] = []

    def run(simulation_id: int) -> None:
        service.run(simulation_id)
        connection.close()

    def begin(args: tuple[int], **_: object) -> None:
        running.append(threading.Thread(target=run, args=args))
        running[0].start()

    monkeypatch.setattr(tasks.run, "apply_async", begin)
    user = User.objects.create(username="owner")
    endless = {**SMALL, "trace": {"generate": {"jobs": 20_000, "per_hour": 4000}}, "world": {"nodes": "40x8"}}
    row = service.submit(endless, user)
    deadline = time.monotonic() + 60
    while Simulation.objects.get(pk=row.pk).phase != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    service.cancel(row)
    while Simulation.objects.get(pk=row.pk).phase == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running[0].join()
    assert Simulation.objects.get(pk=row.pk).phase == "CANCELLED"


def test_a_worker_that_is_stopped_ends_what_it_runs_and_that_is_said(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(service.sys, "executable", str(endless))
    monkeypatch.setattr(tasks.run, "apply_async", lambda *_, **__: None)
    row = service.submit(SMALL, User.objects.create(username="owner"))

    def run() -> None:
        service.run(row.pk)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    while not service._processes:
        time.sleep(0.01)
    service.stop_all()
    thread.join()
    row.refresh_from_db()
    assert (row.phase, row.fault) == ("FAILED", "its process ended with status -9")
