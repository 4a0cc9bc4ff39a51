"""A yard for each test, and the invariants after each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.record.yard import Yard


@pytest.fixture
def yard(db: None) -> Iterator[Yard]:
    # Imported late: this file is read before Django's apps are loaded.
    from controlplane.live import invariants
    from tests.record.yard import Yard

    yield Yard()
    assert invariants.broken() == []
