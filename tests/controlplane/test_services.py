"""Services over REST and behind it: who may do what, and how replicas follow from jobs and from what routers report."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import service as access
from controlplane.jobs.models import Job
from controlplane.services import replicas
from controlplane.services.models import FIRST_PORT, InferenceService, Replica, ServiceRevision
from scheduler.core.model.lifecycle import FINAL
from tests.controlplane.people import Town

PATH = "/services"
SECRET = "a secret of routers that is long enough"
FILE = {"name": "chat", "replicas": 2, "template": {"run": 'serve --port "$PORT"', "cpus": 0.1, "memory": "64MiB"}}


@pytest.fixture
def router(settings: Any) -> Client:
    settings.ROUTER_KEY = SECRET
    return Client(headers={"authorization": f"Bearer {SECRET}"})


def told(router: Client, path: str, body: Any) -> Any:
    answer = router.post(f"/router/v1/{path}", json.dumps(body), content_type="application/json")
    assert answer.status_code == 200, answer.content
    return answer.json()


class Cluster:
    """A town with one node and a service of the owner; time is told."""

    def __init__(self, town: Town, router: Client, **changes: Any) -> None:
        self.town, self.router, self.agent, self.at = town, router, town.machine(), timezone.now()
        answer = town.owner.post(PATH, {"file": {**FILE, **changes}})
        assert answer.status_code == 201, answer.content
        self.number = int(answer.json()["service"]["id"])

    @property
    def row(self) -> InferenceService:
        return InferenceService.objects.get()

    def listen(self, *but: int) -> None:
        """Let all replicas that run listen at their ports, other than those with these ports."""
        rows = {row.job or 0: row for row in Replica.objects.filter(ended_at=None)}
        for job, part in replicas.parts_of(rows.values()).items():
            ports = [rows[job].port] if rows[job].port not in but else []
            here = self.agent.here
            here[str(part.pk)] = msgspec.structs.replace(here[str(part.pk)], listens=ports)
        self.agent.report()

    def follow(self, seconds: float = 1.0, *, ill: frozenset[int] = frozenset(), load: Any = None) -> None:
        """Let a second pass: replicas start where they can, the router reports that they answer, the worker looks."""
        self.at += timedelta(seconds=seconds)
        replicas.follow_all(self.at)
        self.town.cycle()
        self.agent.start()
        self.listen()
        table = told(self.router, "sync", {"router": "r", "members": [], "services": []})
        members = [
            {
                "id": one["id"],
                "healthy": one["owned"] and one["id"] not in ill,
                "load": load,
                "tokens": 100,
                "outstanding": 0,
                "draining": one["draining"],
                "fault": "it does not answer" if one["id"] in ill else "",
            }
            for service in table["services"]
            for one in service["members"]
        ]
        counts = {"queued": 0, "active": 0, "requests": 0, "failed": 0, "refused": 0, "retried": 0, "first_bytes": []}
        services = [{"id": self.number, **counts}]
        told(self.router, "sync", {"router": "r", "members": members, "services": services})
        Replica.objects.filter(news_at__isnull=False).update(news_at=self.at)
        InferenceService.objects.update(heard_at=self.at)

    def shown(self) -> Any:
        return self.town.owner.read(f"{PATH}/{self.number}")


@pytest.fixture
def cluster(town: Town, router: Client) -> Cluster:
    return Cluster(town, router)


def test_replicas_are_jobs_of_the_owner_and_answer_when_the_router_says_so(cluster: Cluster) -> None:
    assert cluster.shown()["service"]["state"] == "STARTING"
    for _ in range(3):
        cluster.follow()
    shown = cluster.shown()
    assert (shown["service"]["state"], shown["service"]["ready"], shown["service"]["fault"]) == ("READY", 2, "")
    jobs = Job.objects.filter(number__in=[one["job"] for one in shown["replicas"]])
    assert {(job.user.username, job.labels["service"]) for job in jobs} == {("owner", "chat")}
    watched = {each["port"] for job in jobs for each in job.stages.get().request["ports"]}
    assert watched == {one["port"] for one in shown["replicas"]}
    keys = [replicas.key_of(one) for one in Replica.objects.all()]
    # The key of a replica is not kept in plain text, nor shown.
    assert not any(key in str(job.spec) + str(job.stages.first().request) for job in jobs for key in keys)  # type: ignore[union-attr]


def test_a_replica_that_does_not_answer_is_replaced(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.follow()
    ill = Replica.objects.order_by("pk").first()
    assert ill is not None
    for _ in range(2):
        cluster.follow(ill=frozenset({ill.pk}))
    ill.refresh_from_db()
    assert ill.drains_at is not None
    assert Replica.objects.filter(drains_at=None).count() == 2


def test_a_port_that_another_process_has_is_told_to_routers_as_not_its_own(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.follow()
    taken = Replica.objects.order_by("pk")[0]
    cluster.listen(taken.port)
    empty: Any = {"router": "r", "members": [], "services": []}
    (service,) = told(cluster.router, "sync", empty)["services"]
    assert {one["id"]: one["owned"] for one in service["members"]}[taken.pk] is False
    assert sum(one["owned"] for one in service["members"]) == 1
    cluster.listen()
    (service,) = told(cluster.router, "sync", empty)["services"]
    assert all(one["owned"] for one in service["members"])


def test_no_free_port_is_told_and_condemns_no_revision(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LAST_PORT", FIRST_PORT)
    for seconds in (1, 1, 20, 20, 20, 20, 20):
        cluster.follow(seconds)
    assert Replica.objects.filter(ended_at=None).count() == 1
    shown = cluster.shown()["service"]
    assert shown["fault"] == "no port is free: all 1 from 24000 to 24000 are taken by replicas that have not ended"
    monkeypatch.setattr(replicas, "LAST_PORT", FIRST_PORT + 1)
    for seconds in (20, 1, 1):
        cluster.follow(seconds)
    assert (cluster.shown()["service"]["ready"], cluster.shown()["service"]["fault"]) == (2, "")


def test_routers_are_told_what_to_read_and_what_engines_say_is_shown(town: Town, router: Client) -> None:
    small = {"cpus": 0.1, "memory": "64MiB"}
    cluster = Cluster(town, router, engine="builtin", model="tiny", replicas={"min": 1, "max": 9}, template=small)
    load = {"running": 9, "waiting": 30, "cache": 0.75, "room": 4_000}
    for seconds in (1, 1, 1, 30, 30):
        cluster.follow(seconds, load=load)
    (service,) = told(router, "sync", {"router": "r", "members": [], "services": []})["services"]
    assert service["signals"]["1"]["running"] == ["serve:num_requests_running"]
    shown = cluster.shown()
    (first, *_) = [one for one in shown["replicas"] if one["state"] == "READY"]
    assert (first["running"], first["waiting"], first["cache"]) == (9, 30, 0.75)
    # What the engine lets wait counts, whatever this router has sent there: 39 requests are for 5 replicas.
    assert shown["service"]["wanted"] >= 5


def test_a_silent_router_condemns_nobody(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.follow()
    Replica.objects.update(is_healthy=False)
    replicas.follow_all(cluster.at + timedelta(seconds=60))
    assert not Replica.objects.filter(drains_at__isnull=False).exists()


def test_a_deleted_service_ends_its_replicas(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.follow()
    gone = cluster.town.owner.client.delete(f"/api/v1{PATH}/{cluster.number}", headers={"if-match": "*"})
    assert gone.status_code == 204
    assert cluster.town.owner.read(PATH)["results"] == []
    for _ in range(3):
        cluster.follow()
    assert set(Job.objects.values_list("stages__state", flat=True)) <= {*FINAL, "STOPPING"}
    assert not Replica.objects.filter(stopped_at=None).exists()


def test_another_file_is_a_revision_and_numbers_are_none(cluster: Cluster) -> None:
    path, any_ = f"{PATH}/{cluster.number}", {"if-match": "*"}
    owner = cluster.town.owner
    for _ in range(3):
        cluster.follow()
    scaled = owner.patch(path, {"file": {**FILE, "replicas": 1}}, **any_).json()
    assert (scaled["service"]["revision"], scaled["service"]["max"]) == (1, 1)
    other = {**FILE, "template": {**FILE["template"], "env": {"A": "1"}}}  # type: ignore[dict-item]
    assert owner.patch(path, {"file": other}, **any_).json()["service"]["revision"] == 2
    back = owner.post(f"{path}/rollback").json()["service"]
    assert (back["revision"], back["former"]) == (1, None)
    assert owner.post(f"{path}/rollback").status_code == 409
    assert owner.post(f"{path}/rollback", {"revision": 7}).status_code == 409
    etag = owner.get(path)["ETag"]
    assert owner.patch(path, {"max": 3}, **{"if-match": etag}).status_code == 200
    assert owner.patch(path, {"max": 4}, **{"if-match": etag}).status_code == 412
    assert owner.patch(path, {"max": 4}).status_code == 428
    assert owner.patch(path, {"min": 9}, **any_).status_code == 422


def test_routers_are_told_the_share_of_a_canary_as_long_as_it_can_serve(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.follow()
    other = {**FILE, "template": {**FILE["template"], "env": {"A": "1"}}, "rollout": {"canary": "20%"}}  # type: ignore[dict-item]
    cluster.town.owner.patch(f"{PATH}/{cluster.number}", {"file": other}, **{"if-match": "*"})

    def shares() -> Any:
        empty = {"router": "r", "members": [], "services": []}
        (service,) = told(cluster.router, "sync", empty)["services"]
        return service.get("weights", {})

    assert shares() == {"1": 80, "2": 20}
    ServiceRevision.objects.filter(number=2).update(is_failed=True)
    assert shares() == {}


def test_who_may_see_change_and_call_it(cluster: Cluster) -> None:
    town, path, any_ = cluster.town, f"{PATH}/{cluster.number}", {"if-match": "*"}
    assert town.stranger.get(path).status_code == 404
    assert town.stranger.read(PATH)["results"] == []
    for person, expected in ((town.viewer, 403), (town.mate, 403), (town.stranger, 404)):
        assert person.patch(path, {"max": 3}, **any_).status_code == expected
        assert person.post(f"{path}/rollback").status_code == expected
        assert person.client.delete(f"/api/v1{path}", headers=any_).status_code == expected
    assert town.lead.patch(path, {"max": 3}, **any_).status_code == 200
    assert town.lead.patch(path, {"file": FILE}, **any_).status_code == 403

    def may_call(person: Any, *scopes: str) -> list[int]:
        _, secret = access.make_token(person.user, "calls", scopes=scopes or ("read", "submit"))
        return list(told(cluster.router, "keys", {"digest": access.digest(secret)})["services"])

    assert may_call(town.owner) == may_call(town.mate) == may_call(town.staff) == [cluster.number]
    assert may_call(town.viewer) == may_call(town.stranger) == may_call(town.owner, "read") == []
    town.mate.user.is_active = False  # type: ignore[union-attr]
    town.mate.user.save()  # type: ignore[union-attr]
    assert may_call(town.mate) == []


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Bearer wrong", f"Basic {SECRET}"])
def test_only_a_router_is_told(town: Town, router: Client, settings: Any, authorization: str) -> None:
    asked = Client(headers={"authorization": authorization}).post("/router/v1/sync", "{}", "application/json")
    assert asked.status_code == 401
    settings.ROUTER_KEY = ""
    empty = Client(headers={"authorization": "Bearer "}).post("/router/v1/sync", "{}", "application/json")
    assert empty.status_code == 401


@pytest.mark.parametrize("body", ["", "{", "[]", '{"router": 1}', '{"digest": "x"}', "[" * 5_000])
def test_a_router_that_talks_nonsense_is_told_so(town: Town, router: Client, body: str) -> None:
    for path in ("sync", "keys"):
        assert router.post(f"/router/v1/{path}", body, "application/json").status_code == 400


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": "A b"}, "/name"),
        ({"replica": 1}, "/replica"),
        ({"replicas": -1}, "/replicas"),
        ({"replicas": {"min": 3, "max": 2}}, "/replicas/max"),
        ({"engine": "magic"}, "/engine"),
        ({"engine": "vllm"}, "/model"),
        ({"template": {}}, "/template"),
        ({"template": {"run": "x", "array": {"count": 2}}}, "/template/array"),
        ({"template": {"run": "x", "cpus": "many"}}, "/template/cpus"),
        ({"template": {"run": "x", "env": {"API_TOKEN": "hunter2"}}}, "/template/env"),
        ({"rollout": {"surge": 0}}, "/rollout/surge"),
        ({"rollout": {"canary": "0%"}}, "/rollout/canary"),
        ({"limits": {"body": "1TiB"}}, "/limits/body"),
        ({"health": "http://elsewhere/"}, "/health"),
    ],
)
def test_a_faulty_file_is_refused(town: Town, changes: dict[str, Any], pointer: str) -> None:
    town.machine()
    answer = town.owner.post(PATH, {"file": {**FILE, **changes}})
    assert answer.status_code == 422, answer.content
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert not InferenceService.objects.exists()
