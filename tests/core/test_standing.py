"""How many are ahead of each in the queue, told by columns as one would count them one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.explain.standing import ahead_of_each

ROW = st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 12))


@given(st.lists(ROW, max_size=40))
def test_columns_count_as_one_counts_one_after_the_other(rows: list[tuple[int, bool, int]]) -> None:
    """Each stage with its pool, whether it counts for those behind it, and how many were ahead when it was seen."""
    ahead: dict[int, int] = {}
    expected = []
    for pool, counts, floor in rows:
        before = ahead.get(pool, 0)
        expected.append(before)
        if counts:
            ahead[pool] = max(before, floor) + 1
    pools, counts, floors = (
        (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        if rows
        else ([np.zeros(0, dtype=np.int64)] * 3)
    )
    assert ahead_of_each(pools, counts, floors).tolist() == expected
