"""Request classes with restrictions: brought up to date node by node, they answer as if made anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.funnel import Filter
from scheduler.core.model.lifecycle import Health, NodeState
from scheduler.core.model.types import Node, Snapshot, Stage
from scheduler.core.resources import match
from scheduler.core.world.view import View
from scheduler.profiles import named
from tests.core.worlds import NOW, alternative, node, stage

NAMES = ("n0", "n1", "n2", "n3", "n4")
WORDS = (*NAMES, "id-n0", "id-n3", "rack=a", "rack=b", "rack=*", "*=a", "site=x", "*=x", "spare", "rack=spare")
PROFILE = named("hybrid")


@st.composite
def machines(draw: st.DrawFn, name: str) -> Node:
    """A node whose id is not its name, in a rack and on a site or neither, with folders and devices of its own."""
    made = node(name, draw(st.integers(0, 2)), model=draw(st.sampled_from(["H100", "A100"])))
    labels = {"rack": draw(st.sampled_from(["", "a", "b", "*"])), "site": draw(st.sampled_from(["", "x", "y", "a"]))}
    health = draw(st.sampled_from([Health.OK, Health.OK, Health.UNHEALTHY]))
    return replace(
        made,
        id=f"id-{name}",
        state=draw(st.sampled_from([NodeState.READY, NodeState.READY, NodeState.DRAINING])),
        pools=draw(st.sampled_from([("default",), ("default",), ("other",), ("default", "other"), ()])),
        labels={label: value for label, value in labels.items() if value},
        mounts=draw(st.sampled_from([(), ("/data",), ("/data/in", "/home")])),
        runs_images=draw(st.booleans()),
        devices=tuple(replace(one, node=f"id-{name}", health=health) for one in made.devices),
    )


@st.composite
def restricted(draw: st.DrawFn, number: int) -> Stage:
    """A stage with some of the restrictions that there are."""
    groups = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True).map(tuple)
    gpus, image = draw(st.integers(0, 2)), draw(st.sampled_from(["", "pytorch"]))
    ways = (replace(alternative(gpus, model="H100"), image=image), alternative(gpus, index=1))
    return stage(
        number,
        alternatives=ways if draw(st.booleans()) else ways[1:],
        nodes=draw(st.sampled_from([1, 1, 2, 3])),
        pool=draw(st.sampled_from(["default", "default", "other"])),
        only=draw(st.sampled_from([(), (("rack=a", "rack=b"),)])) or tuple(draw(st.lists(groups, max_size=2))),
        avoid=draw(st.one_of(st.just(()), st.just(()), groups)),
        site=draw(st.sampled_from(["", "", "x"])),
        mounts=draw(st.sampled_from([(), (), ("/data",), ("/data/in/a", "/home")])),
        pinned=draw(st.sampled_from([(), (), (), ("id-n0", "id-n1", "id-n4"), ("n1",)])),
        within="rack",
        within_required=draw(st.booleans()),
    )


def answers(view: View, asked: Iterable[Stage]) -> list[object]:
    """All that the planner reads of the request classes of these stages, without the rows that it is kept in."""
    found: list[object] = []
    for one in asked:
        request = view.request_class(one)
        sets = []
        for feasible in request.feasible_sets:
            view.refresh(feasible, PROFILE)
            places = [feasible.places.id_of(i) for i in range(len(feasible.places))]
            devices = [
                [(view.fleet.devices[row].id, need) for row, need in zip(line, needs, strict=True) if row >= 0]
                for rows, wanted in zip(feasible.rows, feasible.needs, strict=True)
                for line, needs in zip(rows.tolist(), wanted.tolist(), strict=True)
            ]
            speeds = feasible.speed, feasible.best
            sets.append((feasible.alternative.index, places, devices, *speeds, feasible.fits.tolist(), feasible.count))
        found.append((request.funnel, request.impossible, sets))
    return found


def check_each_node_by_itself(view: View, one: Stage) -> None:
    """The request class of a stage has the nodes that it may use by what each of them says."""
    funnel = dict(view.request_class(one).funnel)
    allowed = {
        node.id
        for node in view.snapshot.nodes
        if one.pool in node.pools
        and (not one.pinned or node.id in one.pinned)
        and (not one.site or node.labels.get("site") == one.site)
        and not match.is_avoided(node, one.avoid)
        and match.is_wanted(node, one.only)
        and match.has_mounts(node, one.mounts)
    }
    assert funnel.get(Filter.ALLOWED, funnel[Filter.IN_POOL]) == len(allowed)
    for feasible in view.request_class(one).every:
        assert allowed.issuperset(feasible.places.id_of(i) for i in range(len(feasible.places)))


@given(st.data())
def test_classes_brought_up_to_date_node_by_node_answer_as_made_anew(data: st.DataObject) -> None:
    asked = [data.draw(restricted(number)) for number in range(8)]
    known = {name: data.draw(machines(name)) for name in NAMES[:4]}
    view = View(Snapshot(tuple(known.values())), PROFILE, NOW)
    assert answers(view, asked) == answers(View(view.snapshot, PROFILE, NOW), asked)
    for cycle in range(1, 6):
        # Mostly one of those that are there: one that comes or goes concerns everybody by its mere number.
        name = data.draw(st.sampled_from([*known, *known, *NAMES]))
        is_gone = name in known and not data.draw(st.integers(0, 6))
        known.pop(name, None)
        if not is_gone:
            known[name] = data.draw(machines(name))
        view.look(Snapshot(tuple(known.values())), PROFILE, NOW + cycle)
        assert answers(view, asked) == answers(View(view.snapshot, PROFILE, NOW + cycle), asked)
        for one in asked:
            check_each_node_by_itself(view, one)
