"""A yard for each test, and the invariants after each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.record.yard import Yard


@pytest.fixture
def yard(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    # Imported late: this file is read before Django's apps are loaded.
    from controlplane.live import invariants, preview, questions
    from controlplane.live.memory import Memory
    from controlplane.live.store import LiveStore
    from tests.record.yard import Yard

    # What the dry run has learned belongs to the database of one test.
    monkeypatch.setattr(questions, "_store", LiveStore())
    monkeypatch.setattr(preview, "_advisor", Memory())

    yield Yard()
    assert invariants.broken() == []
