"""A yard for each test, and the invariants after each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.record.yard import Yard


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes have learned of the database of another test, and what they left in Redis.

    Questions to the engine are thought about here: another process would not see what a test's transaction holds.
    """
    from django.core.cache import cache

    from controlplane.scheduling.memory_advice import MemoryPeaks
    from controlplane.scheduling.store import LiveStore
    from controlplane.whatif import answers, dry_run, tasks
    from controlplane.whatif.thinker import thinker
    from scheduler.core.planning import aside

    monkeypatch.setattr(answers, "_store", LiveStore())
    monkeypatch.setattr(dry_run, "_advisor", MemoryPeaks())
    monkeypatch.setattr(dry_run, "_planner", aside.TolerantPlanner())
    monkeypatch.setattr(thinker, "think", lambda name, params, language, _while: answers.reply(name, params, language))
    monkeypatch.setattr(tasks.answer, "apply_async", lambda args, **_: tasks.answer.apply(args, throw=True))
    cache.clear()


def assert_invariants() -> None:
    """Check all of them by one query, for this is done after each test; where rows come, say which they are."""
    from django.db import connection

    from controlplane.operations import invariants

    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT * FROM ({each.query}) AS found" for each in invariants.INVARIANTS))
        rows = cursor.fetchall()
    assert not rows, invariants.broken()


@pytest.fixture
def yard(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    # Imported late: this file is read before Django's apps are loaded.
    from tests.record.yard import Yard

    forget(monkeypatch)
    yield Yard()
    assert_invariants()
