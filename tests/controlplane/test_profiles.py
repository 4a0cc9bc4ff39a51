"""Own profiles: made, versioned, previewed, switched on, and what happens when one cannot decide."""

from __future__ import annotations

import html
import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.fleet import alarms
from controlplane.fleet.models import Alarm
from controlplane.jobs.models import Stage
from controlplane.pools.admin import PoolForm
from controlplane.pools.models import Pool, Profile, ProfileVersion
from controlplane.scheduling import promise_rate, shadow
from controlplane.scheduling.recorder import Recorder
from controlplane.scheduling.store import LiveStore, clock
from controlplane.simulations import service, worker
from scheduler import policies
from scheduler.decisions import log
from scheduler.decisions.replay import replay
from scheduler.profiles import PROFILES
from tests.controlplane.people import Town
from tests.record.yard import states

LIFO: dict[str, Any] = {"policies": {"fifo": {"strict": False}, "gang": {}, "spread": {}}, "timetable": "none"}


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ask_to_run", lambda _: None)


def made(town: Town, name: str = "mine", **body: Any) -> Any:
    answer = town.staff.post("/profiles", {"name": name, "spec": LIFO, **body})
    return answer.status_code, json.loads(answer.content)


def activated(town: Town, name: str = "mine", version: int = 1, **body: Any) -> Any:
    answer = town.staff.post(f"/profiles/{name}/activate", {"version": version, **body})
    return answer.status_code, json.loads(answer.content)


def test_those_that_come_along_are_examples_that_nobody_changes(town: Town) -> None:
    body = town.viewer.read("/profiles")
    assert [one["name"] for one in body["results"]] == list(PROFILES)
    assert all(one["builtin"] for one in body["results"])
    assert next(one for one in body["results"] if one["name"] == "hybrid")["pools"] == ["default"]
    assert town.viewer.read("/profiles/hybrid")["spec"]["timetable"] == "repair"
    for path, more in (("versions", {"spec": LIFO}), ("activate", {"version": 1}), ("delete", {})):
        assert town.staff.post(f"/profiles/hybrid/{path}", more).status_code == 409
    status, body = made(town, "hybrid")
    assert (status, body["errors"][0]["pointer"]) == (422, "/name")
    assert "copy it under another name" in body["detail"]


def test_a_profile_decides_from_the_cycle_after_it_is_switched_on(town: Town) -> None:
    town.machine()
    status, body = made(town, note="spread it")
    assert (status, body["profile"]["active"], body["versions"][0]["made_by"]) == (201, None, "ada")
    answer = town.staff.post("/pools/default/profile", {"profile": "mine"})
    assert answer.status_code == 422, "it has no version that decides"
    assert activated(town)[0] == 409, "nobody has seen what it does"
    status, body = activated(town, unseen=True)
    assert (status, body["profile"]["active"]) == (200, 1)
    answer = town.staff.post("/pools/default/profile", {"profile": "mine"})
    assert json.loads(answer.content)["decides"] == "mine@1"
    job = town.job()
    done = town.cycle()
    assert done.snapshot.pools[0].profile == "mine@1"
    assert states(job)["main"] == "STARTING"
    answer = town.staff.post("/profiles/mine/versions", {"spec": {**LIFO, "policies": {"pack": {}}}})
    assert json.loads(answer.content)["profile"] == {
        "name": "mine", "description": "", "builtin": False, "active": 1, "newest": 2,
        "pools": ["default"], "beside": [],
    }  # fmt: skip
    assert town.cycle().snapshot.pools[0].profile == "mine@1"
    activated(town, version=2, unseen=True)
    assert town.cycle().snapshot.pools[0].profile == "mine@2"
    activated(town, version=1)
    assert town.cycle().snapshot.pools[0].profile == "mine@1", "what has decided before may do so again"
    answer = town.staff.post("/profiles/mine/delete")
    assert (answer.status_code, json.loads(answer.content)["code"]) == (409, "profile_in_use")
    town.staff.post("/pools/default/profile", {"profile": "hybrid"})
    assert town.staff.post("/profiles/mine/delete").status_code == 204
    assert not ProfileVersion.objects.exists()


@pytest.mark.parametrize(
    ("body", "pointer", "told"),
    [
        ({"spec": {"policies": {"guess": {}}}}, "/spec", 'there is no policy "guess"; there are alternatives'),
        ({"spec": {"policies": {"oracle_remaining_time": {}}}}, "/spec", "is a yardstick for simulations"),
        ({"spec": {"policies": {"pack": {"weight": 1e12}}}}, "/spec", "must be a number from 0 to 1e+09"),
        ({"spec": {"policies": {"max_min": {"round_s": 0}}}}, "/spec", "must be a number from 1 to 604800"),
        ({"spec": {"policies": {"fifo": {}}, "depth": "x" * 20_000}}, "/spec", "at most"),
        ({"spec": {"timetable": "keep", "rotates": "event"}}, "/spec", "its timetable must be none"),
        ({"name": "No Name"}, "/name", "lower-case letters"),
        ({"name": "x" * 41}, "/name", "at most 40 characters"),
        ({"description": "x" * 201}, "/description", "at most 200 characters"),
        ({"note": "x" * 201}, "/note", "at most 200 characters"),
        ({"spec": None}, "/spec", "one of spec and copy_of"),
        ({"spec": None, "copy_of": "nothing"}, "/copy_of", "There is no profile nothing; there are static"),
        ({"spec": None, "copy_of": "mine@99999999999"}, "/copy_of", "There is no profile"),
    ],
)
def test_what_cannot_decide_is_refused_with_its_field(
    town: Town, body: dict[str, Any], pointer: str, told: str
) -> None:
    status, found = made(town, **body)
    assert (status, found["errors"][0]["pointer"]) == (422, pointer), found
    assert told in found["detail"]
    assert len(found["detail"]) < 1_000
    assert not Profile.objects.exists()


def test_only_staff_change_profiles(town: Town) -> None:
    made(town)
    for person in (town.owner, town.lead, town.viewer):
        assert person.read("/profiles/mine")["versions"][0]["number"] == 1
        for path in ("/profiles", "/profiles/mine/versions", "/profiles/mine/activate", "/profiles/mine/delete"):
            assert person.post(path, {}).status_code == 403, path
        assert person.post("/profiles/mine/versions/1/preview", {"pool": "default"}).status_code == 403
        assert person.post("/pools/default/profile", {"profile": "fifo"}).status_code == 403
    assert town.anonymous.get("/profiles").status_code == 401


def test_a_copy_of_one_that_comes_along_decides_as_it_does(town: Town) -> None:
    status, body = made(town, spec=None, copy_of="hybrid")
    assert (status, body["spec"]) == (201, json.loads(json.dumps(PROFILES["hybrid"])))


@pytest.mark.parametrize("name", sorted(policies.discover()))
def test_every_policy_can_decide_in_a_pool(town: Town, name: str) -> None:
    town.machine()
    made(town, spec={"policies": {name: {}}})
    assert activated(town, unseen=True)[0] == 200
    town.staff.post("/pools/default/profile", {"profile": "mine"})
    job = town.job(devices={"kind": "gpu", "count": 1})
    done = town.cycle()
    assert done.snapshot.pools[0].profile == "mine@1"
    assert states(job)["main"] == "STARTING"


def test_a_version_that_no_engine_understands_leaves_the_last_good_one_deciding(town: Town) -> None:
    """As after an upgrade that dropped a policy: the row is as it was, and cannot be built any more."""
    made(town)
    activated(town, unseen=True)
    town.staff.post("/pools/default/profile", {"profile": "mine"})
    town.cycle()
    town.staff.post("/profiles/mine/versions", {"spec": LIFO})
    activated(town, version=2, unseen=True)
    ProfileVersion.objects.filter(number=2).update(spec={"policies": {"of-last-year": {}}})
    assert town.cycle().snapshot.pools[0].profile == "mine@1"
    (fault,) = town.store.aside[alarms.PROFILE].values()
    assert fault.text.startswith(
        'its profile mine@2 cannot be used: profile "mine@2": there is no policy "of-last-year"'
    )
    assert fault.text.endswith("; mine@1 decides instead")
    assert LiveStore().load(clock()).pools[0].profile == "mine@1", "a new process finds it in the record"
    ProfileVersion.objects.filter(number=1).update(spec=[])
    assert LiveStore().load(clock()).pools[0].profile == "hybrid"
    alarms.raised(alarms.PROFILE, {"default": fault})
    assert "ProfileUnusable" in {sign["code"] for sign in town.viewer.read("/overview")["attention"]}


def test_a_preview_lives_through_what_finished_beside_what_decides(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu", "count": 1})
    agent.end(job.stages.get())
    Stage.objects.update(started_at=timezone.now() - timedelta(seconds=90))
    made(town)
    answer = town.staff.post("/profiles/mine/versions/1/preview", {"pool": "default", "days": 1})
    assert answer.status_code == 201, answer.content
    body = json.loads(answer.content)
    assert (body["name"], sorted(body["profiles"])) == ("mine@1 beside hybrid", ["hybrid", "mine@1"])
    found = town.staff.read("/profiles/mine")["versions"][0]
    assert (found["preview"], found["preview_phase"]) == (body["id"], "WAITING")
    assert activated(town)[0] == 409, "it has not shown anything yet"
    worker.run(body["id"])
    result = town.staff.read(f"/simulations/{body['id']}")
    assert result["scenario"]["world"] == {"nodes": "1x2:NVIDIA H100 80GB HBM3", "cores": 8}
    assert {row["profile"]: row["figures"]["completed"] for row in result["result"]["summary"]} == {
        "hybrid": 1, "mine@1": 1
    }  # fmt: skip
    assert activated(town)[0] == 200
    for path, told in (({"pool": "nowhere"}, 422), ({"pool": "default", "against": "nothing"}, 422)):
        assert town.staff.post("/profiles/mine/versions/1/preview", path).status_code == told
    assert town.staff.post("/profiles/mine/versions/7/preview", {"pool": "default"}).status_code == 404


def test_people_simulate_own_profiles_by_name(town: Town) -> None:
    made(town)
    asked = {"trace": {"generate": {"jobs": 5}}, "profiles": ["mine@1", "fifo"]}
    answer = town.owner.post("/simulations", asked)
    assert answer.status_code == 201, answer.content
    assert sorted(json.loads(answer.content)["profiles"]) == ["fifo", "mine@1"]
    answer = town.mate.post("/simulations", {**asked, "profiles": ["mine"]})
    assert answer.status_code == 422, "no version of it decides"


def test_the_log_holds_what_decided_and_decides_the_same_again(town: Town, settings: Any, tmp_path: Any) -> None:
    settings.DECISIONS = tmp_path
    made(town)
    activated(town, unseen=True)
    town.staff.post("/pools/default/profile", {"profile": "mine", "shadow_profile": "hybrid"})
    town.machine()
    town.job(devices={"kind": "gpu", "count": 1})
    recorder = Recorder()
    recorder.note(town.cycle(), 0.01, clock())
    (row,) = recorder.flush()
    assert row.profile == "mine@1"
    record = log.find(tmp_path, row.pk)
    assert record is not None
    assert (record.profiles, record.specs) == ({"default": "mine@1"}, {"mine@1": LIFO})
    Profile.objects.all().delete()
    assert replay(record).same, "without the row"
    body = town.staff.read(f"/decisions/{row.pk}")
    assert body["specs"] == {"mine@1": LIFO}
    outcome = shadow.evaluate_shadows(row.pk)
    assert outcome is not None
    assert outcome.by_pool["default"]["profile"] == "hybrid"
    assert set(outcome.by_pool["default"]) >= {"differs", "only_active", "only_other", "elsewhere", "spared", "evicted"}


def test_a_shadow_that_is_gone_is_an_alarm_and_the_others_think_on(town: Town, settings: Any, tmp_path: Any) -> None:
    settings.DECISIONS = tmp_path
    Pool.objects.create(name="lab", shadow_profile="fifo")
    Pool.objects.filter(name="default").update(shadow_profile="of-last-year")
    town.machine()
    town.job()
    recorder = Recorder()
    recorder.note(town.cycle(), 0.01, clock())
    (row,) = recorder.flush()
    outcome = shadow.evaluate_shadows(row.pk)
    assert outcome is not None
    assert list(outcome.by_pool) == ["lab"]
    alarm = Alarm.objects.get(kind=alarms.SHADOW)
    assert (alarm.subject, "There is no profile of-last-year" in alarm.says) == ("default", True)
    assert recorder.shadow_is_due()
    Pool.objects.update(shadow_profile="")
    assert not Recorder().shadow_is_due()
    assert not Alarm.objects.filter(kind=alarms.SHADOW).exists(), "what nobody asks for is not missed"


def test_the_rate_of_kept_promises_is_told_by_pool(town: Town) -> None:
    """One node for which all queue: the second job begins in time, the third is late and waits still."""
    agent = town.agent("a")
    now = clock()
    jobs = [town.submit(cpus=2, expected="10m", time_limit="1h") for _ in range(3)]
    town.cycle(now)
    assert town.viewer.read("/pools/default")["promises"] == {"kept": 0, "told": 0, "rate": None}
    agent.start()
    agent.end(jobs[0].stages.get())
    town.cycle(now + 1)
    agent.start()
    assert promise_rate.by_pool()["default"] == promise_rate.PromiseRate(1, 1)
    third = jobs[2].stages.get()
    Stage.objects.filter(pk=third.pk).update(announced={**third.announced, "high_at": now - 60})
    assert town.viewer.read("/pools/default")["promises"] == {"kept": 1, "told": 2, "rate": 0.5}


@pytest.fixture
def admin(town: Town) -> Client:
    town.user.is_superuser = True
    town.user.save()
    client = Client()
    client.force_login(town.user)
    return client


def test_a_profile_is_made_changed_and_switched_on_in_the_administration(town: Town, admin: Client) -> None:
    answer = admin.post("/admin/pools/profile/add/", {"name": "mine", "copy_of": "hybrid"})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    row = Profile.objects.get()
    assert (row.active, row.versions.get().made_by) == (None, "ada")
    address = f"/admin/pools/profile/{row.pk}/change/"
    assert '"timetable": "repair"' in html.unescape(admin.get(address).content.decode())
    for spec, told in (("{", "Enter a valid JSON"), ('{"policies": {"guess": {}}}', 'there is no policy "guess"')):
        answer = admin.post(address, {"spec": spec})
        assert answer.status_code == 200
        assert told in answer.context["adminform"].form.errors["spec"][0]
    answer = admin.post(address, {"spec": json.dumps(LIFO), "note": "plain", "description": "ours"})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert [(one.number, one.note) for one in row.versions.all()] == [(2, "plain"), (1, "")]
    second = row.versions.get(number=2)
    given = {"spec": json.dumps(LIFO), "active": str(second.pk), "description": "ours"}
    answer = admin.post(address, given)
    assert "It was not previewed" in str(answer.context["adminform"].form.errors["active"])
    assert admin.post(address, {**given, "unseen": "on"}).status_code == 302
    row.refresh_from_db()
    assert (row.active, row.versions.count(), row.description) == (second, 2, "ours")
    town.pool.refresh_from_db()
    assert "mine" in [name for name, _ in PoolForm(instance=town.pool).fields["profile"].choices]
    Pool.objects.update(profile="mine")
    assert admin.post(f"/admin/pools/profile/{row.pk}/delete/", {"post": "yes"}).status_code == 403
    Pool.objects.update(profile="hybrid")
    assert admin.post(f"/admin/pools/profile/{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Profile.objects.exists()


def test_a_list_of_many_profiles_costs_no_more_queries_than_one_of_few(town: Town) -> None:
    """The page asks for it again and again, and versions are large."""
    with CaptureQueriesContext(connection) as few:
        town.viewer.read("/profiles")
    for number in range(5):
        made(town, f"mine-{number}")
        town.staff.post(f"/profiles/mine-{number}/versions", {"spec": LIFO})
    activated(town, "mine-3", version=2, unseen=True)
    with CaptureQueriesContext(connection) as many:
        body = town.viewer.read("/profiles")
    assert [(one["active"], one["newest"]) for one in body["results"][-5:]] == [(None, 2)] * 3 + [(2, 2), (None, 2)]
    assert len(many) == len(few)
    assert not any('"spec"' in query["sql"] for query in many)


def test_the_pages_show_pools_profiles_and_what_changed_between_versions(town: Town, admin: Client) -> None:
    made(town, note="<b>first</b>")
    town.staff.post("/profiles/mine/versions", {"spec": {**LIFO, "depth": 7, "policies": {"pack": {"weight": 2}}}})
    Pool.objects.update(shadow_profile="fifo")
    text = html.unescape(admin.get("/profiles").content.decode())
    assert "New profile…" in text
    assert "it has not thought yet" in text
    for name in PROFILES:
        assert admin.get(f"/profiles/{name}").status_code == 200
    made(town, "bare", spec={})
    assert admin.get("/profiles/bare").status_code == 200
    page = admin.get("/profiles/mine").content.decode()
    assert "&lt;b&gt;first" in page
    for line in ("+ depth 7", "+ policies.pack.weight 2", "- policies.fifo.strict", "- policies.gang"):
        assert line in page
    assert admin.get("/profiles/nothing").status_code == 404
    client = Client()
    client.force_login(town.viewer.user)
    for path in ("/profiles", "/profiles/mine"):
        seen = client.get(path).content.decode()
        assert "data-call" not in seen
