"""How long the keeper waits before it starts a part again that died."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.local.keeper import FIRST_BACKOFF_S, LAST_BACKOFF_S, STEADY_AFTER_S, pauses

START_S = 4.0


@given(st.lists(st.floats(0, 100), max_size=40))
def test_however_often_it_was_killed_it_is_back_within_ten_seconds(lives: list[float]) -> None:
    backoff_s = FIRST_BACKOFF_S
    for lived_s in lives:
        delay_s, backoff_s = pauses(lived_s, backoff_s)
        assert delay_s + START_S < 10
        assert FIRST_BACKOFF_S <= backoff_s <= LAST_BACKOFF_S
        assert delay_s == 0 or lived_s <= STEADY_AFTER_S


def test_what_dies_at_once_is_not_started_without_end() -> None:
    backoff_s, waited_s = FIRST_BACKOFF_S, []
    for _ in range(20):
        delay_s, backoff_s = pauses(0.0, backoff_s)
        waited_s.append(delay_s)
    assert waited_s == sorted(waited_s)
    assert set(waited_s[4:]) == {LAST_BACKOFF_S}
    assert pauses(STEADY_AFTER_S + 1, backoff_s) == (0.0, FIRST_BACKOFF_S), "who served is forgiven"
