"""Four people around one cluster, and a client for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.record.conftest import forget

if TYPE_CHECKING:
    from tests.controlplane.people import Town


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """No test leaves the language of its last request to the next one."""
    from django.utils import translation

    yield
    translation.deactivate()


@pytest.fixture
def town(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    # Imported late: this file is read before Django's apps are loaded.
    from controlplane.operations import invariants
    from controlplane.queries import shared
    from tests.controlplane.people import Town

    forget(monkeypatch)
    # However slow this machine is: no test is answered with what held before its last change.
    monkeypatch.setattr(shared, "QUICK_S", float("inf"))
    yield Town()
    assert invariants.broken() == []
