"""Functions over REST and behind it: who may do what, what becomes of queued calls, and what routers are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.functions import calls
from controlplane.functions.models import DeployedFunction, FunctionCall
from controlplane.jobs.models import Bundle, Job
from controlplane.services import replicas
from controlplane.services.models import InferenceService, Replica
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text
from tests.controlplane.test_services import FILE, SECRET, router, told

__all__ = ["router"]
PATH = "/functions"
CODE = "def handle(event):\n    return event\n"
ANY = {"if-match": "*"}


@pytest.fixture
def add(town: Town, router: Client) -> int:
    """A function of the owner on a town with one node; returns its number."""
    town.machine()
    answer = town.owner.post(PATH, {"name": "add", "code": CODE, "options": {"concurrency": 2, "batch": 3, "tries": 2}})
    assert answer.status_code == 201, answer.content
    return int(answer.json()["function"]["id"])


def taken(router: Client, most: int = 64) -> list[dict[str, Any]]:
    return list(told(router, "calls", {"most": most})["calls"])


def ended(router: Client, call: dict[str, Any], status: int, body: str = "") -> None:
    told(router, "results", {"calls": [{"id": call["id"], "number": call["number"], "status": status, "body": body}]})


def later(seconds: float) -> None:
    """Let time pass for the queue."""
    past = timedelta(seconds=seconds)
    for call in FunctionCall.objects.all():
        FunctionCall.objects.filter(pk=call.pk).update(due_at=call.due_at - past, made_at=call.made_at - past)


def test_a_function_is_a_service_with_our_server_in_it(town: Town, add: int) -> None:
    replicas.follow_all(timezone.now())
    shown = town.owner.read(f"{PATH}/{add}")
    assert (shown["function"]["name"], shown["function"]["state"], shown["code"]) == ("add", "STARTING", CODE)
    assert shown["function"]["address"].endswith("/f/default/add")
    job = Job.objects.get()
    assert (job.user.username, job.bundle) == ("owner", InferenceService.objects.get().revisions.get().bundle)
    way = job.stages.get().request["alternatives"][0]
    assert "switchyard/function.py" in str(way["argv"])
    assert (way["env"]["FUNCTION_CONCURRENCY"], way["env"]["FUNCTION_BATCH"]) == ("2", "3")
    # It is listed as what it is, and nowhere twice.
    assert [one["id"] for one in town.owner.read(PATH)["results"]] == [add]
    assert town.owner.read("/services")["results"] == []
    assert town.owner.get(f"/services/{add}").status_code == 404


def test_the_same_code_is_one_bundle_and_other_code_a_revision(town: Town, add: int) -> None:
    assert Bundle.objects.count() == 1
    same = town.owner.patch(f"{PATH}/{add}", {"code": CODE, "options": {"max": 2}}, **ANY).json()
    assert (same["function"]["revision"], same["function"]["max"], same["function"]["batch"]) == (1, 2, 3)
    other = town.owner.patch(f"{PATH}/{add}", {"code": CODE + "# new\n"}, **ANY).json()
    assert (other["function"]["revision"], other["function"]["max"]) == (2, 2)
    assert Bundle.objects.count() == 2
    options = town.owner.patch(f"{PATH}/{add}", {"options": {"timeout_s": 5}}, **ANY).json()
    assert (options["function"]["revision"], options["code"]) == (3, CODE + "# new\n")


@pytest.mark.parametrize(
    ("asked", "status", "pointer"),
    [
        ({"code": None}, 422, "/code"),
        ({"bundle": "0" * 64}, 422, "/code"),
        ({"code": "x" * 65_537}, 400, None),
        ({"code": "ü" * 40_000}, 413, "/code"),
        ({"file": "../f.py"}, 422, "/file"),
        ({"file": "f.sh; rm -rf /"}, 422, "/file"),
        ({"name": "A b"}, 422, "/name"),
        ({"options": {"concurrency": 0}}, 400, None),
        ({"options": {"min": 3, "max": 2}}, 422, "/options/max"),
        ({"options": {"template": {"run": "sh"}}}, 422, "/options/template/run"),
        ({"options": {"template": {"cpus": "many"}}}, 422, "/options/template/cpus"),
        ({"options": {"template": {"env": {"API_TOKEN": "hunter2"}}}}, 422, "/options/template/env"),
        ({"options": {"template": {"env": 7}}}, 422, "/options/template/env"),
    ],
)
def test_what_cannot_be_a_function_is_refused(
    town: Town, asked: dict[str, Any], status: int, pointer: str | None
) -> None:
    town.machine()
    body = {key: value for key, value in {"name": "add", "code": CODE, **asked}.items() if value is not None}
    answer = town.owner.post(PATH, body)
    assert answer.status_code == status, answer.content
    if pointer:
        assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert not DeployedFunction.objects.exists()
    assert not InferenceService.objects.exists()


def test_one_name_is_one_thing(town: Town, add: int) -> None:
    assert town.owner.post(PATH, {"name": "add", "code": CODE}).status_code == 409
    assert town.owner.post("/services", {"file": {**FILE, "name": "add"}}).status_code == 409


def test_who_may_see_change_and_call_it(town: Town, add: int) -> None:
    path = f"{PATH}/{add}"
    call = town.owner.post(f"{path}/calls", {"event": "mine"}).json()
    for person, expected in ((town.viewer, 403), (town.mate, 403), (town.stranger, 404)):
        assert person.patch(path, {"options": {"max": 3}}, **ANY).status_code == expected
        assert person.client.delete(f"/api/v1{path}", headers=ANY).status_code == expected
        assert person.post(f"{path}/calls/{call['id']}/retry").status_code == expected
    assert town.stranger.read(PATH)["results"] == []
    for part in ("", "/calls", f"/calls/{call['id']}"):
        assert town.stranger.get(path + part).status_code == 404
    assert town.stranger.post(f"{path}/calls", {"event": 1}).status_code == 404
    assert town.viewer.post(f"{path}/calls", {"event": 1}).status_code == 403
    assert town.mate.post(f"{path}/calls", {"event": 1}).status_code == 201
    assert town.mate.read(f"{path}/calls/{call['id']}")["event"] == "mine"
    # Staff sees that there is a call, and nothing of what it says.
    seen = town.staff.read(f"{path}/calls/{call['id']}")
    assert (seen["state"], seen["event"], seen["result"]) == ("QUEUED", None, None)
    assert town.staff.read(path)["code"] == ""
    assert town.viewer.read(path)["code"] == CODE


def test_a_call_is_delivered_and_its_result_kept(town: Town, router: Client, add: int) -> None:
    path = f"{PATH}/{add}/calls"
    made = town.owner.post(path, {"event": {"a": [1, "ö"]}})
    assert (made.status_code, made.json()["state"]) == (201, "QUEUED")
    empty = {"router": "r", "members": [], "services": []}
    assert told(router, "sync", empty)["calls"] == 1
    (call,) = taken(router)
    assert call == {"id": made.json()["id"], "number": 1, "project": "default", "name": "add", "event": '{"a":[1,"ö"]}'}
    assert taken(router) == []
    assert town.owner.read(f"{path}/{call['id']}")["state"] == "RUNNING"
    ended(router, call, 200, '{"b": 2}')
    shown = town.owner.read(f"{path}/{call['id']}")
    assert (shown["state"], shown["result"], shown["tries"]) == ("DONE", {"b": 2}, 0)
    ended(router, call, 500)  # told twice
    assert town.owner.read(f"{path}/{call['id']}")["state"] == "DONE"
    assert told(router, "sync", empty)["calls"] == 0


def test_lists_have_pages(town: Town, add: int) -> None:
    town.owner.post(PATH, {"name": "other", "code": CODE})
    for number in range(3):
        town.owner.post(f"{PATH}/{add}/calls", {"event": number})
    for path, count in ((PATH, 2), (f"{PATH}/{add}/calls", 3)):
        first, seen = town.owner.read(f"{path}?limit=1"), 1
        while first["next"]:
            first = town.owner.client.get(first["next"]).json()
            seen += len(first["results"])
        assert seen == count


def test_a_key_leaves_a_call_once(town: Town, add: int) -> None:
    path = f"{PATH}/{add}/calls"
    first = town.owner.post(path, {"event": 1, "key": "order-17"})
    again = town.mate.post(path, {"event": 2, "key": "order-17"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert [one["event"] for one in town.owner.read(path)["results"]] == [1]


def test_a_call_that_fails_is_tried_again_later_and_given_up(town: Town, router: Client, add: int) -> None:
    path = f"{PATH}/{add}/calls"
    number = town.owner.post(path, {"event": 1}).json()["id"]
    ended(router, taken(router)[0], 500, '{"error": {"message": "ValueError: no"}}')
    shown = town.owner.read(f"{path}/{number}")
    assert (shown["state"], shown["tries"], shown["fault"]) == ("QUEUED", 1, "ValueError: no")
    assert taken(router) == []
    later(2)
    ended(router, taken(router)[0], 502, "the replica failed")
    shown = town.owner.read(f"{path}/{number}")
    assert (shown["state"], shown["tries"], shown["status"]) == ("DEAD", 2, 502)
    page = text(browser(town.owner), f"/functions/{add}")
    assert ("given up" in page, "Queue it again" in page, "DEAD" in page) == (True, True, False)
    page = text(browser(town.owner), f"/functions/{add}", **{"Accept-Language": "zh-CN"})
    assert ("已放弃" in page, "given up" in page, "DEAD" in page) == (True, False, False)
    assert town.owner.read(f"{PATH}/{add}")["function"]["queue"]["dead"] == 1
    assert town.owner.post(f"{path}/{number}/retry").json()["state"] == "QUEUED"
    assert town.owner.post(f"{path}/{number}/retry").status_code == 409
    ended(router, taken(router)[0], 200, "1")
    assert town.owner.read(f"{path}/{number}")["state"] == "DONE"


def test_a_call_that_no_replica_took_is_no_try(town: Town, router: Client, add: int) -> None:
    number = town.owner.post(f"{PATH}/{add}/calls", {"event": 1}).json()["id"]
    for _ in range(4):
        ended(router, taken(router)[0], 0, "no replica took it")
        later(400)
    shown = town.owner.read(f"{PATH}/{add}/calls/{number}")
    assert (shown["state"], shown["tries"]) == ("QUEUED", 0)


def test_a_router_that_died_with_a_call_is_one_of_its_tries(town: Town, router: Client, add: int) -> None:
    number = town.owner.post(f"{PATH}/{add}/calls", {"event": 1}).json()["id"]
    (lost,) = taken(router)
    calls.recover(timezone.now())
    assert taken(router) == []
    later(calls.MARGIN_S + 31)
    calls.recover(timezone.now())
    later(2)
    (again,) = taken(router)
    assert (again["id"], again["number"]) == (number, 2)
    # What the first delivery tells now is not about the second.
    ended(router, lost, 200, '"old"')
    assert town.owner.read(f"{PATH}/{add}/calls/{number}")["state"] == "RUNNING"
    ended(router, again, 200, '"new"')
    assert town.owner.read(f"{PATH}/{add}/calls/{number}")["result"] == "new"


def test_a_long_queue_holds_up_no_other_function(town: Town, router: Client, add: int) -> None:
    other = town.owner.post(PATH, {"name": "other", "code": CODE}).json()["function"]["id"]
    for number in range(calls.MOST_RUNNING + 8):
        assert town.owner.post(f"{PATH}/{add}/calls", {"event": number}).status_code == 201
    town.owner.post(f"{PATH}/{other}/calls", {"event": "mine"})
    assert "mine" in str(taken(router, 2))
    taken(router)
    assert taken(router) == []
    running = FunctionCall.objects.filter(state="RUNNING")
    assert running.filter(function=add).count() == calls.MOST_RUNNING


def test_a_queue_has_bounds(town: Town, add: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{PATH}/{add}/calls"
    assert town.owner.post(path, {"event": "x" * (calls.LARGEST_EVENT + 1)}).status_code == 413
    monkeypatch.setattr(calls, "MOST_OPEN", 2)
    assert [town.owner.post(path, {"event": n}).status_code for n in range(3)] == [201, 201, 429]
    monkeypatch.setattr(calls, "MOST_OPEN", 100)
    monkeypatch.setattr(calls, "MOST_BYTES", 500)
    assert town.owner.post(path, {"event": "x" * 600}).status_code == 429


def test_calls_that_ended_are_forgotten(town: Town, router: Client, add: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in range(5):
        town.owner.post(f"{PATH}/{add}/calls", {"event": event})
    for call in taken(router, 4):
        ended(router, call, 200, "1")
    monkeypatch.setattr(calls, "MOST_KEPT", 2)
    calls.forget_old(timezone.now())
    assert FunctionCall.objects.filter(state="DONE").count() == 2
    calls.forget_old(timezone.now() + calls.KEPT + timedelta(seconds=1))
    assert [one.state for one in FunctionCall.objects.all()] == ["QUEUED"]


def test_a_deleted_function_gives_no_call_and_ends_its_replicas(town: Town, router: Client, add: int) -> None:
    replicas.follow_all(timezone.now())
    town.owner.post(f"{PATH}/{add}/calls", {"event": 1})
    assert town.owner.client.delete(f"/api/v1{PATH}/{add}", headers=ANY).status_code == 204
    assert town.owner.read(PATH)["results"] == []
    assert taken(router) == []
    for _ in range(4):
        replicas.follow_all(timezone.now())
    assert not InferenceService.objects.exists()
    assert not FunctionCall.objects.exists()


def test_a_sleeping_function_is_woken_with_the_message_that_says_so(town: Town, router: Client, add: int) -> None:
    InferenceService.objects.update(wanted=0)
    assert not Replica.objects.exists()
    (service,) = told(router, "wake", {"services": [add]})["services"]
    assert (service["id"], service["is_function"], service["members"]) == (add, True, [])
    assert Replica.objects.count() == 1
    town.cycle()
    # The replica is told of as soon as it has a place: the router's own looks find when it begins to answer.
    (service,) = told(router, "wake", {"services": [add]})["services"]
    assert len(service["members"]) == 1
    assert Replica.objects.count() == 1


@pytest.mark.parametrize("body", ["", "{", '{"services": []}', '{"most": 0}', '{"calls": [{"id": -1}]}', "[" * 5_000])
def test_a_router_that_talks_nonsense_is_told_so(town: Town, router: Client, body: str) -> None:
    for path in ("wake", "calls", "results"):
        assert router.post(f"/router/v1/{path}", body, "application/json").status_code == 400


@pytest.mark.parametrize("path", ["wake", "calls", "results"])
def test_only_a_router_is_given_calls(town: Town, router: Client, path: str) -> None:
    assert SECRET
    asked = Client(headers={"authorization": "Bearer wrong"}).post(f"/router/v1/{path}", "{}", "application/json")
    assert asked.status_code == 401
