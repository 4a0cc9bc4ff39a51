"""What one person may keep here, and what happens when the disk is nearly full."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.test import Client

from agents.protocol import LogBatch, LogChunk
from controlplane.background import BackgroundPhase
from controlplane.fleet.models import Alarm
from controlplane.jobs.models import PartLog
from controlplane.operations import watch
from controlplane.settings import _storages
from controlplane.simulations import service
from controlplane.simulations.models import Simulation
from tests.controlplane.people import Town
from tests.controlplane.test_simulations import SMALL
from tests.record.test_uploads import credential


@pytest.fixture(autouse=True)
def apart(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LOGS, settings.BLOBS = tmp_path / "logs", tmp_path
    settings.STORAGES = {**settings.STORAGES, **_storages("", tmp_path, tmp_path / "logs")}
    monkeypatch.setattr(service, "ask_to_run", lambda _: None)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.content)["code"]


def test_below_the_floor_uploads_and_logs_are_refused_and_jobs_go_on(town: Town, settings: Any) -> None:
    agent = town.machine()
    job = town.running(agent)
    settings.MIN_FREE_BYTES = 2**60
    watch.check_disk()
    assert Alarm.objects.get(kind="disk").subject == "control plane"
    assert "nearly full" in str(town.staff.read("/overview")["attention"])
    assert code(town.owner.post("/bundles", gzip.compress(b"x"), kind="application/gzip")) == (507, "storage_full")
    assert code(town.owner.post("/simulations", SMALL)) == (507, "storage_full")
    assert town.owner.get("/simulations").status_code == 200
    chunk = LogChunk(next(iter(agent.here)), 1, 0, "out", 0, b"text")

    def sent() -> int:
        body = msgspec.msgpack.encode(LogBatch([chunk]))
        kind = "application/msgpack"
        return Client().post("/agent/v1/logs", body, content_type=kind, headers=credential(agent)).status_code

    assert sent() == 507
    assert not PartLog.objects.exists()
    more = town.job()
    town.cycle()
    agent.end(job.stages.get())
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "COMPLETED"
    assert town.owner.read(f"/jobs/{more.number}")["state"] in ("PENDING", "RUNNING")
    settings.MIN_FREE_BYTES = 0
    watch.check_disk()
    assert not Alarm.objects.filter(kind="disk").exists()
    assert sent() == 200


def test_a_person_may_have_so_many_bytes_of_bundles(town: Town, settings: Any) -> None:
    settings.BUNDLE_BYTES_PER_USER = 1
    for person, text, told in (
        (town.owner, b"first", 201),
        (town.owner, b"second", 507),
        (town.mate, b"second", 201),
    ):
        assert person.post("/bundles", gzip.compress(text), kind="application/gzip").status_code == told


def test_the_oldest_simulations_go_beyond_what_is_kept(town: Town, settings: Any) -> None:
    user = town.owner.user
    assert user is not None
    made = [
        Simulation.objects.create(
            user=user, name=str(number), scenario={}, phase=BackgroundPhase.DONE, result_bytes=100
        ).pk
        for number in range(6)
    ]
    running = Simulation.objects.create(
        user=user, name="runs", scenario={}, phase=BackgroundPhase.RUNNING, trace_bytes=10**9
    )
    settings.SIMULATION_BYTES_PER_USER = 450
    service.forget_beyond(user)
    assert set(Simulation.objects.values_list("pk", flat=True)) == {*made[2:], running.pk}
    settings.SIMULATIONS_KEPT = 2
    service.forget_beyond(user)
    assert set(Simulation.objects.values_list("pk", flat=True)) == {*made[4:], running.pk}


def test_bytes_without_a_row_are_swept_after_an_hour(town: Town, settings: Any, tmp_path: Path) -> None:
    import os
    import time

    from controlplane import storage

    names = ["ab/old", "ab/young", "ab/owned"]
    for name in names:
        storage.keep("simulations", name, b"x")
    past = time.time() - 7200
    for name in ("ab/old", "ab/owned"):
        os.utime(tmp_path / "simulations" / name, (past, past))
    assert town.user is not None
    Simulation.objects.create(user=town.user, name="x", scenario={}, trace="ab/owned")
    assert service.sweep(0xAB) == 1
    assert service.sweep(0xAC) == 0
