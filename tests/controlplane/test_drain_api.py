"""Draining over REST: a dry run shows what stops, and what was shown is what is done, or nothing."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from controlplane.accounts.models import AuditEntry, User
from controlplane.fleet.models import Node
from tests.controlplane.people import Town

WHY = {"reason": "new fans"}


def test_a_dry_run_shows_whose_jobs_stop_and_drains_nothing(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    answer = town.staff.post("/nodes/drain?dry_run=true", {"nodes": ["n1"], "mode": "now"})
    assert answer.status_code == 200, answer.content
    shown = json.loads(answer.content)
    assert (shown["nodes"], shown["states"], shown["dry_run"]) == (["n1"], ["READY"], True)
    assert (shown["affects"]["jobs"], shown["affects"]["owners"]) == (1, ["owner"])
    assert [one["job"] for one in shown["affects"]["stages"]] == [job.number]
    assert {one["mode"]: one["stops"] for one in shown["outcomes"]} == {"finish": 0, "save": 1, "now": 1}
    assert Node.objects.get().state == "READY"


def test_it_is_done_as_it_was_shown_or_refused(town: Town) -> None:
    first, second = town.machine(), town.machine("n2")
    town.running(first, devices={"kind": "gpu", "count": 2})
    asked = {"nodes": ["n2", "n1"], "mode": "save", **WHY}
    shown = json.loads(town.staff.post("/nodes/drain?dry_run=true", asked).content)
    assert town.staff.post("/nodes/drain", asked).status_code == 428
    town.running(second, devices={"kind": "gpu", "count": 2})
    assert town.staff.post("/nodes/drain", asked, **{"If-Match": shown["version"]}).status_code == 412
    assert set(Node.objects.values_list("state", flat=True)) == {"READY"}
    shown = json.loads(town.staff.post("/nodes/drain?dry_run=true", asked).content)
    done = town.staff.post("/nodes/drain", asked, **{"If-Match": shown["version"]})
    assert json.loads(done.content)["states"] == ["DRAINING", "DRAINING"]
    assert [one.do for agent in (first, second) for one in agent.look()] == ["stop", "stop"]
    entries = AuditEntry.objects.filter(action="node.drain")
    assert {(one.name, one.reason) for one in entries} == {("n1", "new fans"), ("n2", "new fans")}


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"nodes": []}, 400, "nodes"),
        ({"nodes": ["n9"]}, 404, "n9"),
        ({"nodes": ["n1"], "mode": "later"}, 400, "mode"),
        ({"nodes": ["n1"], "mode": "now", "deadline_s": 60}, 400, "a deadline goes with the mode finish only"),
        ({"nodes": ["n1"], "deadline_s": -1}, 400, "deadline_s"),
        ({"nodes": ["n1"], "reason": " "}, 409, "needs a reason"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    town: Town, asked: dict[str, object], status: int, words: str
) -> None:
    town.machine()
    answer = town.staff.post("/nodes/drain", {**WHY, **asked}, **{"If-Match": "*"})
    assert (answer.status_code, words in answer.content.decode()) == (status, True), answer.content
    assert Node.objects.get().state == "READY"


def test_only_who_operates_nodes_drains_or_sees_what_it_stops(town: Town) -> None:
    town.machine()
    for person in (town.owner, town.lead, town.viewer, town.stranger):
        assert person.post("/nodes/drain?dry_run=true", {"nodes": ["n1"]}).status_code == 403


def test_a_dry_run_of_a_cancellation_says_what_stops(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    asked = {"action": "cancel", "jobs": [job.number], "dry_run": True}
    stops = json.loads(town.owner.post("/jobs/bulk", asked).content)["stops"]
    assert (stops["jobs"], stops["owners"], stops["stages"][0]["stage"]) == (1, ["owner"], "main")
    assert json.loads(town.owner.post("/jobs/bulk", {**asked, "action": "hold"}).content)["stops"] is None


def test_the_pages_offer_the_modes(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    client = Client()
    client.force_login(User.objects.get(pk=town.user.pk))
    for page in ("/nodes", "/nodes/n1"):
        text = client.get(page).content.decode()
        assert 'id="ask-drain"' in text
        assert 'value="save"' in text
    assert "data-stops=" in client.get(f"/jobs/{job.number}").content.decode()
    client.force_login(User.objects.get(username="viewer"))
    assert "data-choose-node" not in client.get("/nodes").content.decode()
