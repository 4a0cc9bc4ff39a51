"""A stage that waits is told that a provider is bringing a node for it, and only then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone, translation

from controlplane.jobs.models import Job
from controlplane.jobs.reasons import reason_text
from controlplane.operations import pilots as duty
from controlplane.providers.coming import ComingNodes
from controlplane.providers.models import NodeProvider, Pilot
from tests.record.yard import Yard, clock, cpu, stage

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(yard: Yard) -> NodeProvider:
    yard.agent("n1", cpu("n1"))
    return NodeProvider.objects.create(
        name="lab", kind="ray", pool=yard.pool, shapes=[{"name": "big", "cpus": 64, "memory_gib": 64}], hours=1.0,
        settings={"endpoint": "ray", "python": "/opt/python"},
    )  # fmt: skip


def pilot(lab: NodeProvider, **more: Any) -> Pilot:
    return Pilot.objects.create(
        provider=lab, shape="big", hours=1.0, label=f"yard-{lab.tag}-{Pilot.objects.count():032x}",
        created_at=timezone.now(), **more,
    )  # fmt: skip


def reasons(yard: Yard, job: Job, later_s: float) -> list[str]:
    """Return the codes of the stage's reasons after a cycle so much later."""
    yard.cycle(clock() + later_s)
    return [each["code"] for each in stage(job).reasons]


def test_a_pilot_that_is_coming_is_the_first_reason_until_its_agent_joins(yard: Yard, lab: NodeProvider) -> None:
    job = yard.submit(cpus=32, memory="1GiB", time_limit="30m")
    without = reasons(yard, job, 0)
    assert without
    assert "ProviderBrings" not in without
    one = pilot(lab)
    assert reasons(yard, job, 10) == ["ProviderBrings", *without]
    first = stage(job).reasons[0]
    assert first["text"].startswith("provider lab is bringing a node for it, asked for at ")
    assert first["params"]["at"] == one.created_at.timestamp()
    with translation.override("zh-hans"):
        assert "lab" in reason_text(first)
        assert "provider" not in reason_text(first)
    Pilot.objects.update(joined_at=timezone.now())
    assert reasons(yard, job, 20) == without


@pytest.mark.parametrize(
    "change",
    [{"state": "LEAVING"}, {"state": "GONE"}, {"shape": "other"}],
)
def test_one_that_leaves_or_has_no_shape_any_more_is_not_coming(yard: Yard, lab: NodeProvider, change: Any) -> None:
    job = yard.submit(cpus=32, memory="1GiB", time_limit="30m")
    row = pilot(lab)
    Pilot.objects.filter(pk=row.pk).update(**change)
    assert "ProviderBrings" not in reasons(yard, job, 0)


@pytest.mark.parametrize(
    "asks",
    [{"time_limit": "59m"}, {"cpus": 65}, {"time_limit": "30m", "hold": True}],
)
def test_a_stage_that_it_would_not_help_is_told_its_own_reason(yard: Yard, lab: NodeProvider, asks: Any) -> None:
    # Accepted while there was a node for it.
    yard.agent("n2", cpu("n2", 128))
    job = yard.submit(**{"cpus": 32, "memory": "1GiB", "time_limit": "30m", **asks})
    yard.submit(cpus=128, memory="1GiB", time_limit="30m", priority="high")
    pilot(lab)
    assert "ProviderBrings" not in reasons(yard, job, 0)


def test_what_waits_for_a_node_that_is_coming_still_counts_as_demand(yard: Yard, lab: NodeProvider) -> None:
    job = yard.submit(cpus=32, memory="1GiB", time_limit="30m")
    pilot(lab)
    assert reasons(yard, job, 0)[0] == "ProviderBrings"
    engine = duty.kinds.engine("ray", lab.settings)
    assert duty.wanted(lab, engine, timezone.now() + timedelta(minutes=1)) == {"big": 1}


def test_without_pilots_nothing_is_looked_at_but_one_statement(
    yard: Yard, lab: NodeProvider, django_assert_num_queries: Any
) -> None:
    coming = ComingNodes()
    with django_assert_num_queries(1):
        coming.refresh(100.0)
        coming.refresh(101.0)
