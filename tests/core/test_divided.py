"""Devices that can be divided: whole ones and partitions beside each other, now and in the timetable."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model import partitions
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Estimate, Grant, Node, Placement, Plan, Running, Snapshot, Stage
from scheduler.core.resources.match import SMALLEST
from scheduler.core.resources.speed import speed, speed_of
from tests.core.worlds import GIB, NOW, alternative, begun, ended, node, running, stage, starts, think, waits
from tests.examples_count import examples

H100 = partitions.tables()["h100-80gb"]


def divisible(name: str, gpus: int, table: str = "h100-80gb") -> Node:
    one = node(name, gpus)
    devices = (replace(device, partitions=table) if device.kind == "gpu" else device for device in one.devices)
    return replace(one, devices=tuple(devices))


def asking(number: int, partition: str, gpus: int = 1, **more: object) -> Stage:
    memory = more.pop("memory", 0)
    milli = more.pop("milli", 1000)
    alternatives = (alternative(gpus, milli=milli, memory=memory, partition=partition),)  # type: ignore[arg-type]
    return stage(number, alternatives=alternatives, **more)


def made(one: Node, *parts: tuple[int, str]) -> Node:
    """The node with every GPU of it divided by its operator."""
    layout = tuple(partitions.Partition(start, profile) for start, profile in parts)
    devices = (replace(device, made=layout) if device.kind == "gpu" else device for device in one.devices)
    return replace(one, devices=tuple(devices))


def holding(number: int, where: str, device: str, start: int, profile: str, **more: object) -> Running:
    """A stage that runs on a partition, for ``p50`` seconds there."""
    kind = H100.profiles[profile]
    work = float(more.pop("p50", 100.0)) * kind.milli / 1000  # type: ignore[arg-type]
    one = running(number, {where: [device]}, p50=work, **more)  # type: ignore[arg-type]
    memory = 80 * GIB * kind.memory_milli // 1000
    part = Grant(f"{where}/{device}", kind.milli, memory, partitions.Partition(start, profile))
    return replace(one, placement=Placement(0, (where,), ((part, Grant(f"{where}/cpu0", 1000, GIB)),)))


def check_layouts(world: Snapshot, plan: Plan) -> None:
    """Every device is either whole, or divided as its hardware allows."""
    devices = {device.id: device for one in world.nodes for device in one.devices}
    grants = [one.placement.grants for one in world.running] + [one.placement.grants for one in plan.starts]
    parts, wholes = defaultdict(list), set()
    for one in (grant for ranks in grants for rank in ranks for grant in rank):
        if one.part is not None:
            parts[one.device].append(one.part)
        elif devices[one.device].partitions:
            assert devices[one.device].made is None, f"{one.device} is divided and was given whole"
            assert one.device not in wholes
            wholes.add(one.device)
    for name, layout in parts.items():
        assert partitions.tables()[devices[name].partitions].is_legal(tuple(layout)), f"{name}: {layout}"
        there = devices[name].made
        assert there is None or set(layout) <= set(there), f"{name}: {layout} of {there}"
        assert name not in wholes, f"{name} is whole and divided"


def test_a_card_is_filled_with_partitions_and_the_next_one_waits() -> None:
    world = Snapshot((divisible("a", 1),), tuple(asking(i, "1g.10gb") for i in range(8)))
    plan = think(world, Profile("none", ()))
    check_layouts(world, plan)
    assert (len(plan.starts), list(waits(plan))) == (7, ["s007"])


def test_who_asks_for_no_partition_gets_a_whole_card_and_none_that_is_divided() -> None:
    going = (holding(7, "a", "gpu0", 6, "1g.10gb"),)
    world = Snapshot(
        (divisible("a", 2),), (stage(1), stage(2), stage(3, alternatives=(alternative(1, milli=100),))), going
    )
    plan = think(world, Profile("none", ()))
    check_layouts(world, plan)
    assert starts(plan)["s001"].placement.grants[0][0].device == "a/gpu1"
    assert set(waits(plan)) == {"s002", "s003"}


def test_free_slices_that_do_not_lie_together_are_no_place() -> None:
    going = tuple(holding(i, "a", "gpu0", start, "1g.10gb") for i, start in enumerate((0, 2, 4)))
    world = Snapshot((divisible("a", 1),), (asking(1, "3g.40gb"), asking(2, "1g.20gb"), asking(3, "1g.10gb")), going)
    plan = think(world, Profile("none", ()))
    check_layouts(world, plan)
    assert set(waits(plan)) == {"s001"}, "five slices are free, and no four of them in a row from 0 or 4"


def test_the_smallest_that_suffices_is_found_and_divided_cards_come_first() -> None:
    going = (holding(7, "b", "gpu0", 6, "1g.10gb"),)
    wanted = asking(1, SMALLEST, milli=200, memory=15 * GIB)
    world = Snapshot((divisible("b", 2), node("c", 1)), (wanted,), going)
    grant = starts(think(world, Profile("none", ())))["s001"].placement.grants[0][0]
    assert (grant.device, grant.part) == ("b/gpu0", partitions.Partition(4, "2g.20gb"))
    assert grant.memory_bytes == 20 * GIB


def test_of_a_card_that_was_divided_before_only_its_parts_are_granted() -> None:
    there = made(divisible("a", 1), (0, "3g.40gb"), (4, "1g.10gb"), (6, "1g.10gb"))
    waiting = (asking(1, "1g.10gb"), asking(2, "1g.10gb"), asking(3, "1g.10gb"), asking(4, "2g.20gb"), stage(5))
    plan = think(Snapshot((there,), waiting), Profile("none", ()))
    check_layouts(Snapshot((there,), waiting), plan)
    given = {name: start.placement.grants[0][0].part for name, start in starts(plan).items()}
    assert given == {"s001": partitions.Partition(4, "1g.10gb"), "s002": partitions.Partition(6, "1g.10gb")}
    told = {name: wait.reasons[0].code for name, wait in waits(plan).items()}
    assert told == {"s003": "CapacityInsufficient", "s004": "NoMatchingDevice", "s005": "NoMatchingDevice"}


def test_a_card_that_cannot_be_given_whole_is_given_in_partitions_only() -> None:
    one = divisible("a", 1)
    one = replace(one, devices=tuple(replace(each, whole=each.kind == "cpu") for each in one.devices))
    plan = think(Snapshot((one,), (stage(1), asking(2, "7g.80gb"))), Profile("none", ()))
    assert list(starts(plan)) == ["s002"]
    assert [wait.reasons[0].code for wait in waits(plan).values()] == ["NoMatchingDevice"]


def test_the_smallest_is_chosen_among_the_parts_that_there_are() -> None:
    there = made(divisible("a", 1), (0, "3g.40gb"), (4, "2g.20gb"))
    wanted = (asking(1, SMALLEST, milli=100), asking(2, SMALLEST, milli=100, memory=30 * GIB))
    given = starts(think(Snapshot((there,), wanted), Profile("none", ())))
    assert [given[name].placement.grants[0][0].part.profile for name in ("s001", "s002")] == ["2g.20gb", "3g.40gb"]


def test_the_timetable_promises_a_partition_when_its_slots_are_free_together() -> None:
    going = (
        holding(1, "a", "gpu0", 0, "3g.40gb", since=0, p50=1000.0),
        holding(2, "a", "gpu0", 4, "1g.10gb", since=0, p50=100.0),
        holding(3, "a", "gpu0", 6, "1g.10gb", since=0, p50=500.0),
    )
    world = Snapshot((divisible("a", 1),), (asking(1, "3g.40gb"), asking(2, "2g.20gb", submitted_at=NOW)), going)
    plan = think(world, "hybrid")
    planned = {name: one.planned for name, one in waits(plan).items() if one.planned}
    assert planned["s001"].start_at == NOW + 500, "when both partitions on its slots have ended"
    assert planned["s001"].placement.grants[0][0].part == partitions.Partition(4, "3g.40gb")
    later = think(ended(begun(world, plan, NOW), "r002", "r003"), "hybrid", NOW + 500)
    assert starts(later)["s001"].placement.grants[0][0].part == partitions.Partition(4, "3g.40gb")


def test_a_partition_is_slower_than_its_device_until_it_was_measured() -> None:
    alternatives = (alternative(1, partition="1g.10gb", index=0), alternative(1, index=1, model="H100"))
    work = stage(1, alternatives=alternatives, estimate=Estimate(1000.0, 1500.0))
    world = Snapshot((divisible("a", 2),), (work,))
    whole = starts(think(world, "dynamic"))["s001"]
    assert whole.placement.alternative == 1, "a seventh of the card would finish seven times later"
    assert whole.lasts.p50_s == 1000.0
    light = replace(world, speeds={("train", "H100 1g.10gb"): 1.0})
    small = starts(think(light, "dynamic"))["s001"]
    assert (small.placement.alternative, small.lasts.p50_s) == (0, 1000.0), "it proved to be as fast, and takes less"


def test_work_that_is_not_dense_runs_on_a_partition_as_on_the_whole() -> None:
    card = divisible("a", 1).devices[1]
    assert speed("train", "", card, {}, "3g.40gb") == speed("train", "", card, {}) * 0.428
    assert speed("preprocess", "", card, {}, "3g.40gb") == speed("preprocess", "", card, {})
    held = holding(1, "a", "gpu0", 0, "3g.40gb").placement.grants[0]
    assert speed_of("train", "", held, {card.id: card}, {("train", "H100"): 2.0}) == 2.0 * 0.428


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    nodes = tuple(
        divisible(f"n{i}", draw(st.integers(1, 2)), draw(st.sampled_from(["h100-80gb", "h100-80gb", ""])))
        for i in range(draw(st.integers(1, 2)))
    )
    if draw(st.booleans()):
        there = made(divisible("m", 1), *draw(st.sampled_from([((0, "4g.40gb"), (4, "1g.20gb")), ((0, "3g.40gb"),)])))
        nodes = (*nodes, there)
    wanted = st.sampled_from(["", "", SMALLEST, *H100.profiles])
    waiting = tuple(
        asking(
            i,
            draw(wanted),
            draw(st.sampled_from([1, 1, 2])),
            milli=draw(st.sampled_from([1000, 400, 100])),
            p50=draw(st.sampled_from([50.0, 200.0])),
            priority=draw(st.sampled_from([250, 500, 1000])),
            nodes=draw(st.sampled_from([1, 1, 1, 2])),
        )
        for i in range(draw(st.integers(1, 10)))
    )
    return Snapshot(nodes, waiting)


@given(worlds(), st.sampled_from(["static", "dynamic", "hybrid"]))
@settings(max_examples=examples(60), deadline=None)
def test_while_stages_come_and_go_no_layout_is_ever_illegal(world: Snapshot, profile: str) -> None:
    now = NOW
    for _ in range(6):
        plan = think(world, profile, now)
        check_layouts(world, plan)
        world = begun(world, plan, now)
        going = sorted(world.running, key=lambda one: (one.started_at + one.estimate.p50_s, one.id))
        if not going:
            break
        now = max(now + 1.0, going[0].started_at + going[0].estimate.p50_s)
        world = ended(world, *(one.id for one in going if one.started_at + one.estimate.p50_s <= now))
