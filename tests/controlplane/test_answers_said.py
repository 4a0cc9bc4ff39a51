"""What the API refuses it explains in Chinese to whoever reads Chinese: the tables of other tests, asked once more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils.translation import override
from rest_framework import exceptions

from controlplane.background import BackgroundPhase
from controlplane.clauses import clause, told
from controlplane.documents import Unreadable, from_json, from_yaml
from controlplane.fleet import service
from controlplane.fleet.models import Device, Node
from controlplane.queries import jobs
from controlplane.sentences import in_language
from controlplane.simulations.models import Simulation
from controlplane.wellformed import LATEST, faults
from scheduler.core.model.sentences import said
from scheduler.profiles import load
from scheduler.scenario.scenario import ScenarioError, build
from scheduler.sim.traces import TraceError, generic, history
from tests.controlplane import (
    test_api_body,
    test_api_problems,
    test_body_limit,
    test_maintenance,
    test_simulations,
    test_wellformed,
)
from tests.controlplane.people import Person, Town
from tests.controlplane.test_pages import browser
from tests.controlplane.test_pages_said import chinese, english_in
from tests.scenario import test_scenario
from tests.sim import test_traces

ZH = "zh-hans"
# After these comes what a library says, in its own words.
LIBRARY = re.compile(r"(无法读取[^：]*：|第 \d+ 行：(?=[a-z])|不是 \w+（).*")


def rows(test: Any) -> list[Any]:
    """The table of cases that another test has."""
    return list(test.pytestmark[0].args[1])


def judged(*texts: str) -> None:
    """Each of these is Chinese, but for names (also a list of them), values and the words of libraries."""
    for text in texts:
        assert re.search("[\u4e00-\u9fff]", text), text
        assert english_in(LIBRARY.sub(r"\1", text).replace(", ", " | ")) == [], text


def refused(answer: HttpResponse, *statuses: int) -> dict[str, Any]:
    """The problem document of an answer, which is Chinese in all that people read of it."""
    assert answer.status_code in (statuses or range(400, 600)), (answer.status_code, answer.content)
    body: dict[str, Any] = json.loads(answer.content)
    told = [body["title"], body["detail"], *(fault["detail"] for fault in body.get("errors", ()))]
    judged(*told, *([body["hint"]] if body.get("hint") else []))
    return body


class Reader:
    """Somebody who asks in Chinese."""

    def __init__(self, person: Person) -> None:
        self.person = person

    def get(self, path: str) -> HttpResponse:
        return self.person.get(path, **{"accept-language": ZH})

    def post(self, path: str, body: Any = None, *, kind: str = "application/json", **headers: str) -> HttpResponse:
        return self.person.post(path, body, kind=kind, **{"accept-language": ZH, **headers})


@pytest.fixture
def in_chinese() -> Iterator[None]:
    with override(ZH):
        yield


NOBODY = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize("row", rows(test_api_problems.test_each_error_has_its_document), ids=lambda row: str(row[2]))
def test_whatever_goes_wrong(town: Town, monkeypatch: pytest.MonkeyPatch, row: Any) -> None:
    error, status = row[0], row[1]

    def fail(*args: Any, **kwargs: Any) -> Any:
        # This one takes its words when it is made.
        raise exceptions.Throttled(wait=7) if isinstance(error, exceptions.Throttled) else error

    monkeypatch.setattr(jobs, "visible", fail)
    answer = Reader(town.owner).get("/jobs")
    # What somebody gave to the exception in English is told as it was given.
    if str(error) in {"no", "{'name': [ErrorDetail(string='must be short', code='invalid')]}"}:
        judged(json.loads(answer.content)["title"])
    else:
        refused(answer, status)


def test_the_code_stays_and_who_asks_in_no_language_is_answered_in_english(town: Town) -> None:
    body = refused(Reader(town.owner).get("/jobs/77"), 404)
    assert (body["title"], body["code"], body["detail"]) == ("未找到", "not_found", "没有您可以查看的作业 77")
    plain = json.loads(town.owner.get("/jobs/77").content)
    assert (plain["title"], plain["detail"]) == ("Not Found", "there is no job 77 that you may see")


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/99", f"/jobs/{NOBODY}", "/nodes/none", "/devices/none", "/pools/none", "/projects/none",
        "/simulations/9", "/decisions/9", f"/attempts/{NOBODY}", "/maintenance-windows/9", "/nothing/here",
        "/bundles/" + "0" * 64, "/jobs?limit=0", "/jobs?limit=many", "/jobs?sort=name", "/jobs?state=odd",
        "/jobs?cursor=x", "/decisions?did=nothing", "/decisions/9?after=-1", "/timeline?from=x", "/timeline?from=1e11",
        "/timeline?from=5&to=1", "/jobs/{job}/metrics?since_s=0", "/jobs/{job}/logs?stream=x",
        "/jobs/{job}/logs?limit=0", "/jobs/{job}/logs?tail=-1", "/jobs/{job}/logs?offset=-1",
        "/jobs/{job}/logs?attempt=7", "/jobs/{job}/logs?rank=3", "/jobs/{job}/events?sort=x", "/consolidation",
    ],
)  # fmt: skip
def test_an_address_that_answers_nothing(town: Town, path: str) -> None:
    job = town.running(town.machine())
    refused(Reader(town.owner).get(path.format(job=job.number)))


@pytest.mark.parametrize(
    "path", [row[0] for row in rows(test_wellformed.test_an_address_is_refused_with_the_parameter)]
)
def test_an_address_that_is_not_well_formed(town: Town, path: str) -> None:
    job = town.running(town.machine())
    refused(Reader(town.owner).get(path.replace("/1/", f"/{job.number}/")), 400)


def test_a_page_that_is_not_well_formed(town: Town) -> None:
    for path in ("/jobs?q=%00", "/jobs?cursor=x", "/jobs?state=x", "/jobs/99"):
        answer = browser(town.owner).get(path, headers={"accept-language": ZH})
        page = re.sub(r"<(script|style|head)\b.*?</\1>|<[^>]+>", " ", answer.content.decode(), flags=re.DOTALL)
        assert answer.status_code in {400, 404}
        judged(page)


def test_headers_and_fields_that_are_not_well_formed(town: Town) -> None:
    headers = {"accept-language": ZH}
    client = town.owner.client
    for more in ({"x-odd": "a\x01b"}, {"x-odd": "x" * 17_000}):
        refused(client.get("/api/v1/jobs", headers={**headers, **more}), 400)
    kind = "application/json; charset=hex"
    refused(client.generic("POST", "/api/v1/jobs", b"{}", content_type=kind, headers=headers), 400)
    refused(client.get("/api/v1/jobs/" + "x" * 3_000, headers=headers), 400)
    refused(client.get("/api/v1/jobs", headers=headers, CONTENT_LENGTH="many"), 400)
    answer = Client().post("/sign-in", {"username": "a\0"}, headers=headers)
    assert answer.status_code == 400
    assert "含有 NUL 字符" in answer.content.decode()


def test_values_that_cannot_be_kept(in_chinese: None) -> None:
    late = LATEST + timedelta(days=1)
    found = dict(faults({"a": ["\0", "\ud800"], "e": float("inf"), "\0": 1, "n": 2**70, "t": late}))
    judged(*found.values())
    assert len(found) == 6


@pytest.mark.parametrize("text", [row[0] for row in rows(test_api_body.test_dangerous_yaml_is_refused)])
def test_dangerous_yaml(in_chinese: None, text: str | bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        from_yaml(text if isinstance(text, bytes) else text.encode())
    judged(str(caught.value))


@pytest.mark.parametrize("text", [*rows(test_api_body.test_dangerous_json_is_refused), "[1e999]", "[" + "1," * 10**6])
def test_dangerous_json(in_chinese: None, text: str | bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        from_json(text if isinstance(text, bytes) else text.encode())
    judged(str(caught.value))


@pytest.mark.parametrize(("body", "kind"), [row[:2] for row in rows(test_api_body.test_bad_bodies_become_problems)])
def test_bad_bodies(town: Town, body: bytes, kind: str) -> None:
    refused(Reader(town.owner).post("/jobs", body, kind=kind))


async def test_a_body_beyond_the_cap() -> None:
    for header in ((b"accept-language", b"zh-CN"), (b"cookie", b"django_language=zh-hans")):
        answers, _ = await test_body_limit.ask([b"x" * 11], [header])
        body = json.loads(answers[1]["body"])
        judged(body["title"], body["detail"])


def test_who_may_not(town: Town) -> None:
    job = town.running(town.machine())
    device = Device.objects.exclude(kind="cpu").first()
    assert device is not None
    viewer = Reader(town.viewer)
    attempt = job.stages.get().attempts.get()
    for path in (
        *(f"/jobs/{job.number}/{act}" for act in ("cancel", "hold", "release")),
        *(f"/nodes/n1/{act}" for act in ("drain", "resume")),
        *(f"/devices/{device.uuid}/{act}" for act in ("cordon", "uncordon")),
        f"/attempts/{attempt.id}/adjust",
    ):
        refused(viewer.post(path, {}), 403)
    window = {"node": "n1", "starts_at": "2090-01-01T00:00:00Z", "ends_at": "2090-01-02T00:00:00Z", "reason": "x"}
    refused(viewer.post("/maintenance-windows", window), 403)
    refused(viewer.post("/maintenance-windows/1/cancel"), 403)
    refused(viewer.get("/decisions/1/record"), 403)
    refused(Reader(town.anonymous).get("/jobs"), 401)
    refused(Reader(Person(town.owner.user, "read")).post("/jobs", {"run": "true"}), 403)
    refused(Client(headers={"authorization": "Bearer yard_x", "accept-language": ZH}).get("/api/v1/jobs"), 401)


def test_what_may_not_be_done_now(town: Town) -> None:
    job = town.running(town.machine())
    staff, owner = Reader(town.staff), Reader(town.owner)
    device = Device.objects.exclude(kind="cpu").first()
    assert device is not None
    refused(owner.post(f"/jobs/{job.number}/hold"), 409)
    refused(owner.post(f"/jobs/{job.number}/hold", {"reason": "x" * 501}), 422)
    refused(staff.post("/nodes/n1/drain", {}), 409)
    refused(staff.post(f"/devices/{device.uuid}/cordon", {}), 409)
    refused(staff.post(f"/devices/{device.uuid}/uncordon"), 409)
    refused(staff.post("/consolidation", {"stage": "x"}), 409)
    Device.objects.update(present=False)
    refused(staff.post(f"/devices/{device.uuid}/cordon", {"reason": "x"}), 409)
    Node.objects.update(state="LOST")
    refused(staff.post("/nodes/n1/resume"), 409)
    attempt = f"/attempts/{job.stages.get().attempts.get().id}/adjust"
    for body in ([], {"reason": 1}, {"ranks": []}, {"cpu_weight": 10_000}):
        refused(owner.post(attempt, body), 403, 422)
    refused(owner.post("/jobs/batch", {"jobs": []}), 422)
    refused(owner.post("/jobs?dry_run=x", {"run": "true"}), 400)
    refused(owner.post("/bundles", b"no bundle", kind="application/gzip"), 422)


def test_a_key_that_was_used(town: Town) -> None:
    town.machine()
    owner = Reader(town.owner)
    refused(owner.post("/jobs", {"run": "x"}, **{"Idempotency-Key": "k" * 201}), 400)
    assert owner.post("/jobs", {"run": "x"}, **{"Idempotency-Key": "k"}).status_code == 201
    refused(owner.post("/jobs", {"run": "y"}, **{"Idempotency-Key": "k"}), 422)


@pytest.mark.parametrize(
    "changes", [row[0] for row in rows(test_maintenance.test_a_window_that_cannot_be_is_refused_with_its_field)]
)
def test_a_window_that_cannot_be(town: Town, changes: dict[str, Any]) -> None:
    town.machine()
    refused(Reader(town.staff).post("/maintenance-windows", test_maintenance.window(**changes)))


def test_a_window_that_is_over(town: Town, in_chinese: None) -> None:
    town.machine()
    made = json.loads(town.staff.post("/maintenance-windows", test_maintenance.window()).content)["window"]["id"]
    staff = Reader(town.staff)
    assert staff.post(f"/maintenance-windows/{made}/cancel").status_code == 200
    refused(staff.post(f"/maintenance-windows/{made}/cancel"), 409)


def test_who_may_not_join(town: Town, in_chinese: None) -> None:
    town.machine()
    token = service.make_join_token(town.pool, uses=3)
    for secret, name in (
        ("x", "n7"),
        (token, "N 7"),
        (token, "n1"),
        (service.make_return_token(Node.objects.get()), "n9"),
    ):
        with pytest.raises(service.NodeRefused) as caught:
            service.enrol(secret, name)
        judged(str(caught.value))


@pytest.mark.parametrize(
    "more", [row[0] for row in rows(test_simulations.test_what_cannot_be_is_refused_with_its_place)]
)
def test_a_simulation_that_cannot_be(town: Town, more: dict[str, Any]) -> None:
    refused(Reader(town.owner).post("/simulations", {**test_simulations.SMALL, **more}), 422)


def test_too_many_simulations_and_one_that_failed(town: Town) -> None:
    for _ in range(2):
        test_simulations.posted(town)
    refused(Reader(town.owner).post("/simulations", test_simulations.SMALL), 429)
    gone = told(clause("ProcessGone"))
    Simulation.objects.update(phase=BackgroundPhase.FAILED, fault=gone.text, fault_said=gone.said)
    assert "其进程已不存在" in chinese(town.owner, "/simulations")
    found = Simulation.objects.first()
    assert found is not None
    assert "其进程已不存在" in chinese(town.owner, f"/simulations/{found.pk}")


@pytest.mark.parametrize("body", [row[0] for row in rows(test_scenario.test_what_cannot_be_is_told_with_its_place)])
def test_a_scenario_that_cannot_be(in_chinese: None, body: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        build(body)
    judged(in_language(caught.value.said))
    # What is raised, and kept, is English whoever asked.
    assert not re.search("[\u4e00-\u9fff]", str(caught.value))


@pytest.mark.parametrize("row", [row[0] for row in rows(test_traces.test_a_wrong_field_is_named_by_line_and_column)])
def test_a_row_of_a_trace_that_cannot_be(in_chinese: None, row: str) -> None:
    with pytest.raises(TraceError) as caught:
        generic.read(["submit_s,duration_s,gpus\n", "0,5,1\n", row + "\n"])
    judged(in_language(said(caught.value)))


@pytest.mark.parametrize("line", [row[0] for row in rows(test_traces.test_a_broken_line_of_history_is_told)])
def test_a_line_of_history_that_cannot_be(in_chinese: None, line: str) -> None:
    with pytest.raises(TraceError) as caught:
        history.read([line])
    judged(in_language(said(caught.value)))


@pytest.mark.parametrize(
    "spec",
    [
        {"odd": 1}, {"timetable": "x"}, {"rotates": 0}, {"rotates": "event", "timetable": "keep"}, {"depth": -1},
        {"policies": {"quota": {"weight": -1}}}, {"policies": {"none": {}}}, {"policies": {"quota": {"odd": 1}}},
        {"policies": {"alternatives": {"near": -1}}},
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be(in_chinese: None, spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        load("mine", spec)
    judged(in_language(said(caught.value)))
