"""What projects are going to receive: the same stages give the same sums, in whatever order they came and went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.resources.commitments import Commitments

CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.sampled_from(["lab", "shop"]),
        st.one_of(st.none(), st.floats(0.001, 1024.0)),
        st.floats(1e9, 2e9),
    ),
    max_size=60,
)


@given(CHANGES, st.floats(1e9, 2e9))
def test_what_is_left_is_all_that_counts(changes: list[tuple[str, str, float | None, float]], now: float) -> None:
    lived, left = Commitments(), dict[str, tuple[str, float, float]]()
    for stage, project, rate, end in changes:
        if rate is None:
            lived.forget(stage)
            left.pop(stage, None)
        else:
            lived.expect(stage, project, rate, end)
            left[stage] = (project, rate, end)
    fresh = Commitments()
    for stage, (project, rate, end) in sorted(left.items()):
        fresh.expect(stage, project, rate, end)
    assert [lived.of(name, now) for name in ("lab", "shop")] == [fresh.of(name, now) for name in ("lab", "shop")]


def test_what_is_committed_becomes_less_as_it_runs() -> None:
    known = Commitments()
    known.expect("a", "lab", 2.0, 1100.0)
    assert [known.of("lab", now) for now in (1000.0, 1050.0, 1100.0, 1200.0)] == [200.0, 100.0, 0.0, 0.0]
    assert known.of("shop", 1000.0) == 0.0
