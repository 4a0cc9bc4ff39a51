"""What is old goes, and nothing that something needs: the choice as a law, and real rows of each kind."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.accounts.models import IdempotencyKey
from controlplane.jobs import logs, service
from controlplane.jobs.models import Bundle, Claim, Decision, Event, Job, LogSpan, Part, PartLog, Stage
from controlplane.queries import retention
from controlplane.retention import rules, sweep
from controlplane.retention.choice import Row, choose
from controlplane.retention.kinds import KINDS, NAMED
from controlplane.retention.models import Override, Removal
from controlplane.settings import _storages
from controlplane.simulations.models import Simulation
from tests.controlplane.people import Town, write_log

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = st.lists(
    st.builds(lambda day, size, needed: (day, size, needed), st.integers(0, 100), st.integers(0, 1000), st.booleans()),
    max_size=30,
).map(
    lambda told: [
        Row(number, BEGIN + timedelta(days=day), size, needed)
        for number, (day, size, needed) in enumerate(sorted(told))
    ]
)
BEFORE = st.none() | st.integers(0, 101).map(lambda day: BEGIN + timedelta(days=day))


# -- the choice


@given(ROWS, BEFORE, st.integers(0, 20_000))
def test_what_is_needed_stays_and_all_else_that_is_old_goes(
    rows: list[Row], before: datetime | None, excess: int
) -> None:
    goes = list(choose(rows, before, excess))
    assert not any(row.is_needed for row in goes)
    if before is not None:
        assert {row.id for row in rows if row.at < before and not row.is_needed} <= {row.id for row in goes}
    stays = [row for row in rows if row not in goes and not row.is_needed]
    assert all(row.at <= kept.at for row in goes for kept in stays)


@given(ROWS, BEFORE, st.integers(0, 20_000))
def test_no_more_goes_than_is_too_much(rows: list[Row], before: datetime | None, excess: int) -> None:
    goes = list(choose(rows, before, excess))
    young = [row for row in goes if before is None or row.at >= before]
    if young:
        assert sum(row.size for row in goes) - young[-1].size < excess
    if len(goes) < sum(not row.is_needed for row in rows):
        assert sum(row.size for row in goes) >= excess


@given(ROWS, BEFORE, st.integers(0, 20_000), st.integers(1, 7))
def test_steps_remove_what_one_removal_would(rows: list[Row], before: datetime | None, excess: int, step: int) -> None:
    whole, left, gone = list(choose(rows, before, excess)), [row for row in rows if not row.is_needed], []
    while part := list(choose(left[:step], before, excess - sum(row.size for row in gone))):
        gone += part
        left = [row for row in left if row not in part]
    assert gone == whole


# -- real rows


@pytest.fixture(autouse=True)
def apart(settings: Any, tmp_path: Path) -> None:
    settings.LOGS, settings.BLOBS = tmp_path / "logs", tmp_path
    settings.STORAGES = {**settings.STORAGES, **_storages("", tmp_path, tmp_path / "logs")}


def ended(town: Town, days: float, **spec: Any) -> Job:
    """A job of the owner that ran, wrote a log, and ended so many days ago."""
    agent = getattr(town, "_machine", None) or town.machine()
    town._machine = agent  # type: ignore[attr-defined]
    job = town.running(agent, **spec)
    write_log(job, ("out", b"it began\n"), ("err", b"it warned\n"), ("out", b"it ended\n"))
    agent.end(job.stages.get())
    at = timezone.now() - timedelta(days=days)
    # The record refuses to change what has ended: a test may.
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        part = Part.objects.filter(attempt__stage__job=job)
        before = at - timedelta(minutes=5)
        Claim.objects.filter(part__in=part).update(opened_at=before, closed_at=at)
        job.stages.get().attempts.update(created_at=before, started_at=before, ended_at=at)
        PartLog.objects.filter(part__in=part).update(written_at=at)
        part.update(ended_at=at)
        Stage.objects.filter(job=job).update(ended_at=at)
        Job.objects.filter(pk=job.pk).update(submitted_at=before, ended_at=at)
        cursor.execute("SET LOCAL session_replication_role = origin")
    job.refresh_from_db()
    return job


def part_of(job: Job) -> Part:
    return Part.objects.get(attempt__stage__job=job)


def test_old_logs_go_and_those_that_live_or_are_young_stay(town: Town, django_capture_on_commit_callbacks: Any) -> None:
    old, young = ended(town, 100), ended(town, 3)
    lives = town.running(town._machine)  # type: ignore[attr-defined]
    write_log(lives, ("out", b"still here\n"))
    PartLog.objects.filter(part=part_of(lives)).update(written_at=timezone.now() - timedelta(days=200))
    due = {(each.kind.name, str(each.project)): each.went for each in sweep.preview()}
    assert (due["logs", "default"].rows, due["logs", "default"].size_bytes) == (1, 28)
    assert PartLog.objects.filter(gone_at=None).count() == 3
    with django_capture_on_commit_callbacks(execute=True):
        (removal,) = sweep.sweep()
    assert removal.went["logs"]["rows"] == 1
    assert (removal.project, removal.went["logs"]["size_bytes"]) == (town.project, 28)
    assert not logs.folder(part_of(old).id).exists()
    assert not LogSpan.objects.filter(part=part_of(old)).exists()
    answer = town.owner.get(f"/jobs/{old.number}/logs")
    assert (answer.status_code, json.loads(answer.content)["code"]) == (410, "log_lost")
    assert "was removed on" in json.loads(answer.content)["detail"]
    assert town.owner.get(f"/jobs/{young.number}/logs").content == b"it began\nit warned\nit ended\n"
    assert town.owner.get(f"/jobs/{lives.number}/logs").content == b"still here\n"
    assert sweep.sweep() == []
    assert town.owner.client.get(f"/jobs/{old.number}").status_code in (200, 302)


def test_above_its_bytes_a_project_loses_its_oldest_logs_first(town: Town) -> None:
    jobs = [ended(town, days) for days in (30, 20, 10)]
    for job in jobs:
        PartLog.objects.filter(part=part_of(job)).update(size_bytes=600_000)
    Override.objects.create(project=town.project, kind="logs", log_bytes=2**20)
    assert [each.went.rows for each in sweep.preview(town.project) if each.kind.name == "logs"] == [2]
    sweep.sweep()
    gone = [PartLog.objects.get(part=part_of(job)).gone_at is not None for job in jobs]
    assert gone == [True, True, False]


def test_old_events_go_but_for_the_end_of_the_job(town: Town) -> None:
    old, young = ended(town, 500), ended(town, 3)
    count = Event.objects.filter(job=young).count()
    assert count > 2
    sweep.sweep()
    old.refresh_from_db()
    left = list(Event.objects.filter(job=old).values_list("kind", "stage"))
    assert ("completed", "") in left
    assert len(left) == old.event_seq - old.events_gone < count
    assert Event.objects.filter(job=young).count() == count
    assert town.owner.get(f"/jobs/{old.number}/events").status_code == 200


def test_old_jobs_go_with_all_that_is_theirs(town: Town, django_capture_on_commit_callbacks: Any) -> None:
    old, young = ended(town, 800), ended(town, 3)
    lives = town.running(town._machine)  # type: ignore[attr-defined]
    Job.objects.filter(pk=lives.pk).update(submitted_at=timezone.now() - timedelta(days=900))
    part = part_of(old)
    PartLog.objects.filter(part=part).update(written_at=timezone.now())
    assert logs.folder(part.id).exists()
    with django_capture_on_commit_callbacks(execute=True):
        (removal,) = sweep.sweep()
    assert removal.went["jobs"]["rows"] == 1
    assert set(Job.objects.values_list("pk", flat=True)) == {young.pk, lives.pk}
    assert not Event.objects.filter(job_id=old.pk).exists()
    assert not logs.folder(part.id).exists()
    town.cycle()
    assert town.owner.get(f"/jobs/{old.number}").status_code == 404
    assert town.owner.read(f"/jobs/{lives.number}")["state"] == "RUNNING"


def bundle(town: Town, text: bytes, days: float) -> str:
    content = gzip.compress(text, mtime=0)
    assert town.owner.post("/bundles", content, kind="application/gzip").status_code == 201
    digest = hashlib.sha256(content).hexdigest()
    Bundle.objects.filter(pk=digest).update(used_at=timezone.now() - timedelta(days=days))
    return digest


def test_unused_bundles_go_and_those_of_jobs_that_live_stay(
    town: Town, django_capture_on_commit_callbacks: Any
) -> None:
    town.machine()
    unused, young, asked, needed = (bundle(town, text, 40) for text in (b"1", b"2", b"3", b"4"))
    Bundle.objects.filter(pk=young).update(used_at=timezone.now() - timedelta(days=3))
    job = town.job(bundle=needed, hold=True)
    assert Bundle.objects.get(pk=needed).used_at > timezone.now() - timedelta(hours=1)
    Bundle.objects.filter(pk=needed).update(used_at=timezone.now() - timedelta(days=40))
    assert town.owner.get(f"/bundles/{asked}").status_code == 200  # as the client does, before it uploads
    with django_capture_on_commit_callbacks(execute=True):
        sweep.sweep()
    assert set(Bundle.objects.values_list("pk", flat=True)) == {young, asked, needed}
    assert not storages["bundles"].exists(Bundle.place(unused))
    assert storages["bundles"].exists(Bundle.place(needed))
    # Afterwards nobody needs it any more.
    service.cancel(job, "owner")
    with django_capture_on_commit_callbacks(execute=True):
        sweep.sweep()
    assert not Bundle.objects.filter(pk=needed).exists()
    assert not storages["bundles"].exists(Bundle.place(needed))


def test_a_bundle_that_goes_in_the_moment_of_a_submission_is_missed(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the job file and the transaction that accepts it."""
    town.machine()
    digest = bundle(town, b"5", 1)
    use = Bundle.use

    def late(digests: Any) -> bool:
        Bundle.objects.filter(pk=digest).delete()
        return use(digests)

    monkeypatch.setattr(Bundle, "use", staticmethod(late))
    answer = town.owner.post("/jobs", {"run": "x", "bundle": digest})
    assert (answer.status_code, json.loads(answer.content)["errors"][0]["code"]) == (422, "unknown_bundle")
    assert not Job.objects.exists()


def test_rows_of_the_cluster_go_by_age(town: Town, settings: Any) -> None:
    past = timezone.now() - timedelta(days=100)
    for at in (past, timezone.now()):
        Decision.objects.create(at=at, profile="hybrid", duration_ms=1, waiting=0)
        key = IdempotencyKey.objects.create(user=town.user, key=str(at), digest="x")
        IdempotencyKey.objects.filter(pk=key.pk).update(created_at=at)
        Simulation.objects.create(user=town.user, name="x", scenario={}, phase="DONE", ended_at=at)
    Simulation.objects.create(user=town.user, name="runs", scenario={}, phase="RUNNING", started_at=past)
    settings.RETENTION_DAYS = {**settings.RETENTION_DAYS, "simulations": 0}
    (removal,) = sweep.sweep()
    assert removal.project is None
    assert {name: went["rows"] for name, went in removal.went.items()} == {"decisions": 1, "idempotency": 1}
    settings.RETENTION_DAYS = {**settings.RETENTION_DAYS, "simulations": 90}
    sweep.sweep()
    assert Simulation.objects.count() == 2


def test_a_removal_goes_in_steps_and_stops_when_its_time_is_up(town: Town) -> None:
    past = timezone.now() - timedelta(days=100)
    Decision.objects.bulk_create(
        Decision(at=past, profile="hybrid", duration_ms=1, waiting=0) for _ in range(NAMED["decisions"].step + 10)
    )
    assert sweep.sweep(longest_s=0) == []
    assert Decision.objects.count() == NAMED["decisions"].step + 10
    (removal,) = sweep.sweep()
    assert removal.went["decisions"]["rows"] == NAMED["decisions"].step + 10
    assert not Decision.objects.exists()


def test_each_kind_says_how_long_it_is_kept(settings: Any) -> None:
    assert {kind.name for kind in KINDS} == settings.RETENTION_DAYS.keys() - {"samples"}
    assert {kind.name for kind in KINDS if kind.has_projects} == settings.RETENTION_LEAST_DAYS.keys() - {"audit"}


# -- who chooses


def test_a_lead_may_shorten_and_nobody_below_the_law(town: Town, settings: Any) -> None:
    def choose_days(person: Any, **body: Any) -> Any:
        kind = {"content_type": "application/json"}
        return person.client.put("/api/v1/projects/default/retention", json.dumps(body), **kind)

    assert choose_days(town.lead, days={"logs": 7}, log_bytes=2**30).status_code == 200
    told = {rule["kind"]: rule for rule in town.viewer.read("/projects/default/retention")["rules"]}
    assert (told["logs"]["days"], told["logs"]["own_days"], told["logs"]["log_bytes"]) == (7, 7, 2**30)
    assert (told["jobs"]["days"], told["jobs"]["own_days"]) == (settings.RETENTION_DAYS["jobs"], None)
    settings.RETENTION_LEAST_DAYS = {**settings.RETENTION_LEAST_DAYS, "events": 180}
    for person, body, status in (
        (town.lead, {"days": {"logs": 365}}, 403),
        (town.lead, {"log_bytes": 2**50}, 403),
        (town.lead, {"days": {"jobs": 30}}, 422),
        (town.lead, {"days": {"events": 90}}, 422),
        (town.lead, {"days": {"decisions": 3}}, 422),
        (town.lead, {"days": {"logs": -1}}, 422),
        (town.lead, {"log_bytes": 5}, 422),
        (town.owner, {"days": {"logs": 3}}, 403),
        (town.viewer, {"days": {"logs": 3}}, 403),
        (town.stranger, {"days": {"logs": 3}}, 404),
        (town.anonymous, {"days": {"logs": 3}}, 401),
        (town.staff, {"days": {"logs": 365}}, 200),
        (town.lead, {"days": {"logs": None}, "log_bytes": None}, 200),
    ):
        assert choose_days(person, **body).status_code == status, (person.user, body)
    assert rules.rule_of(NAMED["logs"], town.project).days == settings.RETENTION_DAYS["logs"]
    answer = choose_days(town.lead, days={"events": 90})
    assert "for 180 days at least" in json.loads(answer.content)["detail"]


def test_a_preview_shows_each_their_own(town: Town) -> None:
    ended(town, 100)
    told = town.viewer.read("/retention/preview")["results"]
    assert {row["project"] for row in told} == {"default"}
    assert {row["kind"]: row["rows"] for row in told} == {"logs": 1, "events": 0, "jobs": 0}
    assert {row["project"] for row in town.stranger.read("/retention/preview")["results"]} == {"other"}
    everything = town.staff.read("/retention/preview")["results"]
    assert {(row["kind"], row["project"]) for row in everything} >= {("bundles", None), ("logs", "other")}
    assert PartLog.objects.filter(gone_at=None).exists()


def test_the_command_tells_or_removes(town: Town) -> None:
    ended(town, 100)
    said = StringIO()
    call_command("retention", "--preview", stdout=said)
    assert [
        line.split()[3] for line in said.getvalue().splitlines() if line.startswith("logs ") and "default" in line
    ] == ["1"]
    assert PartLog.objects.filter(gone_at=None).exists()
    said = StringIO()
    call_command("retention", stdout=said)
    assert "default: 1 logs, 28 bytes" in said.getvalue()
    assert Removal.objects.count() == 1
    with pytest.raises(CommandError):
        call_command("retention", "--preview", "--project", "nobody")


def test_the_administration_shows_it(town: Town) -> None:
    ended(town, 100)
    client = Client()
    client.force_login(town.user)
    page = client.get("/admin/retention/override/preview/")
    assert page.status_code == 200
    assert b"Logs" in page.content
    assert client.get("/admin/retention/override/").status_code == 200
    mate = Client()
    mate.force_login(town.mate.user)
    assert mate.get("/admin/retention/override/preview/").status_code == 302
    kept = {"project": str(town.project.pk), "kind": "jobs", "days": "5"}
    answer = client.post("/admin/retention/override/add/", kept)
    assert b"for 31 days at least" in answer.content


# -- the page


def shown(person: Any, language: str = "en") -> str:
    client = Client(headers={"accept-language": language})
    client.force_login(person.user)
    return client.get("/retention").content.decode()


def test_the_page_tells_each_what_is_kept_and_what_would_go(town: Town, settings: Any) -> None:
    settings.RETENTION_DAYS = {**settings.RETENTION_DAYS, "decisions": 1}
    now = timezone.now()
    Decision.objects.bulk_create(
        Decision(at=now - timedelta(days=2), profile="hybrid", duration_ms=1, waiting=0) for _ in range(3)
    )
    Override.objects.create(project=town.project, kind="logs", days=14, log_bytes=2**30)
    whole = shown(town.staff)
    assert 'data-key="kind-decisions"' in whole
    assert 'data-key="kind-samples"' in whole
    assert re.search(r'kind-decisions.*?1 day<.*?>3<span class="l2">', whole, re.DOTALL)
    assert "keep-default" in whole
    assert "14 days" in whole
    assert "1 GiB" in whole
    own = shown(town.owner)
    assert "kind-decisions" not in own
    assert "kind-logs" in own
    assert "14 days" in own
    assert 'id="keep-default"' not in own, "whoever may not change it is offered no change"
    assert "project-default" not in shown(town.stranger)
    assert "保留期" in shown(town.staff, "zh-hans")
    assert "Removed of late" in whole
    assert "Removed of late" not in own


def test_the_page_counts_no_further_than_it_must(town: Town, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RETENTION_DAYS = {**settings.RETENTION_DAYS, "decisions": 1}
    monkeypatch.setattr(retention, "MOST_SHOWN", 2)
    at = timezone.now() - timedelta(days=2)
    Decision.objects.bulk_create(Decision(at=at, profile="hybrid", duration_ms=1, waiting=0) for _ in range(3))
    (found,) = [each for each in retention.overview(town.staff.user).kinds if each.kind == "decisions"]
    assert found.next is not None
    assert (found.next.rows, found.next.at_least) == (2, True)
    assert re.search(r"kind-decisions.*?>2\+<", shown(town.staff), re.DOTALL)
