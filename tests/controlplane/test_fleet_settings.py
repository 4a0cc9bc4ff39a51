"""Settings of pools and nodes by REST, and the fields of an answer that a client asks for."""

from __future__ import annotations

import json

from django.http import HttpResponse

from controlplane.fleet.models import Node
from controlplane.pools.models import Pool
from tests.controlplane.people import Town


def told(answer: HttpResponse) -> dict:
    return dict(json.loads(answer.content))


def test_a_pool_is_added_changed_as_it_was_read_and_deleted(town: Town) -> None:
    staff = town.staff
    made = staff.post("/pools", {"name": "short", "max_limit_s": 3600, "default_limit_s": 600})
    assert (made.status_code, told(made)["max_limit_s"], told(made)["nodes"]) == (201, 3600, 0)
    read = staff.get("/pools/short/settings")
    patch = {"max_limit_s": 7200, "profile": "fifo"}
    assert staff.patch("/pools/short", patch).status_code == 428
    changed = staff.patch("/pools/short", patch, **{"if-match": read["ETag"]})
    assert (changed.status_code, told(changed)["profile"]) == (200, "fifo")
    stale = staff.patch("/pools/short", {"max_limit_s": 1}, **{"if-match": read["ETag"]})
    assert (stale.status_code, Pool.objects.get(name="short").max_limit_s) == (412, 7200)
    assert staff.client.delete("/api/v1/pools/short", headers={"if-match": "*"}).status_code == 204
    assert not Pool.objects.filter(name="short").exists()


def test_what_a_pool_cannot_be_is_refused_by_field(town: Town) -> None:
    def refused(patch: dict) -> tuple[int, str]:
        answer = town.staff.patch("/pools/default", patch, **{"if-match": "*"})
        return answer.status_code, json.dumps(told(answer)["errors"])

    for patch, words in (
        ({"profile": "nonsense"}, "/profile"),
        ({"default_limit_s": 9, "max_limit_s": 8}, "at most max_limit_s, which is 8"),
        ({"min_runtime_s": -1}, "/min_runtime_s"),
        ({"proflie": "fifo"}, "profile"),
    ):
        status, errors = refused(patch)
        assert (status, words in errors) == (400, True), errors
    town.machine()
    town.job()
    kept = town.staff.client.delete("/api/v1/pools/default", headers={"if-match": "*"})
    assert (kept.status_code, told(kept)["code"]) == (409, "in_use")
    for person in (town.owner, town.lead):
        assert person.patch("/pools/default", {"max_limit_s": 9}, **{"if-match": "*"}).status_code == 403
        assert person.post("/pools", {"name": "own"}).status_code == 403


def test_labels_and_pools_of_a_node_are_set_and_others_stay(town: Town) -> None:
    town.machine()
    staff, anything = town.staff, {"if-match": "*"}
    staff.post("/pools", {"name": "short"})
    first = staff.patch("/nodes/n1", {"labels": {"rack": "3", "room": "a"}}, **anything)
    assert (first.status_code, told(first)["labels"]["rack"]) == (200, "3")
    staff.patch("/nodes/n1", {"labels": {"room": None}}, **anything)
    node = Node.objects.get(name="n1")
    assert "room" not in node.labels
    assert node.labels["rack"] == "3"
    moved = staff.patch("/nodes/n1", {"pools": ["default", "short"]}, **anything)
    assert moved.status_code == 200, moved.content
    assert sorted(node.pools.values_list("name", flat=True)) == ["default", "short"]
    assert node.labels["rack"] == "3"
    for patch, pointer in (
        ({"labels": {"a b": "x"}}, "/labels"),
        ({"labels": {"a": "x" * 201}}, "/labels"),
        ({"labels": {f"l{number}": "x" for number in range(300)}}, "/labels"),
        ({"pools": ["nowhere"]}, "/pools"),
        ({"state": "READY"}, "/state"),
    ):
        answer = staff.patch("/nodes/n1", patch, **anything)
        assert (answer.status_code, pointer in json.dumps(told(answer)["errors"])) == (400, True), answer.content
    assert town.owner.patch("/nodes/n1", {"labels": {"a": "b"}}, **anything).status_code == 403


def test_a_client_gets_the_fields_that_it_asks_for(town: Town) -> None:
    town.machine()
    for _ in range(3):
        job = town.job()
    page = town.owner.read("/jobs?fields=number,state&limit=2")
    assert [list(row) for row in page["results"]] == [["number", "state"]] * 2
    assert "fields=number%2Cstate" in page["next"]
    assert town.owner.read(f"/jobs/{job.number}?fields=name") == {"name": job.name}
    assert [list(row) for row in town.owner.read("/nodes?fields=name")["results"]] == [["name"]]
    for path in ("/jobs?fields=numbre", f"/jobs/{job.number}?fields=numbre", "/jobs?fields="):
        answer = town.owner.get(path)
        assert (answer.status_code, "fields" in json.dumps(told(answer)["errors"])) == (400, True)
