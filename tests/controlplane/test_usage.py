"""Usage: the ledger is what the record says in whatever steps it is computed; who sees what; receipts and advice."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controlplane.accounts.models import Member, Project, User
from controlplane.clauses import clause
from controlplane.fleet.models import Device, DeviceSample, PartSample
from controlplane.jobs.models import Attempt, Checkpoint, Claim, Event, Job, Part, Stage
from controlplane.queries import receipts
from controlplane.queries.usage import cell
from controlplane.usage import advice, days, ledger, meter
from controlplane.usage.advice import StageHolding
from controlplane.usage.models import ClaimMeter, JobEntry, LedgerDay, LedgerEntry, LedgerMark, Price
from controlplane.usage.tasks import count
from scheduler.core.resources import charges
from tests.controlplane.people import Town
from tests.controlplane.test_roles import somebody
from tests.examples_count import examples

GIB = 2**30
NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@contextmanager
def rewritten() -> Iterator[None]:
    """Lets a test write what the record has as it was at other times, which triggers refuse."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = origin")


def past(
    town: Town, devices: list[tuple[Device, int]], opened_at: datetime, closed_at: datetime | None, **attempt: Any
) -> list[Claim]:
    """The claims of one more job of the owner, which held these devices in this time."""
    owner = town.owner.user
    assert owner is not None
    ended = closed_at is not None
    number = Job.objects.count() + 1000
    state = "COMPLETED" if ended else "RUNNING"
    with rewritten():
        job = Job.objects.create(
            number=number, name="past", project=town.project, user=owner, pool=town.pool, priority_class="medium",
            priority=500, state=state, spec={}, submitted_at=opened_at - MINUTE, started_at=opened_at,
            ended_at=closed_at, event_seq=int(ended),
        )  # fmt: skip
        stage = Stage.objects.create(job=job, index=0, name="main", kind="train", state=state, request={})
        run = Attempt.objects.create(
            stage=stage, number=1, created_at=opened_at, started_at=opened_at, ended_at=closed_at, **attempt
        )
        if ended:
            Event.objects.create(job=job, seq=1, at=closed_at, kind="completed", actor="agent", text="it ended")
        part = Part.objects.create(attempt=run, node=devices[0][0].node, forgotten=ended, ended_at=closed_at)
        return [
            Claim.objects.create(
                part=part, device=device, milli=milli, memory_bytes=0, opened_at=opened_at, closed_at=closed_at
            )
            for device, milli in devices
        ]


def job_sums() -> list[list[tuple[Any, ...]]]:
    """The sums of the entries of jobs, and those of the ledger, which must be the same."""
    names = (
        "allocated_ms",
        "charged_ms",
        "known_ms",
        "busy_ms",
        "preempted_ms",
        "failed_ms",
        "millijoules",
        "attempts",
    )
    keys = ("day", "project_id", "user_id", "kind", "model")
    return [
        sorted(model.objects.order_by().values_list(*keys).annotate(*[Sum(name) for name in names]), key=str)
        for model in (JobEntry, LedgerEntry)
    ]


def all_entries() -> list[tuple[Any, ...]]:
    names = [field.attname for field in LedgerEntry._meta.concrete_fields if field.name != "id"]
    return sorted(LedgerEntry.objects.values_list(*names), key=str)


# -- the law: the ledger is a function of the record

SECONDS = st.integers(0, 2 * 86_400)
# Each: after how many seconds it began, how long it lasted (none: it still runs), cause, when it saved, milli.
TRIES = st.lists(
    st.tuples(
        SECONDS,
        st.none() | st.integers(1, 86_400),
        st.sampled_from(["", "PREEMPTED", "EXIT_CODE", "CANCELLED", "MOVE"]),
        st.none() | st.floats(0, 1),
        st.sampled_from([250, 1000]),
    ),
    min_size=1,
    max_size=4,
)
BEGIN = NOW - timedelta(days=3)


def load(device: Device, begin: datetime, end: datetime) -> float:
    """The mean milli-units that claims hold of a device between two times."""
    spans = [
        one.milli * max(0.0, (min(end, one.closed_at or end) - max(begin, one.opened_at)).total_seconds())
        for one in Claim.objects.filter(device=device)
    ]
    return sum(spans) / (end - begin).total_seconds()


def directly(now: datetime) -> dict[tuple[date, str], dict[str, float]]:
    """What the entries must be, claim by claim and day by day, without SQL."""
    found: dict[tuple[date, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for claim in Claim.objects.select_related("device", "part__attempt"):
        end, run = claim.closed_at or now, claim.part.attempt
        saved = [point.at for point in run.checkpoints.all()]
        day = claim.opened_at.date()
        while days.begin_of(day) < end:
            first = max(claim.opened_at, days.begin_of(day))
            last = min(end, days.begin_of(day) + timedelta(days=1))
            row = found[day, claim.device.kind]
            row["allocated_ms"] += claim.milli * (last - first).total_seconds()
            row["attempts"] += first == claim.opened_at and claim.device.kind == "gpu"
            lost_s = max(0.0, (last - max([first, *saved])).total_seconds())
            if run.cause in {"PREEMPTED", "MOVE"}:
                row["preempted_ms"] += claim.milli * lost_s
            elif run.cause == "EXIT_CODE":
                row["failed_ms"] += claim.milli * lost_s
            bins: dict[datetime, list[DeviceSample]] = defaultdict(list)
            for sample in DeviceSample.objects.filter(device=claim.device, at__gte=first, at__lt=last):
                bins[sample.at.replace(second=0, microsecond=0)].append(sample)
            for minute, samples in bins.items():
                part_s = (min(last, minute + MINUTE) - max(first, minute)).total_seconds()
                ms = int(claim.milli * part_s)
                if claim.device.kind == "gpu":
                    use = sum(s.utilisation or 0 for s in samples) / len(samples)
                    if claim.milli < claim.device.capacity_milli:
                        use *= 1000 / load(claim.device, max(first, minute), min(last, minute + MINUTE))
                    row["known_ms"] += ms
                    row["busy_ms"] += int(ms * min(1.0, round(use, 12)))
                row["powered_ms"] += ms
                watts = sum(s.power_w or 0 for s in samples) / len(samples)
                row["millijoules"] += int(1000 * ms * watts / claim.device.capacity_milli)
            day += timedelta(days=1)
    return {key: {name: int(value) for name, value in row.items() if value} for key, row in found.items()}


@settings(
    max_examples=examples(6),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    tries=TRIES,
    steps=st.lists(st.integers(1, 3 * 1440), max_size=2),
    window=st.integers(5, 2000),
    again=st.integers(0, 4),
)
def test_the_ledger_is_what_the_record_says_in_whatever_steps_it_is_computed(
    town: Town, monkeypatch: pytest.MonkeyPatch, tries: list[Any], steps: list[int], window: int, again: int
) -> None:
    """Runs that are late, lost or doubled, and days that are computed again, change nothing."""
    monkeypatch.setattr(meter, "FIRST", window)
    monkeypatch.setattr(meter, "MOST", window)
    with transaction.atomic():
        if not Device.objects.exists():
            town.machine()
        core, card = Device.objects.get(kind="cpu"), Device.objects.get(kind="gpu", index=0)
        told = []
        for began_s, lasted_s, cause, saved, milli in tries:
            opened_at = BEGIN + timedelta(seconds=began_s)
            closed_at = None if lasted_s is None else opened_at + timedelta(seconds=lasted_s)
            cause = cause if closed_at else ""
            claims = past(town, [(core, 2000), (card, milli)], opened_at, closed_at, cause=cause)
            run = claims[0].part.attempt
            if saved is not None and lasted_s is not None:
                at = opened_at + timedelta(seconds=int(saved * lasted_s))
                Checkpoint.objects.create(stage=run.stage, attempt=run, step=1, path="/x", at=at)
            told += [opened_at + timedelta(seconds=s) for s in (0, 1, 59, 61, 3600)]
        DeviceSample.objects.bulk_create(
            DeviceSample(pk=(card.pk, at), device=card, at=at, utilisation=(n % 5) / 4, power_w=100.0 * (n % 3))
            for n, at in enumerate(sorted(set(told)))
        )
        # What ends later is still open in earlier runs: the record as it was then.
        for minutes in sorted(steps):
            then = BEGIN + timedelta(minutes=minutes)
            with rewritten():
                later = list(Claim.objects.filter(closed_at__gt=then))
                unborn = list(Claim.objects.filter(opened_at__gt=then).values_list("pk", "opened_at"))
                Claim.objects.filter(closed_at__gt=then).update(closed_at=None)
            ledger.refresh(then)
            with rewritten():
                for claim in later:
                    Claim.objects.filter(pk=claim.pk).update(closed_at=claim.closed_at)
            assert all(begun > then for _pk, begun in unborn)
        ledger.refresh(NOW)
        ledger.refresh(NOW)
        once = all_entries()
        for day in list(LedgerDay.objects.values_list("day", flat=True))[:again]:
            ledger.build(day, NOW)
        assert all_entries() == once
        of_jobs, of_ledger = job_sums()
        assert of_jobs == of_ledger
        names = ("allocated_ms", "known_ms", "busy_ms", "preempted_ms", "failed_ms", "powered_ms", "millijoules")
        stored = {
            (entry.day, entry.kind): {name: v for name in (*names, "attempts") if (v := getattr(entry, name))}
            for entry in LedgerEntry.objects.all()
        }
        expected = {key: row for key, row in directly(NOW).items() if row}
        assert stored.keys() == expected.keys()
        for key, row in expected.items():
            assert {name: stored[key].get(name, 0) for name in row} == pytest.approx(row, abs=3), key
            assert all(value <= 3 for name, value in stored[key].items() if name not in row), (key, stored[key], row)
        transaction.set_rollback(True)


def test_a_day_whose_jobs_may_be_gone_stays_as_it_was_counted(town: Town) -> None:
    town.machine()
    card = Device.objects.get(kind="gpu", index=0)
    then = NOW - timedelta(days=60)
    past(town, [(card, 1000)], then, then + timedelta(hours=1))
    ledger.refresh(NOW)
    before = all_entries()
    assert len(before) == 1
    with rewritten():
        Job.objects.filter(number__gte=1000).delete()
    assert ClaimMeter.objects.count() == 0
    days.mark_due(days.day_of(then), days.day_of(then), NOW)
    ledger.refresh(NOW + MINUTE)
    assert all_entries() == before
    recent = NOW - timedelta(hours=2)
    past(town, [(card, 1000)], recent, recent + timedelta(hours=1))
    ledger.refresh(NOW + 2 * MINUTE)
    assert len(all_entries()) == 2


def test_a_day_from_before_there_was_usage_by_job_gets_it_and_stays_as_it_was_counted(town: Town) -> None:
    """Until then the answer by job says that not all is counted."""
    town.machine()
    card = Device.objects.get(kind="gpu", index=0)
    then = NOW - timedelta(days=60)
    for n in range(2):
        past(town, [(card, 1000)], then + n * timedelta(hours=1), then + (n + 1) * timedelta(hours=1))
    ledger.refresh(NOW)
    before, day = all_entries(), days.day_of(then)
    kept, removed = Job.objects.filter(number__gte=1000).order_by("number")
    with rewritten():
        removed.delete()
    JobEntry.objects.filter(day=day).delete()
    LedgerDay.objects.filter(day=day).update(has_jobs=False, is_due=True)
    reader, asked = somebody("auditor"), f"/usage?from={day}&to={day}"
    assert [reader.read(f"{asked}&by={by}")["is_complete"] for by in ("project", "job")] == [True, False]
    ledger.refresh(NOW + MINUTE)
    assert all_entries() == before
    found = reader.read(f"{asked}&by=job")
    assert found["is_complete"]
    assert [(row["job"], row["allocated_device_s"]) for row in found["results"]] == [(kept.number, 3600)]
    assert [row["allocated_device_s"] for row in found["rest"]] == [3600]
    assert days.due(NOW + MINUTE) == [NOW.date()]


def test_the_database_refuses_a_day_that_was_busier_than_it_was_measured(town: Town) -> None:
    assert town.owner.user is not None
    with pytest.raises(IntegrityError), transaction.atomic():
        LedgerEntry.objects.create(
            day=NOW, project=town.project, user=town.owner.user, pool=town.pool, kind="gpu",
            allocated_ms=2, known_ms=1, busy_ms=2,
        )  # fmt: skip


# -- what people may see of it


@pytest.fixture
def used(town: Town) -> Town:
    """Two projects that used a GPU for three hours and one hour, a price, and somebody who only waits."""
    town.machine()
    card, core = Device.objects.get(kind="gpu", index=0), Device.objects.get(kind="cpu")
    begin = days.begin_of(NOW.date())
    past(town, [(card, 1000), (core, 4000)], begin - timedelta(hours=2), begin + timedelta(hours=1), cause="EXIT_CODE")
    other = past(town, [(card, 1000)], begin + timedelta(hours=2), begin + timedelta(hours=3))
    stranger = town.stranger.user
    assert stranger is not None
    with rewritten():
        Job.objects.filter(stages__attempts__parts__claims__in=other).update(
            project=Project.objects.get(name="other"), user=stranger
        )
    Price.objects.create(kind="gpu", per_device_hour=Decimal(1), valid_from=date(2026, 1, 1))
    Price.objects.create(kind="gpu", model="h100", per_device_hour=Decimal(2), valid_from=date(2026, 1, 1))
    Price.objects.create(kind="gpu", model="H100", per_device_hour=Decimal(3), valid_from=begin.date())
    ledger.refresh(NOW)
    return town


MONTH = "from=2026-11-01&to=2026-11-30"


def test_members_see_their_projects_and_who_keeps_accounts_sees_all(used: Town) -> None:
    seen = {
        name: {(row["project"], row["kind"]): row for row in person.read(f"/usage?{MONTH}")["results"]}
        for name, person in (("viewer", used.viewer), ("stranger", used.stranger), ("all", somebody("accountant")))
    }
    assert set(seen["viewer"]) == {("default", "gpu"), ("default", "cpu")}
    assert set(seen["stranger"]) == {("other", "gpu")}
    assert seen["all"] == seen["viewer"] | seen["stranger"]
    mine = seen["viewer"]["default", "gpu"]
    assert (mine["allocated_device_s"], mine["unknown_device_s"], mine["busy_device_s"]) == (3 * 3600, 3 * 3600, 0)
    assert (mine["lost_failed_device_s"], mine["lost_preempted_device_s"], mine["attempts"]) == (3 * 3600, 0, 1)
    assert (mine["cost"], mine["unpriced_device_s"]) == (2 * 2 + 1 * 3, 0), "each day by its own price"
    assert (mine["energy_j"], mine["co2_g"]) == (None, None), "unknown is not 0"
    cores = seen["viewer"]["default", "cpu"]
    assert (cores["allocated_device_s"], cores["cost"], cores["unpriced_device_s"]) == (12 * 3600, None, 12 * 3600)
    assert used.viewer.get("/usage?project=other").status_code == 404
    assert used.viewer.get("/usage?project=nowhere").status_code == 404
    assert somebody().read(f"/usage?{MONTH}")["results"] == []
    # Who has left a project still sees what was theirs.
    Member.objects.filter(user=used.owner.user).delete()
    assert len(used.owner.read(f"/usage?{MONTH}")["results"]) == 2


def test_rows_are_grouped_as_asked_and_add_up(used: Town) -> None:
    reader = somebody("auditor")
    whole = sum(row["charged_device_s"] for row in reader.read(f"/usage?{MONTH}")["results"])
    for by in ("day", "user,model", "job", "day,project,user,job,pool,model", ""):
        found = reader.read(f"/usage?{MONTH}&by={by}")
        assert sum(row["charged_device_s"] for row in found["results"]) == pytest.approx(whole)
        assert found["by"] == [word for word in by.split(",") if word]
        for row in found["results"]:
            groups = ("day", "project", "user", "job", "pool", "model")
            assert {name for name in groups if row[name] is not None} == set(found["by"])
            assert (row["job_name"] == "past") is ("job" in found["by"])
        assert (found["rest"], found["job_count"]) == ([], 2 if "job" in found["by"] else None)
    assert found["is_complete"] is True
    assert [row["day"] for row in reader.read(f"/usage?{MONTH}&by=day&project=other")["results"]] == ["2026-11-25"]
    shares = {share["project"]: share for share in found["shares"]}
    assert shares["default"]["target"] == shares["other"]["target"] == 0.5
    assert sum(share["received"] for share in shares.values()) == pytest.approx(1, abs=1e-3)
    assert [share["project"] for share in used.viewer.read(f"/usage?{MONTH}")["shares"]] == ["default"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("from=yesterday", "from must be a day such as 2027-01-31"),
        ("from=2026-11-02&to=2026-11-01", "from must not be after to"),
        ("from=2010-01-01&to=2026-11-01", "at most 1100 days"),
        ("by=stage", "by must name some of day, project, user, job, pool, model"),
        ("by=job&from=2026-01-01&to=2026-11-01", "by job, from must be at most 92 days before to"),
        ("by=job&limit=0", "limit"),
        ("by=job&limit=10001", "limit"),
        ("format=xml", "xml"),
        ("group=day", "group"),
    ],
)
def test_what_cannot_be_answered_says_what_could(town: Town, query: str, says: str) -> None:
    answer = town.owner.get(f"/usage?{query}")
    assert answer.status_code == 400
    assert says in answer.content.decode()


def test_the_file_for_accounting_has_no_cell_that_a_spreadsheet_would_run(used: Town) -> None:
    User.objects.filter(pk=used.stranger.user.pk).update(username='@SUM(A1)"x')  # type: ignore[union-attr]
    Device.objects.filter(kind="gpu").update(model="=cmd|' /C calc'!A0")
    LedgerEntry.objects.filter(kind="gpu").update(model="=cmd|' /C calc'!A0")
    answer = somebody("accountant").get(f"/usage?{MONTH}&by=user,model&format=csv")
    assert answer["Content-Type"].startswith("text/csv")
    assert answer["Content-Disposition"] == 'attachment; filename="usage-2026-11-01-2026-11-30.csv"'
    title, *rows = csv.reader(io.StringIO(answer.content.decode()))
    assert title[:4] == ["user", "kind", "model", "allocated_device_hours"]
    assert "cost_eur" in title
    assert {(row[0], row[3]) for row in rows} == {("owner", "3"), ("owner", "12"), ("'@SUM(A1)\"x", "1")}
    assert not [text for row in rows for text in row if text[:1] in {"=", "+", "-", "@", "\t", "\r"}]


ADDED = (
    "allocated_device_s", "busy_device_s", "idle_device_s", "unknown_device_s", "lost_preempted_device_s",
    "lost_failed_device_s", "charged_device_s", "attempts", "powered_device_s", "unpriced_device_s",
)  # fmt: skip


def test_by_job_those_that_were_charged_most_are_told_and_the_rest_as_one(used: Town) -> None:
    """The rest also has what retention has removed, so the sums are those of the project."""
    reader, card = somebody("auditor"), Device.objects.get(kind="gpu", index=0)
    begin = days.begin_of(NOW.date()) + timedelta(hours=4)
    for n in range(4):
        past(used, [(card, 1000)], begin + n * 10 * MINUTE, begin + (n * 10 + n + 1) * MINUTE)
    ledger.refresh(NOW + MINUTE)
    most, second = Job.objects.filter(number__gte=1000).order_by("number")[:2]

    def added(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
        kinds = {row["kind"] for row in rows}
        return {kind: {name: sum(r[name] for r in rows if r["kind"] == kind) for name in ADDED} for kind in kinds}

    whole = added(reader.read(f"/usage?{MONTH}")["results"])
    found = reader.read(f"/usage?{MONTH}&by=job&limit=2")
    assert [(row["job"], row["kind"]) for row in found["results"]] == [
        (most.number, "gpu"), (second.number, "gpu"), (most.number, "cpu"),
    ]  # fmt: skip
    assert found["job_count"] == 6
    assert [(row["kind"], row["allocated_device_s"], row["job"]) for row in found["rest"]] == [("gpu", 600, None)]
    assert added(found["results"] + found["rest"]) == whole
    assert found["rest"][0]["cost"] == pytest.approx(600 / 3600 * 3, abs=1e-3)
    with rewritten():
        # Cascades are triggers of Django's own, not of the database.
        most.delete()
    found = reader.read(f"/usage?{MONTH}&by=job")
    assert most.number not in {row["job"] for row in found["results"]}
    assert added(found["results"] + found["rest"]) == whole
    assert {row["kind"]: row["allocated_device_s"] for row in found["rest"]} == {"gpu": 3 * 3600, "cpu": 12 * 3600}
    text = reader.get(f"/usage?{MONTH}&by=job,project&format=csv").content.decode()
    title, *rows = csv.reader(io.StringIO(text))
    assert title[:4] == ["project", "job", "job_name", "kind"]
    assert [row[:4] for row in rows[-2:]] == [["", "others", "", "gpu"], ["", "others", "", "cpu"]]
    hours = title.index("allocated_device_hours")
    total = sum(row["allocated_device_s"] for row in whole.values())
    assert sum(float(row[hours]) for row in rows) * 3600 == pytest.approx(total, abs=0.1)


def test_the_name_of_a_job_is_for_who_may_see_the_job(used: Town) -> None:
    """Who keeps accounts sees the usage of all, and the names of no jobs but their own and their projects'."""
    accountant = somebody("accountant")
    assert {row["job_name"] for row in accountant.read(f"/usage?{MONTH}&by=job")["results"]} == {None}
    assert {row["job_name"] for row in somebody("auditor").read(f"/usage?{MONTH}&by=job")["results"]} == {"past"}
    assert accountant.user is not None
    Member.objects.create(project=used.project, user=accountant.user, role="viewer")
    found = accountant.read(f"/usage?{MONTH}&by=project,job")["results"]
    assert {(row["project"], row["job_name"]) for row in found} == {("default", "past"), ("other", None)}
    seen = {row["job"] for row in found if row["project"] == "other"}
    for person in (used.viewer, used.owner):
        mine = person.read(f"/usage?{MONTH}&by=job")
        assert seen.isdisjoint({row["job"] for row in mine["results"]})
        assert mine["job_count"] == 1
    assert {row["job"] for row in used.stranger.read(f"/usage?{MONTH}&by=job")["results"]} == seen
    assert somebody(username="nobody").read(f"/usage?{MONTH}&by=job")["results"] == []


@pytest.mark.parametrize("name", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)"])
def test_the_name_of_a_job_is_no_formula_in_the_file(used: Town, name: str) -> None:
    with rewritten():
        Job.objects.filter(number__gte=1000).update(name=name)
    answer = somebody("auditor").get(f"/usage?{MONTH}&by=job&format=csv")
    _title, *rows = csv.reader(io.StringIO(answer.content.decode()))
    assert {row[1] for row in rows} == {f"'{name}"}


def test_entries_of_jobs_are_written_only_where_they_differ(used: Town) -> None:
    """And what a device was called before is not left behind."""

    def versions() -> dict[Any, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT job_id, day, kind, model, ctid::text FROM usage_jobentry")
            return {row[:4]: row[4] for row in cursor.fetchall()}

    before, sums = versions(), all_entries()
    assert len(before) == 5
    ledger.build(NOW.date(), NOW)
    assert versions() == before
    Device.objects.filter(kind="gpu").update(model="H200")
    ledger.build(NOW.date(), NOW)
    assert sorted(model for _job, day, kind, model in versions() if kind == "gpu" and day == NOW.date()) == [
        "H200",
        "H200",
    ]
    assert len(versions()) == 5
    assert len(all_entries()) == len(sums)


@given(st.text(max_size=8))
def test_a_cell_is_never_a_formula_and_is_read_back(text: str) -> None:
    shown = cell(text)
    assert shown[:1] not in {"=", "+", "-", "@", "\t", "\r", "\n"}
    assert shown in (text, f"'{text}")


def test_prices_are_the_accountants_to_set(town: Town) -> None:
    """And each change is in the audit log."""
    given_price = {"kind": "gpu", "model": "H100", "per_device_hour": "2.5", "valid_from": "2026-11-01"}
    for role, allowed in (("accountant", True), ("operator", False), ("auditor", False)):
        client, person = Client(), somebody(role, is_staff=True)
        client.force_login(person.user)
        wrong = client.post("/admin/usage/price/add/", {**given_price, "kind": "GPU"})
        assert (b"No kind of device is called GPU" in wrong.content) is allowed
        assert (client.post("/admin/usage/price/add/", given_price).status_code == 302) is allowed
    assert Price.objects.get().per_device_hour == Decimal("2.5")
    assert [row["action"] for row in somebody("auditor", username="second").read("/audit")["results"]] == ["price.add"]


# -- receipts and advice

LEVELS = st.sampled_from([0.0, 0.01, 0.2, 0.25, 0.3, 0.5, 0.6, 1.0])


@given(st.lists(st.tuples(LEVELS, st.integers(0, 80 * GIB)), min_size=60, max_size=80))
def test_what_is_advised_on_a_device_would_have_fitted_every_measurement(told: list[tuple[float, int]]) -> None:
    one = held(most_use=max(use for use, _ in told), most_memory_bytes=max(size for _, size in told))
    share = advice.share_that_fits(one)
    if share == 0:
        assert all(use == 0 for use, _ in told)
    elif share is not None:
        assert all(use <= share and size <= share * one.memory_bytes for use, size in told)
    smaller = [s for s in advice.SHARES if share is None or s < share]
    assert not [
        s for s in smaller if share != 0 and all(use <= s and size <= s * one.memory_bytes for use, size in told)
    ]


@given(st.lists(st.tuples(st.floats(0, 64), st.integers(0, 300 * GIB)), min_size=60, max_size=70))
def test_what_is_advised_on_cores_and_memory_would_have_fitted_every_measurement(told: list[tuple[float, int]]) -> None:
    one = held(
        kind="cpu", count=64, most_use=max(use for use, _ in told), most_memory_bytes=max(size for _, size in told),
        memory_bytes=256 * GIB,
    )  # fmt: skip
    assert all(use <= advice.cores_that_fit(one) for use, _ in told)
    assert all(size <= advice.memory_that_fits(one) for _, size in told)
    says = advice.advise([one])
    if says["code"] == "FewerCores":
        assert int(says["params"]["cores"]) <= 32
    elif says["code"] == "LessMemory":
        assert says["params"]["memory_bytes"] <= 128 * GIB


def held(**fields: Any) -> StageHolding:
    usual: dict[str, Any] = {
        "stage": "main", "kind": "gpu", "model": "H100", "count": 1, "memory_bytes": 80 * GIB, "seconds": 3600.0,
        "charge": 2.0, "is_whole": True, "fewest_samples": 3600, "share_known": 1.0, "most_use": 1.0,
        "most_memory_bytes": 70 * GIB,
    }  # fmt: skip
    return StageHolding(**usual | fields)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"most_use": 0.2, "most_memory_bytes": 9 * GIB}, "QuarterWouldDo"),
        ({"most_use": 0.2, "most_memory_bytes": 30 * GIB}, "HalfWouldDo"),
        ({"most_use": 0.9, "most_memory_bytes": 9 * GIB}, "UsedAsAsked"),
        ({"most_use": 0.0, "most_memory_bytes": GIB}, "DeviceUnused"),
        ({"most_use": 0.2, "most_memory_bytes": 9 * GIB, "is_whole": False}, "UsedAsAsked"),
        ({"most_use": 0.2, "most_memory_bytes": 9 * GIB, "fewest_samples": 59}, "TooLittleMeasured"),
        ({"most_use": 0.2, "most_memory_bytes": 9 * GIB, "share_known": 0.9}, "TooLittleMeasured"),
        ({"most_use": None}, "TooLittleMeasured"),
        ({"kind": "cpu", "count": 16, "most_use": 3.2, "memory_bytes": GIB}, "FewerCores"),
        ({"kind": "cpu", "count": 4, "most_use": 3.2, "most_memory_bytes": GIB}, "LessMemory"),
    ],
)
def test_advice_is_given_only_where_measurements_support_it(fields: dict[str, Any], code: str) -> None:
    assert advice.advise([held(**fields)])["code"] == code


def test_of_several_pieces_of_advice_the_one_that_frees_most_is_given() -> None:
    cores = held(kind="cpu", count=16, most_use=1.0, memory_bytes=GIB)
    assert advice.advise([cores, held(most_use=0.1, most_memory_bytes=GIB)])["code"] == "QuarterWouldDo"
    assert advice.advise([]) == clause("TooLittleMeasured")


def test_a_receipt_says_what_a_job_held_and_used_and_advises_by_its_own_measurements(town: Town, settings: Any) -> None:
    settings.CO2_G_PER_KWH = 400.0
    town.machine()
    card, core = Device.objects.get(kind="gpu", index=0), Device.objects.get(kind="cpu")
    begin = NOW - timedelta(hours=1)
    claims = past(town, [(card, 1000), (core, 4000)], begin, begin + 10 * MINUTE)
    Price.objects.create(kind="gpu", per_device_hour=Decimal(6), valid_from=date(2026, 1, 1))
    told = [begin + timedelta(seconds=5 * n) for n in range(121)]
    quarter = card.memory_bytes // 4
    DeviceSample.objects.bulk_create(
        DeviceSample(pk=(card.pk, at), device=card, at=at, utilisation=0.2, memory_used_bytes=quarter, power_w=100.0)
        for at in told
    )
    part = claims[0].part_id
    PartSample.objects.bulk_create(
        PartSample(pk=(part, at), part_id=part, at=at, cpu=4.0, rss_bytes=2**20) for at in told
    )
    ledger.refresh(NOW)
    job = Job.objects.get(number__gte=1000)
    found = town.viewer.read(f"/jobs/{job.number}/receipt")
    (gpu, cpu) = found["lines"]
    assert (gpu["kind"], gpu["allocated_device_s"], gpu["busy_device_s"], gpu["idle_device_s"]) == (
        "gpu",
        600,
        120,
        480,
    )
    assert (cpu["allocated_device_s"], cpu["busy_device_s"], cpu["unknown_device_s"]) == (2400, 2400, 0)
    assert (found["wait_s"], found["cost"], found["is_priced_whole"]) == (60, 1.0, False)
    assert (found["energy_j"], found["co2_g"]) == (60_000, 6.7)
    assert found["advice_said"][0]["code"] == "QuarterWouldDo"
    assert "a quarter of it would do" in found["advice"]
    # One measurement more that would not have fitted, and it is not said.
    DeviceSample.objects.create(
        pk=(card.pk, begin + timedelta(seconds=7)), device=card, at=begin + timedelta(seconds=7), utilisation=0.2,
        memory_used_bytes=quarter + 1, power_w=100.0,
    )  # fmt: skip
    ClaimMeter.objects.all().delete()
    LedgerMark.objects.update(measured_until=begin.replace(second=0))
    ledger.refresh(NOW)
    assert receipts.advised(job)["code"] == "HalfWouldDo"
    assert town.stranger.get(f"/jobs/{job.number}/receipt").status_code == 404


def test_the_receipt_of_a_job_that_runs_counts_up_to_now(town: Town) -> None:
    job = town.running(town.machine(), devices={"kind": "gpu"})
    found = town.owner.read(f"/jobs/{job.number}/receipt")
    assert found["advice_said"] == [clause("StillOpen")]
    assert {line["kind"] for line in found["lines"]} == {"gpu", "cpu"}
    assert all(line["lost_failed_device_s"] == 0 for line in found["lines"])
    count()
    rows = town.owner.read("/usage?by=model")["results"]
    assert {row["kind"]: row["attempts"] for row in rows} == {"gpu": 1, "cpu": 0}
    assert charges.of("cpu", {}) == 1 / 32


def test_pages_show_a_reader_their_own_usage_and_the_receipt_of_their_job(town: Town) -> None:
    job = town.running(town.machine(), devices={"kind": "gpu"})
    count()
    pages = {}
    for name, person in (("viewer", town.viewer), ("stranger", town.stranger)):
        client = Client()
        client.force_login(person.user)
        pages[name] = client.get("/usage?range=7d&by=user&kind=gpu").content.decode()
        assert client.get(f"/jobs/{job.number}").status_code == (200 if name == "viewer" else 404)
    assert "owner" in pages["viewer"]
    assert 'data-chart="stack"' in pages["viewer"]
    assert "owner" not in pages["stranger"]
    assert "default" not in re.findall(r"<option[^>]*>([^<]*)</option>", pages["stranger"])
    client.force_login(town.viewer.user)
    shown = client.get(f"/jobs/{job.number}/usage", headers={"accept-language": "zh-CN"}).content.decode()
    assert "结束后给出建议" in shown


def test_the_page_by_job_leads_to_the_receipts_of_jobs_that_the_reader_may_see(used: Town) -> None:
    numbers = dict(Job.objects.filter(number__gte=1000).values_list("project__name", "number"))

    def shown(person: Any, **query: str) -> str:
        client = Client()
        client.force_login(person.user)
        asked = {"by": "job", "range": "90d", **query}
        return client.get("/usage", asked, headers={"accept-language": "en-US"}).content.decode()

    mine = shown(used.viewer)
    assert f'href="/jobs/{numbers["default"]}/usage">#{numbers["default"]} past</a>' in mine
    assert "default · owner" in mine
    assert f"#{numbers['other']}" not in mine
    assert "by=job%2Cproject%2Cuser" in mine
    keeper = shown(somebody("accountant"))
    assert all(f"#{number}</span>" in keeper for number in numbers.values())
    assert '/usage">#' not in keeper, "no name of a job that they may not see, and no way to it"
    with rewritten():
        Job.objects.get(number=numbers["default"]).delete()
    gone = shown(used.viewer)
    assert "jobs that are no longer there" in gone
    assert "other jobs" not in gone
    assert "range=365d" not in gone
    assert 'aria-current="true">30 d' in shown(used.viewer, range="365d")


def test_the_receipt_and_the_usage_of_claims_that_share_a_device_say_the_same(town: Town) -> None:
    """And what they were busy together is what the device was."""
    town.machine()
    card = Device.objects.filter(kind="gpu").first()
    assert card is not None
    begin = NOW - timedelta(hours=2)
    Device.objects.filter(pk=card.pk).update(mode="shared")
    for milli, first, last in ((250, 0, 10), (500, 0, 6), (250, 2, 10)):
        past(town, [(card, milli)], begin + first * MINUTE, begin + last * MINUTE)
    DeviceSample.objects.bulk_create(
        DeviceSample(pk=(card.pk, at), device=card, at=at, utilisation=0.2)
        for at in (begin + timedelta(seconds=5 * n) for n in range(120))
    )
    ledger.refresh(NOW)
    found = {row["job"]: row for row in town.owner.read(f"/usage?{MONTH}&by=job")["results"]}
    receipts_of = {number: town.owner.read(f"/jobs/{number}/receipt")["lines"][0] for number in found}
    assert len(found) == 3
    for number, row in found.items():
        for name in ("allocated_device_s", "busy_device_s", "idle_device_s", "unknown_device_s"):
            assert row[name] == receipts_of[number][name], name
        assert row["unknown_device_s"] == 0
    assert sum(row["busy_device_s"] for row in found.values()) == pytest.approx(0.2 * 600, abs=0.1)
    (whole,) = town.owner.read(f"/usage?{MONTH}")["results"]
    assert whole["busy_device_s"] == pytest.approx(0.2 * 600, abs=0.1)


def test_claims_of_a_shared_device_divide_its_busy_time_by_what_they_hold(town: Town) -> None:
    town.machine()
    card = Device.objects.filter(kind="gpu").first()
    assert card is not None
    begin = NOW - timedelta(hours=2)
    until = begin + timedelta(minutes=10)
    # Alone for five minutes at a quarter, then beside another at a half.
    (small,) = past(town, [(card, 250)], begin, until)
    (large,) = past(town, [(card, 500)], begin + timedelta(minutes=5), until)
    DeviceSample.objects.bulk_create(
        DeviceSample(pk=(card.pk, at), device=card, at=at, utilisation=0.3)
        for at in (begin + timedelta(seconds=10 * n) for n in range(60))
    )
    ledger.refresh(NOW)
    found = {row.claim_id: row for row in ClaimMeter.objects.all()}
    # No more than it holds while it is alone (300 of 250), then 300 x 250 / 750 and 300 x 500 / 750.
    assert found[small.pk].busy_ms == 300 * 250 + 300 * 100
    assert found[large.pk].busy_ms == 300 * 200
    assert (found[small.pk].known_ms, found[large.pk].known_ms) == (600 * 250, 300 * 500)
    assert found[small.pk].samples == 0, "it was not measured itself, so advice says nothing of it"
