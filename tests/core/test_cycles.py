"""Circles of evictions: found whatever their length, and nothing else is taken for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.planning.cycles import in_circles

NAMES = "abcdef"


@given(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))))
def test_a_circle_leads_back_to_where_it_began(stops: set[tuple[str, str]]) -> None:
    def reach(name: str) -> set[str]:
        found: set[str] = set()
        todo = [name]
        while todo:
            one = todo.pop()
            more = {other for victim, other in stops if victim == one and other != one} - found
            found |= more
            todo += more
        return found

    assert in_circles(stops) == {name for name in NAMES if name in reach(name)}
