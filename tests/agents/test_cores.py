"""Cores go to those who claim them, idle ones to those who want more, and nobody is moved for nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agents.resources.cores import CoreClaim, allot

CORES = {"n0": [0, 1, 2, 3], "n1": [4, 5, 6, 7]}


def ask(part: str, milli: int, **more: object) -> CoreClaim:
    return CoreClaim(part, str(more.pop("device", "n0")), milli, **more)  # type: ignore[arg-type]


@st.composite
def fitting(draw: st.DrawFn) -> list[CoreClaim]:
    """Asks that the record would have granted: no device above its cores."""
    asks = []
    for device, cores in CORES.items():
        left = len(cores) * 1000
        for number in range(draw(st.integers(0, 5))):
            if left < 10:
                break
            milli = draw(st.sampled_from([250, 500, 1000, 1500, 2000, 3000]))
            if milli <= left:
                left -= milli
                held = tuple(draw(st.sets(st.sampled_from(range(8)), max_size=3)))
                asks.append(CoreClaim(f"{device}-{number}", device, milli, held, draw(st.booleans())))
    return draw(st.permutations(asks))


@given(fitting())
def test_everybody_has_what_it_claims_on_its_own_node(asks: list[CoreClaim]) -> None:
    found = allot(CORES, asks)
    assert set(found) == {each.part for each in asks}
    for each in asks:
        cores = found[each.part]
        assert set(cores) <= set(CORES[each.device])
        assert len(cores) * 1000 >= each.milli


@given(fitting())
def test_whole_cores_belong_to_one(asks: list[CoreClaim]) -> None:
    """Cores of a claim of whole cores are shared with nobody, lent ones included."""
    found = allot(CORES, asks)
    for each in asks:
        if each.milli % 1000 == 0 and not any(
            other.milli % 1000 for other in asks if other.device == each.device and other.part != each.part
        ):
            others = {core for other in asks if other.part != each.part for core in found[other.part]}
            assert not others & set(found[each.part])


@given(fitting())
def test_claims_are_met_from_loans_at_once(asks: list[CoreClaim]) -> None:
    """Whatever is lent, a new claim that fits gets as many cores as if nobody had borrowed."""
    lent = allot(CORES, [replace(each, wants_more=True) for each in asks])
    used = sum(each.milli for each in asks if each.device == "n0")
    if used > 3000:
        return
    settled = [replace(each, held=lent[each.part], wants_more=True) for each in asks]
    after = allot(CORES, [*settled, ask("new", 1000)])
    if all(each.milli % 1000 == 0 for each in asks if each.device == "n0"):
        assert len(after["new"]) >= 1
        assert not set(after["new"]) & {core for each in asks for core in after[each.part]}


@given(fitting())
def test_looking_again_moves_nobody(asks: list[CoreClaim]) -> None:
    found = allot(CORES, asks)
    again = allot(CORES, [replace(each, held=found[each.part]) for each in asks])
    for each in asks:
        if each.milli % 1000 == 0:
            assert again[each.part] == found[each.part]


def test_idle_cores_are_lent_and_taken_back() -> None:
    starved = ask("trainer", 1000, wants_more=True)
    assert allot(CORES, [starved]) == {"trainer": (0, 1, 2, 3)}
    borrowed = replace(starved, held=(0, 1, 2, 3))
    assert allot(CORES, [borrowed, ask("other", 2000)]) == {"trainer": (0, 3), "other": (1, 2)}
    assert allot(CORES, [borrowed, ask("other", 3000)])["trainer"] == (0,)


def test_two_who_want_more_share_what_is_idle() -> None:
    found = allot(CORES, [ask("a", 1000, wants_more=True), ask("b", 1000, wants_more=True)])
    assert [len(found["a"]), len(found["b"])] == [2, 2]


def test_nothing_is_lent_where_claims_of_less_than_a_core_live() -> None:
    found = allot(CORES, [ask("a", 1000, wants_more=True), ask("b", 500)])
    assert found == {"a": (0,), "b": (1, 2, 3)}


def test_more_claims_than_cores_share_them_and_none_is_left_without() -> None:
    found = allot({"n0": [0, 1]}, [ask("a", 2000), ask("b", 2000)])
    assert found == {"a": (0, 1), "b": (0, 1)}


def test_a_device_nobody_knows_pins_nobody() -> None:
    assert allot({}, [ask("a", 1000)]) == {}
