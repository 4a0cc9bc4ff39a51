"""What Celery workers do beside their tasks: one leads, each is seen, failures are counted, connections are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection

from controlplane.celery import app
from controlplane.fleet.models import TaskRecord
from controlplane.workers import presence, task_records
from controlplane.workers.leader import Leader
from deploy.local.service import ROOT


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end and not holds():
        time.sleep(0.02)
    return holds()


def test_the_queues_and_what_beats_are_one_table() -> None:
    app.loader.import_default_modules()
    ours = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    assert {name.partition(".")[0] for name in ours} == set(settings.QUEUES)
    written = {path.parent.name for path in (ROOT / "controlplane").glob("*/tasks.py")}
    assert {task.__module__.split(".")[1] for task in ours.values()} == written, "controlplane/celery.py lists them"
    for name, task in ours.items():
        assert app.amqp.router.route({}, name)["queue"].name == name.partition(".")[0]
        assert task.soft_time_limit < task.time_limit, f"{name} has no limits"
        assert bool(task.reject_on_worker_lost) == task.acks_late
        assert ("Idempotent" in task.run.__doc__) == bool(task.acks_late), f"{name} says why it may run again"
        assert not task.acks_late or task.time_limit < app.conf.broker_transport_options["visibility_timeout"]
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in ours
        assert entry["options"]["expires"] == entry["schedule"]


def test_one_leads_and_the_next_follows_when_it_is_gone(transactional_db: None) -> None:
    first, second, asked = Leader(), Leader(), []
    first.wait(lambda: None)
    try:
        second.wait(lambda: asked.append(first.close()))
        assert len(asked) == 1, "it stood by until the first let go"
        second.check()
    finally:
        first.close()
        second.close()


def test_a_leader_whose_connection_is_cut_takes_the_lock_again_or_ends(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    first, second = Leader(), Leader()
    first.wait(lambda: None)
    try:
        cut(first)
        first.check()
        assert killed == []
        cut(first)
        second.wait(lambda: None)
        first.check()
        assert killed == [(os.getpid(), signal.SIGTERM)]
    finally:
        first.close()
        second.close()


def cut(leader: Leader) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [leader._line.connection.info.backend_pid])


def test_failures_are_counted_and_the_last_one_is_told(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_records, "ILL_S", 0.0)
    for name in ("_well_at", "_ill_at", "_ill"):
        monkeypatch.setattr(task_records, name, {})
    task_records.record_success("fleet.watch", 0.25)
    for error in (ValueError("one\nline"), RuntimeError("x" * 1000)):
        task_records.record_failure("fleet.watch", error)
    record = TaskRecord.objects.get()
    assert (record.failures, record.took_s) == (2, 0.25)
    assert record.done_at is not None
    assert record.failed_at is not None
    assert record.error == "RuntimeError: " + "x" * 486


@contextmanager
def worker(name: str, *options: str, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    place = urlsplit(os.environ["DATABASE_URL"])
    url = place._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    command = [sys.executable, "-m", "controlplane.workers", "--hostname", name, *options, "--loglevel", "WARNING"]
    with log.open("wb") if log else nullcontext() as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"DATABASE_URL": url}, stdin=subprocess.DEVNULL, stderr=file
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def standing() -> dict[str, bool]:
    return {one.name: one.stands_by for one in running() if one.queues == ("scheduling", "fleet")}


def running() -> list[presence.Worker]:
    with presence.connect() as redis:
        return presence.workers(redis)


def test_a_killed_scheduler_is_followed_by_the_one_that_stands_by(transactional_db: None) -> None:
    options = ("--queues", "scheduling,fleet", "--concurrency", "1")
    with worker("first@here", *options) as first:
        assert eventually(lambda: standing() == {"first@here": False})
        assert eventually(lambda: TaskRecord.objects.filter(name="scheduling.cycle").exists()), "the poll runs cycles"
        with worker("second@here", *options):
            assert eventually(lambda: standing() == {"first@here": False, "second@here": True})
            first.kill()
            assert eventually(lambda: not standing().get("second@here", True))
            TaskRecord.objects.all().delete()
            app.send_task("scheduling.cycle", retry=False)
            assert eventually(lambda: TaskRecord.objects.filter(name="scheduling.cycle").exists())


def test_beat_in_a_thread_of_a_worker_sends_what_is_due(transactional_db: None, tmp_path: Path) -> None:
    options = ("--beat-thread", "--schedule", str(tmp_path / "beat"), "--pool", "threads", "--concurrency", "2")
    with worker("alone@here", *options, "--queues", "fleet") as alone:
        assert eventually(lambda: TaskRecord.objects.filter(name="fleet.watch").exists())
        alone.terminate()
        assert alone.wait() == 0, "the thread ends with its worker"


@pytest.mark.parametrize(("threads", "is_warned"), [("4", True), ("5", False)])
def test_a_worker_that_simulations_can_fill_says_so(
    transactional_db: None, tmp_path: Path, threads: str, is_warned: bool
) -> None:
    log = tmp_path / "log"
    options = ("--pool", "threads", "--concurrency", threads, "--queues", "questions,simulations")
    with worker("full@here", *options, log=log):
        assert eventually(lambda: "full@here" in {one.name for one in running()})
    said = "4 simulations may run at once and take all 4 threads of full@here; its other queues (questions) then wait"
    assert (said in log.read_text()) == is_warned
