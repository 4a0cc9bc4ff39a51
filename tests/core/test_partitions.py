"""No layout of a device is ever one that its hardware does not allow, and none that it allows is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.model import partitions
from scheduler.core.model.partitions import Partition, PartitionTable
from tests.examples_count import examples

TABLES = st.sampled_from(sorted(partitions.tables()))
H100 = partitions.tables()["h100-80gb"]


def allowed(table: PartitionTable, layout: tuple[Partition, ...]) -> bool:
    """The rules, told once more from the side of the hardware: slots that carry at most one, resources that suffice."""
    names = [part.profile for part in layout]
    if any(names.count(name) > table.profiles[name].most for name in names):
        return False
    if table.slots:
        owners = [
            sum(part.start <= slot < part.start + table.profiles[part.profile].size for part in layout)
            for slot in range(table.slots + 8)
        ]
        inside = all(part.start in table.profiles[part.profile].starts for part in layout)
        return inside and max(owners) <= 1 and not any(owners[table.slots :])
    sums = {
        resource: sum(table.profiles[part.profile].uses.get(resource, 0) for part in layout) for resource in table.has
    }
    numbered = len({part.start for part in layout}) == len(layout) and all(part.start < table.most for part in layout)
    return numbered and all(sums[one] <= table.has[one] for one in sums)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[PartitionTable, tuple[Partition, ...]]:
    table = partitions.tables()[draw(TABLES)]
    part = st.builds(Partition, st.integers(0, max(table.slots, 7)), st.sampled_from(sorted(table.profiles)))
    return table, tuple(draw(st.lists(part, max_size=8)))


@given(layouts())
@settings(max_examples=examples(400))
def test_legal_is_what_the_hardware_allows(case: tuple[PartitionTable, tuple[Partition, ...]]) -> None:
    table, layout = case
    assert table.is_legal(layout) == allowed(table, layout)


@given(TABLES, st.lists(st.tuples(st.booleans(), st.integers(0, 63)), max_size=40))
@settings(max_examples=examples(150), deadline=None)
def test_whatever_comes_and_goes_no_layout_is_illegal_and_what_fits_is_placed(
    name: str, steps: list[tuple[bool, int]]
) -> None:
    table = partitions.tables()[name]
    names, layout = sorted(table.profiles), ()
    for comes, pick in steps:
        if comes or not layout:
            wanted = names[pick % len(names)]
            start = table.place(layout, wanted)
            fits = any(allowed(table, (*layout, Partition(at, wanted))) for at in range(64))
            assert (start is not None) == fits
            if start is not None:
                layout = (*layout, Partition(start, wanted))
        else:
            layout = tuple(part for i, part in enumerate(layout) if i != pick % len(layout))
        assert table.is_legal(layout)
        assert allowed(table, layout)
        assert sum(table.profiles[part.profile].milli for part in layout) <= 1000, "shares stay within the device"


def test_a_divided_device_has_no_room_for_a_whole_one_and_a_whole_one_none_for_others() -> None:
    assert H100.place((), "7g.80gb") == 0
    assert H100.place((Partition(6, "1g.10gb"),), "7g.80gb") is None
    assert all(H100.place((Partition(0, "7g.80gb"),), name) is None for name in H100.profiles)


def test_a_place_is_chosen_after_which_most_fits() -> None:
    small = H100.place((), "1g.10gb")
    assert small == 6, "at the end, where nothing larger than two slots begins"
    half = H100.place((Partition(6, "1g.10gb"),), "2g.20gb")
    assert half == 4
    assert H100.place((Partition(6, "1g.10gb"), Partition(4, "2g.20gb")), "4g.40gb") == 0


def test_the_documented_combinations_of_a_card_are_legal() -> None:
    def layout(*parts: tuple[int, str]) -> bool:
        return H100.is_legal(tuple(Partition(*one) for one in parts))

    assert layout((0, "4g.40gb"), (4, "3g.40gb"))
    assert layout((0, "4g.40gb"), (4, "2g.20gb"), (6, "1g.10gb"))
    assert layout(*((slot, "1g.10gb") for slot in range(7)))
    assert layout(*((slot, "1g.20gb") for slot in (0, 2, 4, 6)))
    assert not layout((4, "4g.40gb"))
    assert not layout((0, "3g.40gb"), (3, "1g.10gb"))
    assert not layout((0, "1g.10gb+me"), (1, "1g.10gb+me"))


def test_the_documented_combinations_of_an_npu_are_legal() -> None:
    inference, training = partitions.tables()["ascend-310p"], partitions.tables()["ascend-910-30"]

    def layout(table: PartitionTable, *names: str) -> bool:
        return table.is_legal(tuple(Partition(i, name) for i, name in enumerate(names)))

    six = ["vir01"] * 6
    assert layout(inference, *six, "vir02_1c")
    assert layout(inference, *six, "vir01")
    assert not layout(inference, *six, "vir01", "vir01"), "seven AI CPUs"
    assert layout(inference, "vir04", "vir04_3c")
    assert not layout(inference, "vir04", "vir04")
    assert layout(training, "vir16", "vir08", "vir04", "vir02")
    assert not layout(training, "vir16", "vir16"), "thirty cores"
    assert layout(partitions.tables()["ascend-910-32"], "vir16", "vir16")


@pytest.mark.parametrize(
    ("vendor", "model", "table"),
    [
        ("nvidia", "NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("nvidia", "NVIDIA H100 PCIe", "h100-80gb"),
        ("nvidia", "NVIDIA H100 NVL", "h100-94gb"),
        ("nvidia", "NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("nvidia", "NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("nvidia", "NVIDIA H200", "h200-141gb"),
        ("nvidia", "NVIDIA A30", "a30"),
        ("nvidia", "Tesla T4", None),
        ("nvidia", "NVIDIA A300", None),
        ("huawei", "310P3", "ascend-310p"),
        ("huawei", "910ProB", "ascend-910-30"),
        ("huawei", "910A", "ascend-910-32"),
        ("huawei", "910B4", None),
        ("amd", "H100", None),
    ],
)
def test_a_model_is_known_by_the_name_its_tool_gives(vendor: str, model: str, table: str | None) -> None:
    found = partitions.table_of(vendor, model)
    assert (found.name if found else None) == table


def test_the_smallest_that_suffices() -> None:
    assert H100.smallest(100, 0) == "1g.10gb"
    assert H100.smallest(100, 15 * partitions.GIB) == "1g.20gb"
    assert H100.smallest(200, 15 * partitions.GIB) == "2g.20gb"
    assert H100.smallest(500, 0) == "4g.40gb"
    assert H100.smallest(100, 100 * partitions.GIB) is None


def test_every_table_can_be_filled_and_has_a_source() -> None:
    for table in partitions.tables().values():
        assert table.source.startswith("https://")
        assert all(table.place((), name) is not None for name in table.profiles)
        largest = max(table.profiles.values(), key=lambda one: one.milli)
        assert all(one.milli <= largest.milli for one in table.profiles.values())
        for pair in combinations(sorted(table.profiles), 2):
            assert table.profiles[pair[0]] != table.profiles[pair[1]]
