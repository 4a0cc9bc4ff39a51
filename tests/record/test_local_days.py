"""A node that is cut off, killed and rebooted, and a record that is restored, agree in the end: once each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.edge import day as days
from bench.edge.node import PROJECT, EdgeNode
from bench.edge.record import EdgeRecord
from controlplane.accounts.models import Project
from controlplane.fleet import service as fleet
from tests.record.yard import Yard


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def world(yard: Yard, tmp_path: Path, seed: int) -> Iterator[tuple[EdgeNode, EdgeRecord, random.Random]]:
    dice = random.Random(seed)
    project = Project.objects.create(name=PROJECT)
    project.member_set.create(user=yard.user)
    row, _ = fleet.enrol(fleet.make_join_token(yard.pool), "edge")
    node = EdgeNode("edge", tmp_path, dice, killed=days.WRITES)
    yield node, EdgeRecord(row, project, yard.user), dice
    node.close()


@pytest.mark.parametrize("seed", range(2), indirect=True)
def test_nothing_is_lost_or_doubled(world: tuple[EdgeNode, EdgeRecord, random.Random]) -> None:
    node, record, dice = world
    found = days.day(node, record, dice, cut_s=3_600)
    assert found["accepted"] > 3
    assert (found["lost"], found["doubled"]) == (0, 0), found
    assert not node.open
