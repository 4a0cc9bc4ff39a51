"""Schedules: each time is submitted once, as the owner, whatever was missed, runs still or is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

import pytest
from django.db import connection
from django.utils.translation import override
from hypothesis import given
from hypothesis import strategies as st

from controlplane import cron
from controlplane.accounts.models import Member
from controlplane.jobs.models import Bundle, Job
from controlplane.jobs.spec import InvalidSpec
from controlplane.retention import kinds
from controlplane.schedules import service
from controlplane.schedules.models import Schedule, ScheduleRun
from tests.record.yard import Yard, stage

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
JOB = {"name": "nightly", "run": "true", "cpus": 1}


def made(yard: Yard, **changes: Any) -> Schedule:
    asked = {"name": "nightly", "job": JOB, "cron": "0 * * * *", "zone": "UTC", **changes}
    return service.make(yard.user, NOW, **asked)


def outcomes(row: Schedule) -> list[tuple[str, str]]:
    return [(f"{run.due_at:%d %H:%M}", run.outcome) for run in row.runs.order_by("due_at")]


def test_a_schedule_is_submitted_at_its_times_as_its_owner(yard: Yard) -> None:
    yard.agent("a")
    row = made(yard, overlap="allow")
    assert row.next_at == NOW + timedelta(hours=1)
    assert service.submit_due(NOW + timedelta(minutes=59)) == 0
    for hours in (1, 2):
        assert service.submit_due(NOW + timedelta(hours=hours, seconds=3)) == 1
        assert service.submit_due(NOW + timedelta(hours=hours, seconds=9)) == 0
    assert outcomes(row) == [("28 13:00", "submitted"), ("28 14:00", "submitted")]
    jobs = Job.objects.order_by("number")
    assert [run.number for run in row.runs.order_by("due_at")] == [job.number for job in jobs]
    assert {(job.user, job.project, job.labels["schedule"]) for job in jobs} == {(yard.user, row.project, "nightly")}
    assert jobs[0].events.get(kind="submitted").actor == "schedule nightly"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [("28 13:00", "missed"), ("28 14:00", "missed"), ("28 15:00", "missed")]),
        ("last", [("28 13:00", "missed"), ("28 14:00", "missed"), ("28 15:00", "submitted")]),
        ("all", [("28 13:00", "submitted"), ("28 14:00", "submitted"), ("28 15:00", "submitted")]),
    ],
)
def test_what_the_server_missed_is_caught_up_by_its_rule(yard: Yard, rule: str, expected: Any) -> None:
    yard.agent("a")
    row = made(yard, catch_up=rule, overlap="allow")
    service.submit_due(NOW + timedelta(hours=3, minutes=30))
    assert outcomes(row) == expected
    row.refresh_from_db()
    assert row.next_at == NOW + timedelta(hours=4)


def test_of_years_that_were_missed_few_are_caught_up(yard: Yard) -> None:
    yard.agent("a")
    row = made(yard, catch_up="all", cron="* * * * *", overlap="allow")
    service.submit_due(NOW + timedelta(days=400))
    assert Job.objects.count() == service.MOST_CAUGHT_UP
    assert row.runs.count() <= service.MOST_RUNS_KEPT


@pytest.mark.parametrize("rule", ["skip", "replace", "allow"])
def test_a_job_that_still_runs_is_skipped_replaced_or_joined(yard: Yard, rule: str) -> None:
    yard.agent("a")
    row = made(yard, overlap=rule)
    service.submit_due(NOW + timedelta(hours=1))
    service.submit_due(NOW + timedelta(hours=2))
    first, *others = Job.objects.order_by("number")
    assert outcomes(row)[1][1] == ("skipped" if rule == "skip" else "submitted")
    assert (first.state, len(others)) == {"skip": ("PENDING", 0), "replace": ("CANCELLED", 1), "allow": ("PENDING", 1)}[
        rule
    ]


def test_who_lost_their_project_has_no_job_submitted_and_reads_why(yard: Yard) -> None:
    yard.agent("a")
    row = made(yard)
    yard.user.is_superuser = yard.user.is_staff = False
    yard.user.save()
    yard.user.groups.clear()
    Member.objects.filter(user=yard.user).delete()
    for hours in range(1, service.PATIENCE + 2):
        service.submit_due(NOW + timedelta(hours=hours))
    row.refresh_from_db()
    assert Job.objects.count() == 0
    assert {outcome for _, outcome in outcomes(row)} == {"refused"}
    assert (row.is_paused, row.next_at, row.refusals) == (True, None, service.PATIENCE)
    assert "/project" in row.fault


def test_a_refusal_is_told_in_the_language_of_who_made_it(yard: Yard) -> None:
    yard.agent("a")
    with override("zh-hans"):
        row = made(yard)
    yard.user.is_active = False
    yard.user.save()
    service.submit_due(NOW + timedelta(hours=1))
    row.refresh_from_db()
    assert row.fault == row.runs.get().detail == f"用户 {yard.user.get_username()} 已停用"


def test_two_workers_submit_a_time_once(yard: Yard, transactional_db: None) -> None:
    yard.agent("a")
    row = made(yard, overlap="allow")
    barrier, counts = threading.Barrier(6), list[int]()

    def look() -> None:
        barrier.wait()
        counts.append(service.submit_due(NOW + timedelta(hours=1)))
        connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 1
    assert ScheduleRun.objects.filter(schedule=row).count() == Job.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"cron": "0 0 31 2 *"}, "/cron"),
        ({"cron": "every day"}, "/cron"),
        ({"cron": "* * * * * *"}, "/cron"),
        ({"cron": "0" * 500}, "/cron"),
        ({"zone": "Mars/Olympus"}, "/zone"),
        ({"ends_at": NOW - timedelta(days=1)}, "/ends_at"),
        ({"starts_at": NOW + timedelta(days=2), "ends_at": NOW + timedelta(days=1)}, "/ends_at"),
        ({"job": {**JOB, "env": {"API_TOKEN": "s3cr3t"}}}, "/job"),
    ],
)
def test_what_could_never_run_is_refused_with_its_field(yard: Yard, changes: Any, pointer: str) -> None:
    yard.agent("a")
    with pytest.raises(service.ScheduleRefused) as refused:
        made(yard, **changes)
    assert [error.pointer for error in refused.value.errors] == [pointer]
    assert not Schedule.objects.exists()


def test_a_job_file_with_faults_is_refused_when_the_schedule_is_made(yard: Yard) -> None:
    yard.agent("a")
    with pytest.raises(InvalidSpec):
        made(yard, job={"run": "true", "cpuz": 3})


def test_a_paused_schedule_does_nothing_until_it_goes_on(yard: Yard) -> None:
    yard.agent("a")
    row = service.change(yard.user, made(yard), NOW, is_paused=True)
    assert service.submit_due(NOW + timedelta(hours=5)) == 0
    row = service.change(yard.user, row, NOW + timedelta(hours=5), is_paused=False)
    assert row.next_at == NOW + timedelta(hours=6)
    done = service.run_now(row, NOW + timedelta(hours=5, minutes=1))
    assert (done.outcome, Job.objects.get().number) == ("submitted", done.number)
    assert stage(Job.objects.get()).state == "PENDING"


def test_the_files_of_a_schedule_are_kept(yard: Yard) -> None:
    yard.agent("a")
    Bundle.objects.create(sha256="a" * 64, size_bytes=3, used_at=NOW)
    assert kinds._bundles(None).count() == 1
    made(yard, job={**JOB, "bundle": "a" * 64})
    assert kinds._bundles(None).count() == 0


def test_days_on_which_the_clock_is_changed(yard: Yard) -> None:
    """In Berlin the hour from 2 to 3 is missing on 29 March 2026, and comes twice on 25 October."""
    spring = cron.times("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [f"{next(spring):%d %H:%M}" for _ in range(2)] == ["29 01:00", "30 00:30"]
    autumn = cron.times("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert [f"{next(autumn):%d %H:%M}" for _ in range(2)] == ["25 00:30", "26 01:30"]


@given(st.text(max_size=30) | st.from_regex(r"[0-9*,/-]{1,5}( [0-9*,/-]{1,5}){4}", fullmatch=True))
def test_any_line_has_times_that_rise_or_is_refused(line: str) -> None:
    try:
        found = cron.times(line, "Europe/Berlin", NOW)
        some = [at for at, _ in zip(found, range(3), strict=False)]
    except cron.CronFault:
        return
    assert some == sorted(set(some))
    assert all(at > NOW for at in some)


@given(
    st.sampled_from(["30 2 * * *", "*/7 1-3 * * *", "59 1,2 * * *", "0 0 1 * *", "5 2 * * 0"]),
    st.sampled_from([datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)]),
    st.integers(-2000, 4000),
)
def test_the_newest_times_are_the_last_of_all_times(line: str, clock_changes_at: datetime, minutes: int) -> None:
    since, until = clock_changes_at - timedelta(days=40), clock_changes_at + timedelta(minutes=minutes)
    every = takewhile(lambda at: at <= until, cron.times(line, "Europe/Berlin", since))
    assert cron.newest(line, "Europe/Berlin", since, until, 24) == list(every)[-24:]
