"""The laws of the reconciliation of pilots, over random records, lists, demands and limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.engine import ForeignPhase, ForeignPilot
from controlplane.providers.reconcile import (
    FORCE_S,
    HEARD_S,
    JOIN_S,
    LEAVE_S,
    SETTLE_S,
    PilotFacts,
    PilotFound,
    PilotGone,
    PilotLeaves,
    PilotsWanted,
    ProviderLimits,
    StopForeign,
    reconcile,
)

NOW = 1_000_000.0
SHAPES = ("small", "large")
ONE = ProviderLimits(shapes=SHAPES, max_nodes=4, hours=2.0)

ago = st.floats(0, 4_000).map(lambda s: NOW - s)
perhaps_ago = st.none() | ago


@st.composite
def pilots(draw: Any) -> list[PilotFacts]:
    count = draw(st.integers(0, 8))
    made = []
    for number in range(count):
        state = draw(st.sampled_from(["ASKED", "QUEUED", "UP", "LEAVING"]))
        up_at = draw(ago) if state == "UP" else draw(perhaps_ago) if state == "LEAVING" else None
        heard = draw(perhaps_ago) if up_at is not None else None
        made.append(
            PilotFacts(
                label=f"p{number}",
                shape=draw(st.sampled_from(SHAPES)),
                state=state,
                asked_at=draw(ago),
                handle="" if state == "ASKED" else str(100 + number),
                up_at=up_at,
                ends_at=draw(st.none() | st.floats(NOW - 500, NOW + 5_000)) if up_at else None,
                leaving_at=draw(ago) if state == "LEAVING" else None,
                idle_since=draw(perhaps_ago) if heard is not None else None,
                heard_at=heard,
            )
        )
    return made


entries = st.lists(
    st.builds(
        ForeignPilot,
        label=st.integers(0, 11).map(lambda n: f"p{n}"),
        handle=st.integers(100, 111).map(str),
        phase=st.sampled_from(list(ForeignPhase)),
        ends_at=st.none() | st.floats(NOW - 500, NOW + 5_000),
    ),
    max_size=14,
    unique_by=lambda each: each.handle,
)
demands = st.dictionaries(st.sampled_from(SHAPES), st.integers(0, 20))


@st.composite
def all_limits(draw: Any) -> ProviderLimits:
    most = draw(st.integers(0, 10))
    return ProviderLimits(
        shapes=draw(st.sampled_from([SHAPES, SHAPES[:1]])),
        max_nodes=most,
        min_nodes=draw(st.integers(0, most)),
        hours=draw(st.floats(0.05, 24)),
        node_hours_left=draw(st.none() | st.floats(-10, 100)),
        quota=draw(st.none() | st.integers(0, 12)),
        idle_s=draw(st.floats(0, 1_000)),
        wait_s=draw(st.floats(60, 3_000)),
        enabled=draw(st.booleans()),
        ask_after=draw(st.sampled_from([0.0, NOW, NOW + 1])),
    )


def of(actions: tuple[Any, ...], kind: type) -> list[Any]:
    return [each for each in actions if isinstance(each, kind)]


@given(demands, pilots(), entries, all_limits())
def test_never_more_than_the_maximum_the_budget_and_the_quota(demand, there, seen, limits):
    actions = reconcile(demand, there, seen, limits, NOW)
    asked = sum(each.count for each in of(actions, PilotsWanted))
    gone = {each.label for each in of(actions, PilotGone)}
    left = len(there) - len(gone)
    if asked:
        assert left + asked <= limits.max_nodes
        assert limits.quota is None or left + asked <= limits.quota
        assert limits.node_hours_left is None or asked * limits.hours <= limits.node_hours_left
        assert limits.enabled
        assert limits.ask_after <= NOW


@given(demands, pilots(), entries, all_limits())
def test_nothing_is_asked_for_in_the_place_of_what_may_still_come(demand, there, seen, limits):
    actions = reconcile(demand, there, seen, limits, NOW)
    settled = {each.label for each in of(actions, PilotGone)}
    leaving = {each.label for each in of(actions, PilotLeaves)}
    coming = Counter(
        each.shape
        for each in there
        if each.heard_at is None and each.label not in settled | leaving and each.state != "LEAVING"
    )
    for each in of(actions, PilotsWanted):
        others = limits.min_nodes if each.shape == limits.shapes[0] else 0
        assert each.count <= max(0, demand.get(each.shape, 0) - coming[each.shape]) + others


@given(demands, pilots(), entries, all_limits())
def test_the_engine_keeps_one_entry_of_each_label_that_the_record_has(demand, there, seen, limits):
    actions = reconcile(demand, there, seen, limits, NOW)
    stopped = {each.handle for each in of(actions, StopForeign)}
    known = {each.label for each in there}
    kept = Counter(each.label for each in seen if each.phase is not ForeignPhase.ENDED and each.handle not in stopped)
    assert set(kept) <= known
    assert all(count == 1 for count in kept.values())


@given(demands, pilots(), all_limits())
def test_where_the_engine_does_not_answer_nothing_is_done(demand, there, limits):
    assert reconcile(demand, there, None, limits, NOW) == ()


@given(demands, pilots(), entries, all_limits())
def test_each_pilot_has_one_fate_and_the_order_of_the_lists_is_nothing(demand, there, seen, limits):
    actions = reconcile(demand, there, seen, limits, NOW)
    fates = Counter(each.label for each in [*of(actions, PilotGone), *of(actions, PilotLeaves)])
    assert all(count == 1 for count in fates.values())
    assert reconcile(demand, there[::-1], seen[::-1], limits, NOW) == actions


@given(pilots(), entries, all_limits())
def test_one_that_is_heard_is_never_gone(there, seen, limits):
    actions = reconcile({}, there, seen, limits, NOW)
    gone = {each.label for each in of(actions, PilotGone)}
    assert not gone & {p.label for p in there if p.heard_at is not None and NOW - p.heard_at < HEARD_S}


UP = PilotFacts("p1", "small", "UP", NOW - 600, "7", up_at=NOW - 500, heard_at=NOW - 1)
RUNS = ForeignPilot("p1", "7", ForeignPhase.RUNNING, NOW + 3_000)


def test_what_is_needed_and_not_coming_is_asked_for_once() -> None:
    assert reconcile({"small": 2}, [], [], ONE, NOW) == (PilotsWanted("small", 2),)
    asked = [PilotFacts(f"p{n}", "small", "ASKED", NOW - 1) for n in range(2)]
    assert reconcile({"small": 2}, asked, [], ONE, NOW) == ()
    assert reconcile({"small": 3}, asked, [], ONE, NOW) == (PilotsWanted("small", 1),)


def test_an_order_whose_answer_was_lost_is_found_by_its_label_or_given_up() -> None:
    lost = PilotFacts("p1", "small", "ASKED", NOW - 5)
    entry = ForeignPilot("p1", "9", ForeignPhase.QUEUED)
    assert reconcile({"small": 1}, [lost], [entry], ONE, NOW) == (PilotFound("p1", "9", ForeignPhase.QUEUED),)
    old = replace(lost, asked_at=NOW - SETTLE_S)
    assert reconcile({"small": 1}, [old], [], ONE, NOW) == (PilotGone("p1", "never_came"), PilotsWanted("small", 1))
    # It arrives after all: nobody knows it any more.
    assert reconcile({}, [], [entry], ONE, NOW) == (StopForeign("9"),)


def test_of_a_double_the_one_that_the_record_knows_stays() -> None:
    doubled = [RUNS, replace(RUNS, handle="6", phase=ForeignPhase.QUEUED)]
    known = replace(UP, ends_at=RUNS.ends_at)
    assert reconcile({}, [known], doubled, ONE, NOW) == (StopForeign("6"),)


def test_an_idle_one_goes_unless_it_is_needed_or_the_least() -> None:
    idle = replace(UP, ends_at=RUNS.ends_at, idle_since=NOW - ONE.idle_s)
    assert reconcile({}, [idle], [RUNS], ONE, NOW) == (PilotLeaves("p1", "idle"),)
    assert of(reconcile({"small": 1}, [idle], [RUNS], ONE, NOW), PilotLeaves) == []
    assert reconcile({}, [idle], [RUNS], replace(ONE, min_nodes=1), NOW) == ()
    busy = replace(idle, idle_since=None)
    assert reconcile({}, [busy], [RUNS], ONE, NOW) == ()


def test_one_that_leaves_is_ended_when_it_is_empty_or_has_had_its_time() -> None:
    leaving = replace(UP, state="LEAVING", leaving_at=NOW - 1, ends_at=RUNS.ends_at)
    assert reconcile({}, [leaving], [RUNS], ONE, NOW) == ()
    assert reconcile({}, [replace(leaving, idle_since=NOW)], [RUNS], ONE, NOW) == (StopForeign("7"),)
    assert reconcile({}, [replace(leaving, heard_at=None)], [RUNS], ONE, NOW) == (StopForeign("7"),)
    late = replace(leaving, leaving_at=NOW - LEAVE_S)
    assert reconcile({}, [late], [RUNS], ONE, NOW) == (StopForeign("7"),)
    later = replace(leaving, leaving_at=NOW - FORCE_S)
    assert reconcile({}, [later], [RUNS], ONE, NOW) == (StopForeign("7", force=True),)


@pytest.mark.parametrize(
    ("pilot", "entry", "limits", "why"),
    [
        (replace(UP, ends_at=NOW + 60), replace(RUNS, ends_at=NOW + 60), ONE, "ends"),
        (UP, RUNS, replace(ONE, enabled=False), "disabled"),
        (replace(UP, shape="gone"), RUNS, ONE, "disabled"),
        (replace(UP, heard_at=None, up_at=NOW - JOIN_S), RUNS, ONE, "never_came"),
        (
            PilotFacts("p1", "small", "QUEUED", NOW - ONE.wait_s, "7"),
            ForeignPilot("p1", "7", ForeignPhase.QUEUED),
            ONE,
            "waited",
        ),
    ],
)
def test_why_one_leaves_whatever_the_demand_is(pilot, entry, limits, why) -> None:
    assert of(reconcile({"small": 9}, [pilot], [entry], limits, NOW), PilotLeaves) == [PilotLeaves("p1", why)]


def test_one_that_the_engine_ended_is_gone_once_its_agent_is_silent() -> None:
    ended = replace(RUNS, phase=ForeignPhase.ENDED)
    assert reconcile({}, [UP], [ended], ONE, NOW) == ()
    assert reconcile({}, [replace(UP, heard_at=NOW - HEARD_S)], [ended], ONE, NOW) == (PilotGone("p1", "ended"),)
    assert reconcile({}, [replace(UP, heard_at=NOW - HEARD_S)], [], ONE, NOW) == (PilotGone("p1", "vanished"),)
