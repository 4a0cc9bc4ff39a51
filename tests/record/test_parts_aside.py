"""Parts that an agent could not take over: shown since when and why, and decided about by staff, through the link."""

from __future__ import annotations

import pytest
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from agents.protocol import AsideOrder, Conditions, SetAside
from controlplane.dispatch import desired
from controlplane.fleet import service
from controlplane.fleet.models import Node
from tests.record.yard import Agent, Yard, cpu


@pytest.fixture
def agent(yard: Yard) -> Agent:
    return yard.agent("a", cpu("a"))


def told(tries: int = 1, reason: str = "Undecodable: torn") -> Conditions:
    return Conditions(aside=[SetAside("p1", "/state/parts/p1", reason, age_s=90.0, tries=tries)])


def entries(agent: Agent) -> list[dict[str, object]]:
    return list(Node.objects.get(id=agent.node.id).conditions.get("aside", []))


def orders(agent: Agent) -> list[AsideOrder]:
    return desired.compose(agent.node.id, {}).aside


def test_it_is_kept_with_when_it_began_which_later_reports_do_not_move(agent: Agent) -> None:
    agent.report(conditions=told())
    (entry,) = entries(agent)
    since = parse_datetime(str(entry["since"]))
    assert since is not None
    assert 85 < (timezone.now() - since).total_seconds() < 300
    agent.report(conditions=told(reason="another"))
    (later,) = entries(agent)
    assert (later["since"], later["reason"]) == (entry["since"], "another")
    agent.report()
    assert entries(agent) == []


def test_a_decision_goes_down_until_it_was_tried(agent: Agent) -> None:
    agent.report(conditions=told())
    assert orders(agent) == []
    service.decide_aside(agent.node, "p1", "release", "root")
    assert orders(agent) == [AsideOrder("p1", "release", 1)]
    agent.report(conditions=told())
    assert orders(agent) == [AsideOrder("p1", "release", 1)], "a report in between does not take it back"
    agent.report(conditions=told(tries=2))
    assert orders(agent) == [], "tried in vain: somebody decides anew"
    service.decide_aside(agent.node, "p1", "discard", "root", "the disk is lost")
    assert orders(agent) == [AsideOrder("p1", "discard", 2)]
    agent.report()
    assert orders(agent) == []


def test_who_decides_names_a_part_that_is_there_and_why_it_is_given_up(agent: Agent) -> None:
    with pytest.raises(service.NodeRefused, match="set no part p1 aside"):
        service.decide_aside(agent.node, "p1", "release", "root")
    agent.report(conditions=told())
    with pytest.raises(service.NodeRefused, match="with a reason"):
        service.decide_aside(agent.node, "p1", "discard", "root")
    assert orders(agent) == []
