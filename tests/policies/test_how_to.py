"""The policy that the documentation shows does what is said of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scheduler.core.model.profile import Profile
from scheduler.core.model.types import CalendarEntry, Snapshot
from tests.core.worlds import NOW, node, stage, starts, think

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "policies.md"


def test_the_policy_of_the_page_keeps_away_from_what_is_maintained_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    shown = ModuleType("soon_closed")
    monkeypatch.setitem(sys.modules, "soon_closed", shown)  # where dataclasses look for the names of a class
    exec(compile(found[1], str(PAGE), "exec"), shown.__dict__)
    window = CalendarEntry("w1", ("a",), NOW + 7200, NOW + 9000)
    world = Snapshot((node("a", 1), node("b", 1)), (stage(1, p50=60),), maintenance=(window,))

    def place(within_s: float) -> str:
        chosen = Profile("one", ((shown.SoonClosed(within_s), 1.0),))
        return starts(think(world, chosen))["s001"].placement.nodes[0]

    assert place(within_s=86_400.0) == "b"
    assert place(within_s=3600.0) == "a"
