"""Profiles of running stages: who may ask for one, what its agent is told and tells, and how the file is kept."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.core.files.storage import storages
from django.db import IntegrityError, transaction
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from agents.ends import clause, say
from agents.protocol import MOST_TRACE_BYTES, Phase, TraceNews, TraceOrder
from controlplane.accounts.models import AuditEntry
from controlplane.fleet.models import Node
from controlplane.fleet.service import digest
from controlplane.jobs import traces
from controlplane.jobs.models import Job, Part, StageTrace
from controlplane.retention.kinds import NAMED
from tests.controlplane.people import Town
from tests.controlplane.test_api_jobs import problem
from tests.controlplane.test_pages import browser, text
from tests.record.yard import Agent, stage

ALLOWED = {"profiling": {"allow": ["py-spy"]}}
PROFILE = b'{"$schema": "speedscope"}'


class Scene:
    """A job of the owner that runs, on a node whose agent this test plays."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.agent: Agent = town.machine()
        self.job: Job = town.running(self.agent, **ALLOWED)
        Node.objects.update(credential_digest=digest("credential"))
        self.path = f"/jobs/{self.job.number}/traces"

    def asked(self, **body: Any) -> dict[str, Any]:
        answer = self.town.owner.post(self.path, body)
        assert answer.status_code == 202, answer.content
        found: dict[str, Any] = json.loads(answer.content)
        assert answer["Location"] == f"/api/v1{self.path}/{found['id']}"
        return found

    def told(self, trace: str, rest: str = "", body: bytes = b"", node: Node | None = None) -> HttpResponse:
        """What an agent posts."""
        by = f"Node {node.id}:another" if node else f"Node {self.agent.node.id}:credential"
        kind = "application/octet-stream"
        return Client().post(f"/agent/v1/traces/{trace}{rest}", body, kind, headers={"authorization": by})

    def news(self, trace: str, state: Any, *said: Any) -> int:
        news = TraceNews(state=state, detail=say(said), said=list(said))
        return self.told(trace, body=msgspec.json.encode(news)).status_code

    def orders(self) -> list[TraceOrder]:
        self.agent.look()
        assert self.agent.desired is not None
        return self.agent.desired.traces

    def ready(self) -> str:
        trace = str(self.asked()["id"])
        assert self.news(trace, "RUNNING") == 204
        assert self.told(trace, "/content", PROFILE).status_code == 204
        return trace

    def of(self, trace: str) -> dict[str, Any]:
        found: dict[str, Any] = self.town.viewer.read(f"{self.path}/{trace}")
        return found


@pytest.fixture
def scene(town: Town) -> Scene:
    return Scene(town)


def test_a_trace_is_asked_for_taken_and_downloaded(scene: Scene) -> None:
    part = Part.objects.get(attempt__stage__job=scene.job)
    asked = scene.asked(seconds=5, reason="slow")
    assert (asked["state"], asked["tool"], asked["stage"], asked["node"]) == ("ASKED", "py-spy", "main", "n1")
    assert (asked["asked_by"], asked["seconds"], asked["rank"], asked["attempt"]) == ("owner", 5, 0, 1)
    order = TraceOrder(asked["id"], str(part.id), part.epoch, "py-spy", 5)
    # It is repeated until the agent has answered.
    assert scene.orders() == scene.orders() == [order]
    assert scene.news(asked["id"], "RUNNING") == 204
    assert scene.orders() == []
    assert scene.of(asked["id"])["state"] == "RUNNING"
    assert scene.told(asked["id"], "/content", PROFILE).status_code == 204
    found = scene.of(asked["id"])
    assert (found["state"], found["size_bytes"], found["detail"]) == ("READY", len(PROFILE), "")
    assert scene.town.viewer.read(scene.path)["results"] == [found]
    answer: Any = scene.town.viewer.get(f"{scene.path}/{asked['id']}/content")
    assert b"".join(answer.streaming_content) == PROFILE
    assert answer["Content-Disposition"] == f'attachment; filename="{scene.job.number}-main-1-0.speedscope.json"'
    assert (answer["X-Content-Type-Options"], answer["Content-Type"]) == ("nosniff", "application/octet-stream")
    # It is sent once.
    assert scene.told(asked["id"], "/content", b"other").status_code == 409
    assert scene.news(asked["id"], "FAILED", clause("TraceCut")) == 409
    (event,) = scene.job.events.filter(kind="trace")
    assert event.text == "owner asked py-spy to profile rank 0 of main for 5 s (slow)"
    assert AuditEntry.objects.get(action="job.trace").after["trace"] == asked["id"]


def test_a_repeated_request_is_one_trace(scene: Scene) -> None:
    key = {"Idempotency-Key": "once"}
    first, again = (scene.town.owner.post(scene.path, {}, **key) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert json.loads(first.content) == json.loads(again.content)
    assert StageTrace.objects.count() == 1


def test_only_who_may_act_on_the_job_asks_and_only_members_see(scene: Scene) -> None:
    for person in (scene.town.mate, scene.town.viewer):
        problem(person.post(scene.path), 403, "permission_denied")
    trace = scene.ready()
    assert scene.town.lead.post(scene.path).status_code == 202
    for address in (scene.path, f"{scene.path}/{trace}", f"{scene.path}/{trace}/content"):
        problem(scene.town.stranger.get(address), 404, "not_found")
        answer = scene.town.mate.get(address)
        assert answer.status_code == 200
        assert b"".join(answer)
    problem(scene.town.stranger.post(scene.path), 404, "not_found")
    other = scene.town.job()
    problem(scene.town.owner.get(f"/jobs/{other.number}/traces/{trace}"), 404, "not_found")


def test_what_cannot_be_profiled_is_refused_with_what_could(scene: Scene) -> None:
    post = scene.town.owner.post
    assert "profiling: {allow: [torch]}" in problem(post(scene.path, {"tool": "torch"}), 409, "not_allowed")["detail"]
    problem(post(scene.path, {"tool": "gdb"}), 400, "invalid")
    for seconds in (0, 121, "x"):
        problem(post(scene.path, {"seconds": seconds}), 400, "invalid")
    problem(post(scene.path, {"rank": 1}), 409, "nothing_runs")
    problem(post(scene.path, {"stage": "none"}), 404, "not_found")
    problem(post(f"/jobs/{scene.town.job().number}/traces"), 409, "nothing_runs")
    trace = scene.asked()["id"]
    problem(post(scene.path), 409, "in_progress")
    problem(scene.town.owner.get(f"{scene.path}/{trace}/content"), 409, "not_ready")
    row = StageTrace.objects.get()
    row.pk = uuid.uuid4()
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_an_agent_tells_of_traces_of_its_own_parts_only(scene: Scene) -> None:
    trace = scene.asked()["id"]
    other = scene.town.machine("n2").node
    Node.objects.filter(id=other.id).update(credential_digest=digest("another"))
    assert scene.told(trace, "/content", PROFILE, other).status_code == 409
    failed = msgspec.json.encode(TraceNews(state="FAILED"))
    assert scene.told(trace, "", failed, other).status_code == 409
    assert scene.told(trace, "", b"{").status_code == 400
    assert scene.told(trace, "", b'{"state": "READY"}').status_code == 400
    assert Client().post(f"/agent/v1/traces/{trace}/content", b"x", "application/octet-stream").status_code == 401
    assert scene.of(trace)["state"] == "ASKED"


def test_a_failure_has_its_sentence_in_the_readers_language(scene: Scene) -> None:
    trace = scene.asked()["id"]
    assert scene.news(trace, "FAILED", clause("NoPySpy")) == 204
    found = scene.of(trace)
    assert (found["state"], found["detail_said"]) == ("FAILED", [{"code": "NoPySpy", "params": {}}])
    assert found["detail"].startswith("this node has no py-spy")
    problem(scene.town.owner.get(f"{scene.path}/{trace}/content"), 409, "not_ready")


def test_a_file_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = scene.asked()["id"]
    assert scene.told(trace, "/content", b"").status_code == 413
    assert scene.told(trace, "/content", bytes(MOST_TRACE_BYTES + 1)).status_code == 413
    monkeypatch.setattr("controlplane.storage.is_full", lambda: True)
    assert scene.told(trace, "/content", PROFILE).status_code == 507
    assert scene.of(trace)["state"] == "ASKED"


def test_what_no_agent_answers_fails_with_a_sentence(scene: Scene) -> None:
    unheard = scene.asked()["id"]
    traces.expire()
    assert scene.of(unheard)["state"] == "ASKED"
    ago = timezone.now() - timedelta(seconds=traces.UNHEARD_S + 1)
    StageTrace.objects.update(asked_at=ago)
    traces.expire()
    assert scene.of(unheard)["detail_said"][0]["code"] == "TraceUnheard"
    lost = scene.asked(seconds=100)["id"]
    scene.news(lost, "RUNNING")
    for over_s, state in ((-5, "RUNNING"), (5, "FAILED")):
        began = timezone.now() - timedelta(seconds=traces.UNFINISHED_S + 100 + over_s)
        StageTrace.objects.filter(id=lost).update(began_at=began)
        traces.expire()
        assert scene.of(lost)["state"] == state
    late = scene.asked()["id"]
    scene.agent.set(stage(scene.job), Phase.ENDED)
    assert scene.orders() == []
    Part.objects.update(ended_at=timezone.now() - timedelta(seconds=11))
    traces.expire()
    assert scene.of(late)["detail_said"][0]["code"] == "TracePartEnded"
    assert scene.told(late, "/content", PROFILE).status_code == 409


def test_the_newest_are_kept_and_retention_takes_the_rest_with_their_files(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    monkeypatch.setattr(traces, "MOST_KEPT", 3)
    made = [scene.ready() for _ in range(3)]
    with django_capture_on_commit_callbacks(execute=True):
        last = scene.asked()["id"]
    assert [each["id"] for each in scene.town.owner.read(scene.path)["results"]] == [last, *made[:0:-1]]
    place = {trace: StageTrace(id=uuid.UUID(trace)).place for trace in made}
    assert [storages["traces"].exists(place[trace]) for trace in made] == [False, True, True]
    rows = NAMED["traces"].rows(None)
    assert {(str(row.id), row.size) for row in rows} == {(trace, len(PROFILE)) for trace in made[1:]}
    with django_capture_on_commit_callbacks(execute=True):
        NAMED["traces"].remove([row.pk for row in rows])
    assert not any(storages["traces"].exists(place[trace]) for trace in made)
    assert [each["id"] for each in scene.town.owner.read(scene.path)["results"]] == [last]


def test_the_page_of_a_job_has_a_form_and_past_profiles(scene: Scene) -> None:
    at, owner = f"/jobs/{scene.job.number}/profile", browser(scene.town.owner)
    assert f'action="/jobs/{scene.job.number}/trace"' in text(owner, at)
    form = {"stage": "main", "tool": "py-spy", "rank": "0", "seconds": "5"}
    assert owner.post(f"/jobs/{scene.job.number}/trace", form)["Location"] == at
    trace = StageTrace.objects.get()
    assert (trace.seconds, trace.asked_by.get_username()) == (5, "owner")
    again = owner.post(f"/jobs/{scene.job.number}/trace", form)
    assert again.status_code == 409
    assert "wait until it is done" in again.content.decode()
    assert owner.post(f"/jobs/{scene.job.number}/trace", {**form, "seconds": "999"}).status_code == 400
    scene.news(str(trace.id), "FAILED", clause("TraceRefused", tool="py-spy", said="<b>no</b>"))
    assert "could not profile it: &lt;b&gt;no&lt;/b&gt;" in text(owner, at)
    ready = scene.ready()
    viewer = browser(scene.town.viewer)
    assert f'href="/api/v1/jobs/{scene.job.number}/traces/{ready}/content"' in text(viewer, at)
    assert f"/jobs/{scene.job.number}/trace" not in re.findall('action="([^"]*)"', text(viewer, at))
    assert viewer.post(f"/jobs/{scene.job.number}/trace", form).status_code == 403
    assert browser(scene.town.stranger).post(f"/jobs/{scene.job.number}/trace", form).status_code == 404
    other = scene.town.running(scene.town.machine("n2"))
    assert "profiling: {allow: [py-spy, torch]}" in text(owner, f"/jobs/{other.number}/profile")
