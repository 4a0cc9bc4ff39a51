"""Reservations in the live loop: reserved nodes are for jobs that name the reservation, and entries may recur."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts.models import Member, Project, User
from controlplane.fleet import calendar, maintenance, reservations
from controlplane.fleet.calendar import EntryRefused
from controlplane.fleet.models import MaintenanceWindow, Reservation
from controlplane.fleet.service import NodeRefused
from controlplane.jobs import change, service
from controlplane.jobs.models import Job
from controlplane.jobs.spec import InvalidSpec
from tests.record.yard import Yard, cpu, gpu, stage, states

HOUR = timedelta(hours=1)


def plan(yard: Yard, *nodes: Any, begins: float = -1, ends: float = 1, **more: Any) -> Reservation:
    """A reservation in hours from now."""
    now = timezone.now()
    times = {"starts_at": now + begins * HOUR, "ends_at": now + ends * HOUR}
    return reservations.plan(
        **{"name": "demo", "project": yard.project, "nodes": nodes, "reason": "the demo", "actor": "eve"} | times | more
    )


def primary(job: Job) -> dict[str, Any]:
    return dict(stage(job).reasons[0])


def test_reserved_nodes_are_for_its_jobs_until_it_is_cancelled(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    made = plan(yard, agent.node)
    inside, outside = yard.submit(reservation="demo", name="in"), yard.submit()
    yard.cycle()
    assert agent.start() == ["main"]
    assert (states(inside)["main"], states(outside)["main"]) == ("RUNNING", "PENDING")
    assert (primary(outside)["code"], primary(outside)["params"]["project"]) == ("Reserved", "default")
    reservations.cancel(made, "eve")
    later = Job.objects.get(pk=inside.pk)
    yard.cycle()
    assert agent.start() == ["main"]
    assert states(later)["main"] == states(outside)["main"] == "RUNNING"
    with pytest.raises(NodeRefused, match="cancelled before"):
        reservations.cancel(made, "eve")


def test_its_jobs_wait_for_it_and_without_it_no_longer(yard: Yard) -> None:
    yard.agent("a")
    made = plan(yard, *yard.pool.nodes.all(), begins=2, ends=4)
    job = yard.submit(reservation="demo", expected="5m")
    yard.cycle()
    assert primary(job)["code"] == "ReservationAhead"
    assert stage(job).planned["start_at"][:19] == made.starts_at.astimezone(UTC).isoformat()[:19]
    reservations.cancel(made, "eve")
    yard.cycle()
    assert primary(job)["code"] == "ReservationOver"
    change.change(job, {"reservation": None}, yard.user)
    yard.cycle()
    assert states(job)["main"] == "STARTING"


def test_only_who_holds_it_may_name_it_and_a_job_is_not_moved_away_with_it(yard: Yard) -> None:
    agent = yard.agent("a")
    bob, other = User.objects.create(username="bob"), Project.objects.create(name="other")
    for project in (yard.project, other):
        Member.objects.create(project=project, user=bob, role="member")
    plan(yard, agent.node, users=[yard.user], begins=1, ends=2)
    for who, spec in ((bob, {}), (yard.user, {"project": "other"}), (yard.user, {"reservation": "none"})):
        with pytest.raises(InvalidSpec, match="holds no reservation"):
            service.submit({"run": "true", "reservation": "demo", **spec}, who)
    job = yard.submit(reservation="demo")
    with pytest.raises(InvalidSpec, match="project other holds no reservation demo"):
        change.change(job, {"project": "other"}, yard.user)


def test_what_overlaps_is_refused_and_a_count_takes_whole_nodes_that_nothing_keeps(yard: Yard) -> None:
    a, b, c = (yard.agent(name, cpu(name), gpu(name, 0), gpu(name, 1)) for name in "abc")
    plan(yard, a.node, begins=1, ends=3)
    with pytest.raises(EntryRefused, match="node a is kept for reservation demo from "):
        plan(yard, b.node, a.node, name="late", begins=2, ends=4)
    plan(yard, a.node, name="after", begins=3, ends=4)
    now = timezone.now()
    maintenance.plan(node=b.node, starts_at=now + HOUR, ends_at=now + 2 * HOUR, reason="fans", actor="eve")
    wish: dict[str, Any] = {"pool": yard.pool, "device": "gpu", "begins": 1, "ends": 2}
    assert [node.name for node in plan(yard, name="two", count=1, **wish).nodes.all()] == ["c"]
    with pytest.raises(EntryRefused, match="has 0 gpu on nodes that nothing else keeps at that time; 1 are"):
        plan(yard, name="more", count=1, **wish)
    assert c.node.reservations.count() == 1


def test_a_dry_run_stores_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    assert [node.name for node in plan(yard, agent.node, only_tried=True).nodes.all()] == ["a"]
    assert not Reservation.objects.exists()


MONDAYS = {"cron": "0 3 * * 1", "time_zone": "Europe/Berlin", "lasts_s": 7200}


def test_an_entry_recurs_in_its_zone_and_keeps_its_hour_when_the_clock_is_changed() -> None:
    entry = MaintenanceWindow(
        starts_at=datetime(2026, 3, 20, tzinfo=UTC), ends_at=datetime(2026, 4, 7, tzinfo=UTC), **MONDAYS
    )
    found = [at.isoformat() for at, _end in calendar.times(entry, entry.starts_at, entry.ends_at)]
    assert found == [
        "2026-03-23T02:00:00+00:00",
        "2026-03-30T01:00:00+00:00",
        "2026-04-06T01:00:00+00:00",
    ]
    inside = datetime(2026, 3, 30, 2, tzinfo=UTC)
    assert calendar.next_time(entry, inside)[0].isoformat() == found[1]


def test_recurring_entries_overlap_only_where_their_times_do() -> None:
    year = {"starts_at": datetime(2026, 1, 1, tzinfo=UTC), "ends_at": datetime(2026, 12, 1, tzinfo=UTC)}
    mondays = MaintenanceWindow(**year, **MONDAYS)
    assert calendar.overlap(mondays, MaintenanceWindow(**year, **{**MONDAYS, "cron": "0 3 * * 2"})) is None
    first = calendar.overlap(mondays, MaintenanceWindow(**year, **{**MONDAYS, "cron": "0 4 1 * *"}))
    assert first is not None
    assert first.isoformat() == "2026-06-01T02:00:00+00:00"


@pytest.mark.parametrize(
    ("recurs", "words"),
    [
        ({**MONDAYS, "lasts_s": None}, "needs both"),
        ({**MONDAYS, "cron": "0 3 * *"}, "is no cron line"),
        ({**MONDAYS, "time_zone": "Mars"}, "there is no time zone Mars"),
        ({**MONDAYS, "cron": "* * * * *"}, "more than 1000 times"),
        ({**MONDAYS, "cron": "0 * * * 1", "lasts_s": 7200}, "must end before the next begins"),
    ],
)
def test_a_recurrence_that_cannot_be_is_refused(yard: Yard, recurs: dict[str, Any], words: str) -> None:
    now = timezone.now()
    with pytest.raises(NodeRefused, match=words):
        maintenance.plan(
            pool=yard.pool, starts_at=now, ends_at=now + timedelta(days=60), reason="fans", actor="ada", **recurs
        )


def test_the_engine_obeys_a_window_that_recurs(yard: Yard) -> None:
    agent = yard.agent("a")
    now = timezone.now()
    soon = now + HOUR
    maintenance.plan(
        node=agent.node, starts_at=now, ends_at=now + timedelta(days=20), reason="fans", actor="ada",
        cron=f"{soon.minute} {soon.hour} * * *", time_zone="UTC", lasts_s=3600,
    )  # fmt: skip
    long, short = yard.submit(expected="3h", time_limit="3h"), yard.submit(expected="10m", time_limit="30m")
    yard.cycle()
    assert (states(short)["main"], states(long)["main"]) == ("STARTING", "PENDING")
    assert primary(long)["code"] == "MaintenanceWindow"
