"""A node or a pool that will not serve: nothing starts there that would run into it, and everybody may know why."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.fleet import maintenance
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.fleet.service import NodeRefused
from controlplane.pools.models import Pool
from tests.record.yard import Yard, stage, states

HOUR = timedelta(hours=1)


def plan(*, node: Node | None = None, pool: Pool | None = None, begins: float, ends: float) -> MaintenanceWindow:
    """A window in hours from now."""
    now = timezone.now()
    return maintenance.plan(
        node=node, pool=pool, starts_at=now + begins * HOUR, ends_at=now + ends * HOUR, reason="new fans", actor="ada"
    )


def test_what_would_run_into_it_waits_and_what_is_done_before_starts(yard: Yard) -> None:
    agent = yard.agent("a")
    window = plan(node=agent.node, begins=2, ends=4)
    long, short = yard.submit(expected="3h", time_limit="3h"), yard.submit(expected="30m", time_limit="1h")
    yard.cycle()
    assert agent.start() == ["main"]
    assert (states(short)["main"], states(long)["main"]) == ("RUNNING", "PENDING")
    (reason, *_) = stage(long).reasons
    assert (reason["code"], reason["params"]["at"]) == ("MaintenanceWindow", window.starts_at.timestamp())
    assert stage(long).planned["start_at"] >= window.ends_at.isoformat(timespec="milliseconds")[:19]


def test_another_node_serves_meanwhile(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    plan(node=a.node, begins=1, ends=4)
    for _ in range(2):
        yard.submit(expected="3h", time_limit="3h")
    yard.cycle()
    assert (a.start(), b.start()) == ([], ["main", "main"])


def test_a_window_of_a_pool_closes_all_its_nodes_and_one_that_is_called_off_closes_none(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    window = plan(pool=yard.pool, begins=-1, ends=1)
    job = yard.submit()
    yard.cycle()
    assert (a.start(), b.start()) == ([], [])
    assert stage(job).reasons[0]["code"] == "MaintenanceWindow"
    maintenance.cancel(window, "eve")
    yard.cycle()
    assert a.start() + b.start() == ["main"]
    window.refresh_from_db()
    assert (window.cancelled_by, window.cancelled_at is None) == ("eve", False)
    with pytest.raises(NodeRefused, match="cancelled before"):
        maintenance.cancel(window, "eve")


def test_a_window_that_is_over_is_forgotten_by_the_engine(yard: Yard) -> None:
    agent = yard.agent("a")
    plan(node=agent.node, begins=-2, ends=1)
    yard.submit()
    yard.cycle()
    assert agent.start() == []
    MaintenanceWindow.objects.update(ends_at=timezone.now())
    yard.cycle()
    assert agent.start() == ["main"]


@pytest.mark.parametrize(
    ("begins", "ends", "reason", "words"),
    [
        (2, 1, "fans", "must end after it starts"),
        (-3, -1, "fans", "lies in the past"),
        (1, 10_000, "fans", "longer than 366 days"),
        (1, 2, "  ", "needs a reason"),
    ],
)
def test_a_window_that_cannot_be_is_refused(yard: Yard, begins: float, ends: float, reason: str, words: str) -> None:
    now = timezone.now()
    with pytest.raises(NodeRefused, match=words):
        maintenance.plan(
            pool=yard.pool, starts_at=now + begins * HOUR, ends_at=now + ends * HOUR, reason=reason, actor="ada"
        )
    assert not MaintenanceWindow.objects.exists()


def test_it_is_about_a_node_or_a_pool(yard: Yard) -> None:
    agent, now = yard.agent("a"), timezone.now()
    for node, pool in ((None, None), (agent.node, yard.pool)):
        with pytest.raises(NodeRefused, match="either a node or a pool"):
            maintenance.plan(node=node, pool=pool, starts_at=now, ends_at=now + HOUR, reason="fans", actor="ada")
