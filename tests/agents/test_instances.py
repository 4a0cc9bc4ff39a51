"""MIG instances that the agent makes and removes, through the real pynvml and a stand-in of the library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agents.devices.cards import CardProbe
from agents.devices.instances import Instances, is_missing
from agents.devices.vendors import ProbedHost, nvidia
from agents.protocol import DeviceClaim, Partition, PartSpec
from agents.runtimes import Unlaunchable
from tests.agents.test_diff import spec
from tests.agents.test_probes import Cards, cards, libraries  # noqa: F401

FREE = {"0_mig": 1}


@pytest.fixture
def instances(cards: Cards, tmp_path: Path) -> Iterator[Instances]:  # noqa: F811
    cards(**FREE)
    made = Instances(tmp_path / "instances.json")
    yield made
    made.close()


@pytest.fixture
def probe(instances: Instances, monkeypatch: pytest.MonkeyPatch) -> Iterator[CardProbe]:
    monkeypatch.setattr(nvidia, "WHOLE_EVERY_S", 0.0)
    made = nvidia.probe(ProbedHost("test", instances=instances))
    yield made
    made.close()


def claim(profile: str, start: int, **changes: object) -> DeviceClaim:
    held = DeviceClaim("GPU-a", "gpu", "nvidia", "H100", 0, 142, 0, partition=Partition(profile, start))
    return msgspec.structs.replace(held, **changes)


def given(instances: Instances, profile: str, start: int) -> Partition:
    asked: PartSpec = spec([claim(profile, start)])
    (held,) = instances.with_instances(asked).devices
    assert held.partition is not None
    return held.partition


def test_an_instance_is_made_where_it_was_granted(instances: Instances, probe: CardProbe) -> None:
    assert given(instances, "3g.40gb", 4) == Partition("3g.40gb", 4, 4, "MIG-GPU-a-4")
    assert given(instances, "1g.10gb", 0) == Partition("1g.10gb", 0, 1, "MIG-GPU-a-0")
    division = probe.discover()[0].division
    assert division is not None
    assert (division.makes, division.whole, division.made) == (True, False, []), (
        "what it made itself is nobody's layout"
    )
    probe.sample([])
    assert not probe.news()


def test_one_that_is_there_still_is_given_again_and_one_in_the_way_goes(instances: Instances) -> None:
    first = given(instances, "1g.10gb", 2)
    assert given(instances, "1g.10gb", 2) == first
    assert given(instances, "2g.20gb", 2) == Partition("2g.20gb", 2, 2, "MIG-GPU-a-2")
    given(instances, "1g.10gb", 6)
    assert instances.own == {"MIG-GPU-a-2", "MIG-GPU-a-6"}
    assert given(instances, "7g.80gb", 0).size == 8
    assert instances.own == {"MIG-GPU-a-0"}


def test_what_it_made_is_known_after_a_restart(instances: Instances, tmp_path: Path) -> None:
    given(instances, "3g.40gb", 0)
    again = Instances(tmp_path / "instances.json")
    assert again.own == {"MIG-GPU-a-0"}
    assert given(again, "4g.40gb", 0).profile == "4g.40gb"
    again.close()


def test_what_its_operator_made_is_left_alone_and_told(
    cards: Cards,  # noqa: F811
    instances: Instances,
    probe: CardProbe,
) -> None:
    cards(**FREE, **{"0_made": "3g.40gb 0 4 0"})
    with pytest.raises(Unlaunchable, match="gpu 0 could not be divided: MIG-GPU-a-0 is in the way"):
        given(instances, "1g.10gb", 2)
    assert given(instances, "1g.10gb", 6).uuid == "MIG-GPU-a-6"
    division = probe.discover()[0].division
    assert division is not None
    assert [one.uuid for one in division.made] == ["MIG-GPU-a-0"]


@pytest.mark.parametrize(
    ("state", "profile", "start", "words"),
    [
        ({}, "9g.90gb", 0, "the driver offers no profile 9g.90gb"),
        ({}, "3g.40gb", 2, "no 3g.40gb can begin at slot 2"),
        ({"0_made": "1g.10gb 0 1 0", "user": 1}, "1g.10gb", 0, "told to root only"),
        ({"0_lost": 1}, "1g.10gb", 0, "GPU is lost"),
        ({"init": 18}, "1g.10gb", 0, "NVIDIA's driver answers"),
    ],
)
def test_what_cannot_be_made_is_a_sentence(
    cards: Cards,  # noqa: F811
    instances: Instances,
    state: dict[str, object],
    profile: str,
    start: int,
    words: str,
) -> None:
    cards(**FREE, **state)
    with pytest.raises(Unlaunchable, match="gpu 0 could not be divided") as caught:
        given(instances, profile, start)
    assert words in str(caught.value)
    assert instances.own == frozenset()


def test_one_that_cannot_be_removed_stays_its_own(cards: Cards, instances: Instances) -> None:  # noqa: F811
    given(instances, "1g.10gb", 0)
    cards(**FREE, **{"0_made": "1g.10gb 0 1 0", "stuck": 1})
    with pytest.raises(Unlaunchable, match="could not be divided"):
        given(instances, "7g.80gb", 0)
    assert instances.own == {"MIG-GPU-a-0"}


def test_only_a_partition_that_is_not_there_is_made() -> None:
    assert is_missing(claim("1g.10gb", 0))
    assert not is_missing(claim("1g.10gb", 0, simulated=True))
    assert not is_missing(claim("1g.10gb", 0, partition=Partition("1g.10gb", 0, 1, "MIG-x")))
    assert not is_missing(claim("1g.10gb", 0, partition=None))
