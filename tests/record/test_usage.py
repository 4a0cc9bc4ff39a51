"""The use of projects, read from the claims as they open and close."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from django.db import connection

from controlplane.accounts.models import Project
from controlplane.jobs.models import Claim
from controlplane.scheduling.usage import UsageLedger
from scheduler.core.resources import charges
from scheduler.core.resources.usage import Usage
from tests.record.yard import Yard, cpu, gpu, stage


def test_the_account_is_that_of_one_who_reads_it_all(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a", 0), gpu("a", 1))
    first, second = (yard.submit(devices={"kind": "gpu"}) for _ in range(2))
    yard.cycle()
    agent.start()
    opened_at = Claim.objects.earliest("opened_at").opened_at.timestamp()
    ledger, mine = UsageLedger(), str(yard.project.id)
    assert ledger.used(opened_at)[mine] == pytest.approx(0.0, abs=1.0)
    after = ledger.used(opened_at + 100.0)[mine]
    assert 200.0 < after < 220.0, "two GPUs of which nothing is declared, and their cores"
    agent.end(stage(first))
    Project.objects.update(name="another-name")
    later = opened_at + 300.0
    assert set(ledger.used(later)) == {mine}, "a name says nothing of whose it is"
    assert ledger.used(later)[mine] == pytest.approx(UsageLedger().used(later)[mine], rel=1e-6)
    assert 300.0 < ledger.used(later)[mine] < 340.0, "one of them ended as soon as it had begun"
    agent.end(stage(second))
    assert sum(one.used_device_s for one in yard.store.load(later).projects) > 0


@pytest.mark.parametrize(("began_ago_s", "lasted_s"), [(300.0, 10.0), (7 * 86_400.0, 86_400.0), (9e8, 9e8 - 600.0)])
def test_claims_that_ended_long_ago_count_as_one_by_one(yard: Yard, began_ago_s: float, lasted_s: float) -> None:
    agent = yard.agent("a", cpu("a"), gpu("a", 0))
    job = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    agent.start()
    agent.end(stage(job))
    now = time.time()
    began = now - began_ago_s
    moments = [datetime.fromtimestamp(at, UTC) for at in (began, began + lasted_s)]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # no trigger keeps what was from being changed
        Claim.objects.update(opened_at=moments[0], closed_at=moments[1])
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")
    expected = sum(
        Usage().changed(began, rate).changed(began + lasted_s, -rate).at(now)
        for rate in (
            claim.milli * charges.of(claim.device.kind, claim.device.features) / 1000
            for claim in Claim.objects.select_related("device")
        )
    )
    assert expected > 0
    assert UsageLedger().used(now)[str(yard.project.id)] == pytest.approx(expected, rel=1e-6)
