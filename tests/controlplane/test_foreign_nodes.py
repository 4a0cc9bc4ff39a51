"""A node that represents a foreign cluster says which engine runs its stages, and what is not given there."""

from __future__ import annotations

from functools import partial

import pytest

from agents.delegated.slurm import SlurmEngine
from agents.notes import NoteText
from agents.protocol import Inventory
from tests.controlplane.people import Town
from tests.controlplane.test_pages_said import check
from tests.record import yard


def test_a_node_names_its_engine_and_what_that_lacks(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [str(NoteText(each)) for each in SlurmEngine.lacks]
    inventory = partial(Inventory, executor="Slurm", lacks=sentences, lacks_said=[[each] for each in SlurmEngine.lacks])
    monkeypatch.setattr(yard, "Inventory", inventory)
    town.machine()
    node = town.owner.read("/nodes/n1")
    assert node["executor"] == "Slurm"
    assert node["lacks"] == sentences
    check(town.owner, "/nodes/n1", "外部引擎", "Slurm", "不运行容器", "所有项目的阶段在那里以同一个用户运行")


def test_a_node_of_its_own_host_names_none(town: Town) -> None:
    town.machine()
    node = town.owner.read("/nodes/n1")
    assert (node["executor"], node["lacks"]) == ("", [])
    assert "外部引擎" not in check(town.owner, "/nodes/n1")


def test_older_words_of_an_agent_are_shown_as_they_are(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = partial(Inventory, executor="x" * 99, lacks=["没有别的"], lacks_said=[[("NoSuchCode", {})]])
    monkeypatch.setattr(yard, "Inventory", inventory)
    town.machine()
    assert len(town.owner.read("/nodes/n1")["executor"]) == 40
    check(town.owner, "/nodes/n1", "没有别的")
