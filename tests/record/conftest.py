"""A yard for each test, and the invariants after each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.record.yard import Yard


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a web process has learned of the database of another test."""
    from controlplane.live import consolidation, otherwise, preview, questions
    from controlplane.live.memory import Memory
    from controlplane.live.store import LiveStore

    monkeypatch.setattr(questions, "_store", LiveStore())
    monkeypatch.setattr(preview, "_advisor", Memory())
    for asked in (consolidation, otherwise):
        asked._answers.forget()


@pytest.fixture
def yard(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    # Imported late: this file is read before Django's apps are loaded.
    from controlplane.live import invariants
    from tests.record.yard import Yard

    forget(monkeypatch)
    yield Yard()
    assert invariants.broken() == []
