"""``manage.py seed_demo``: what it fills a database with, and where it refuses to."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import F
from django.test import Client

from controlplane.accounts.models import User
from controlplane.demo import week
from controlplane.demo.cluster import DemoCluster
from controlplane.fleet.models import Device, DeviceSample, Node
from controlplane.jobs.models import Attempt, Bundle, Job, StageTrace
from controlplane.operations import invariants
from controlplane.pools.models import Pool
from controlplane.usage.models import LedgerEntry

pytestmark = pytest.mark.django_db


def test_it_fills_an_empty_database_with_a_week_that_breaks_no_invariant() -> None:
    said = StringIO()
    call_command("seed_demo", days=3, stdout=said)
    assert "sign in as admin" in said.getvalue()
    states = set(Job.objects.values_list("state", flat=True))
    assert {"PENDING", "HELD", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"} <= states
    causes = set(Attempt.objects.values_list("cause", flat=True))
    assert {"", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "EXIT_CODE", "EARLY_STOPPED"} <= causes
    (fetched,) = Job.objects.exclude(source=None)
    assert fetched.source is not None
    assert Bundle.is_stored(fetched.bundle)
    assert Job.objects.get(name="moe-router").spec["mounts"] == [{"source": "/data", "path": "/data"}]
    check_the_profiles()
    days = LedgerEntry.objects.values("day").distinct().count()
    assert days > 25
    assert not Node.objects.filter(simulated=False).exists()
    assert not Device.objects.filter(simulated=False).exists()
    assert invariants.broken() == []
    assert "seed_demo --keep-measuring goes on" in said.getvalue()
    with pytest.raises(CommandError, match="has 10 nodes and"):
        call_command("seed_demo", stdout=said)


def test_it_goes_on_measuring_the_demo_that_is_there_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    call_command("seed_demo", days=0, stdout=StringIO())
    DeviceSample.objects.update(at=F("at") - timedelta(minutes=30))
    last_at = DeviceSample.objects.latest("at").at
    browser = Client()
    browser.force_login(User.objects.get(username="admin"))
    for path in ("/", "/nodes/g01"):
        assert "use last measured" in browser.get(path).content.decode()
    asleep: list[float] = []

    def interrupt(seconds: float) -> None:
        asleep.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("controlplane.demo.management.commands.seed_demo.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call_command("seed_demo", keep_measuring=True, stdout=StringIO())
    assert asleep
    assert DeviceSample.objects.latest("at").at > last_at
    Node.objects.create(name="real", credential_digest="x")
    with pytest.raises(CommandError, match="fills only one that has none of both"):
        call_command("seed_demo", keep_measuring=True, stdout=StringIO())


def check_the_profiles() -> None:
    """A job of the demo has a profile that failed and one that is kept, whose file says that it is simulated."""
    kept, failed = StageTrace.objects.order_by("-asked_at")
    assert (failed.state, failed.tool) == ("FAILED", "torch")
    assert failed.detail
    assert (kept.state, kept.tool, kept.part.attempt.stage.state) == ("READY", "py-spy", "RUNNING")
    assert kept.part.attempt.stage.request["profiling"] == ["py-spy", "torch"]
    with storages["traces"].open(kept.place) as file:
        content = file.read()
    told = json.loads(content)
    assert len(content) == kept.size_bytes
    assert "simulated" in told["exporter"]
    (profile,) = told["profiles"]
    frames = [frame["name"] for frame in told["shared"]["frames"]]
    assert len(profile["samples"]) == len(profile["weights"]) == 2_000
    assert {frames[sample[-1]] for sample in profile["samples"]} >= {"attention", "collate", "step"}
    assert {frames[sample[0]] for sample in profile["samples"]} == {"<module>"}
    assert max(max(sample) for sample in profile["samples"]) < len(frames)


def test_it_refuses_a_database_with_a_node_and_wrong_options() -> None:
    with pytest.raises(CommandError, match="--days must be from 0 to 14, not 99"):
        call_command("seed_demo", days=99)
    with pytest.raises(CommandError, match="--password"):
        call_command("seed_demo", password="short")
    Node.objects.create(name="real", credential_digest="x")
    with pytest.raises(CommandError, match="has 1 nodes and 0 jobs"):
        call_command("seed_demo")
    assert not Pool.objects.filter(name="simulated").exists()


def test_the_same_seed_makes_the_same_cluster() -> None:
    def made(seed: int) -> list[tuple[object, ...]]:
        with transaction.atomic():
            cluster = DemoCluster(seed, "named by hand")
            cluster.people(None)
            cluster.fleet(("g01",))
            week.write(cluster, 1)
            jobs = Job.objects.order_by("number")
            found = [(job.name, job.state, job.cause, cluster.now - job.submitted_at) for job in jobs]
            transaction.set_rollback(True)
        return found

    first = made(3)
    assert first == made(3)
    assert first != made(4)
