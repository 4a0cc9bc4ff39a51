"""The use of projects, read from the claims as they open and close."""

from __future__ import annotations

import pytest

from controlplane.accounts.models import Project
from controlplane.jobs.models import Claim
from controlplane.scheduling.usage import UsageLedger
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
