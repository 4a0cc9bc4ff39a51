"""What is entered at once stands as if it had been entered one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model.types import Grant
from scheduler.core.resources.fleet import Fleet
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.timetable import ALWAYS, Timetable
from tests.core.worlds import NOW, node
from tests.examples_count import examples

FLEET = Fleet((node("a", 3), node("b", 2)))
GPUS = [device for device in FLEET.devices if device.kind == "gpu"]
HOLDS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(GPUS), st.sampled_from([250, 500])), min_size=1, max_size=3),
        st.sampled_from([10.0, 20.0, 30.0]),
    ),
    max_size=8,
)


@given(HOLDS, st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_a_timetable_is_filled_as_it_would_be_entry_by_entry(
    holds: list[tuple[list[tuple[object, int]], float]], has_entry: bool
) -> None:
    one_by_one, at_once = Timetable(FLEET), Timetable(FLEET)
    for table in (one_by_one, at_once):
        if has_entry:
            table.take("promise", [Grant(GPUS[0].id, 500, 0)], NOW + 15, NOW + 25, NOW + 40)
    grants = [tuple(Grant(device.id, milli, 1) for device, milli in held) for held, _ in holds]  # type: ignore[attr-defined]
    names = [f"r{i}" for i in range(len(holds))]
    ends = [NOW + end for _, end in holds]
    for name, given_, end in zip(names, grants, ends, strict=True):
        one_by_one.take(name, given_, ALWAYS, end, end + 5)
    at_once.fill(
        names, [tuple((FLEET.row[one.device], one) for one in some) for some in grants], ends, [e + 5 for e in ends]
    )
    assert at_once.oversold == one_by_one.oversold
    for name in names[::2]:  # what is dropped again leaves no trace either
        one_by_one.drop(name)
        at_once.drop(name)
    assert at_once.oversold == one_by_one.oversold
    for device in FLEET.devices:
        for begin in range(0, 50, 5):
            window = (NOW + begin, NOW + begin + 7)
            assert at_once.low(device.id, *window) == one_by_one.low(device.id, *window)
        share = [Grant(device.id, 500, 0)]
        assert at_once.late(share, NOW + 30, NOW) == one_by_one.late(share, NOW + 30, NOW)
        assert at_once.room_s(share, NOW) == one_by_one.room_s(share, NOW)


@given(HOLDS)
@settings(max_examples=examples(40), deadline=None)
def test_a_ledger_is_filled_as_it_would_be_grant_by_grant(holds: list[tuple[list[tuple[object, int]], float]]) -> None:
    grants = [Grant(device.id, milli, 1) for held, _ in holds for device, milli in held]  # type: ignore[attr-defined]
    one_by_one, at_once = Ledger(FLEET), Ledger(FLEET)
    one_by_one.occupy(grants)
    at_once.fill([(FLEET.row[one.device], one) for one in grants])
    assert np.array_equal(at_once.milli, one_by_one.milli)
    assert np.array_equal(at_once.memory, one_by_one.memory)
    assert [at_once.free(one.id) for one in FLEET.devices] == [one_by_one.free(one.id) for one in FLEET.devices]
