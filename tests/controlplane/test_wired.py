"""What is shown is wired: shadow profiles, cordons, invariants, alarms, problem documents."""

from __future__ import annotations

import json
from io import StringIO

import msgspec
import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from controlplane.clauses import verbatim
from controlplane.fleet import alarms, service
from controlplane.fleet.models import Alarm, Device, Heartbeat
from controlplane.jobs.models import Job
from controlplane.operations import watch
from controlplane.pools.admin import PoolForm
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import Health
from scheduler.profiles import PROFILES
from tests.controlplane.people import Town
from tests.record.yard import states


@pytest.fixture
def admin(town: Town) -> Client:
    town.user.is_superuser = True
    town.user.save()
    client = Client()
    client.force_login(town.user)
    return client


def test_the_shadow_profile_of_a_pool_is_set_in_the_administration_among_those_there_are(
    town: Town, admin: Client
) -> None:
    address = f"/admin/pools/pool/{town.pool.pk}/change/"
    form = PoolForm(instance=town.pool)
    fields = {name: value for name in form.fields if (value := form[name].value()) is not None and value is not False}
    assert [name for name, _ in form.fields["shadow_profile"].choices] == ["", *PROFILES]
    assert admin.post(address, {**fields, "shadow_profile": "nonsense"}).status_code == 200
    assert Pool.objects.get().shadow_profile == ""
    answer = admin.post(address, {**fields, "shadow_profile": "fifo"})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert Pool.objects.get().shadow_profile == "fifo"
    assert town.stranger.read("/pools/default")["shadow_profile"] == "fifo"


def test_a_cordoned_device_gets_nothing_new_whatever_its_agent_reports(town: Town) -> None:
    agent = town.machine()
    path = "/devices/GPU-n1-0/cordon"
    assert town.owner.post(path, {"reason": "x"}).status_code == 403
    assert town.staff.post(path, {"reason": " "}).status_code == 409
    assert town.staff.post("/devices/GPU-none/cordon", {"reason": "x"}).status_code == 404
    answer = town.staff.post(path, {"reason": "double-bit errors"})
    assert (answer.status_code, answer.json()["health"]) == (200, "CORDONED")
    agent.report()
    device = Device.objects.get(uuid="GPU-n1-0")
    assert (device.health, device.health_reason) == (Health.CORDONED, "double-bit errors (ada)")
    job = town.job(devices={"kind": "gpu", "count": 2})
    town.cycle()
    assert states(job)["main"] == "PENDING"
    assert town.staff.post("/devices/GPU-n1-0/uncordon", {}).status_code == 200
    assert town.staff.post("/devices/GPU-n1-0/uncordon", {}).status_code == 409
    agent.report()
    town.cycle()
    assert states(job)["main"] == "STARTING"


def test_a_device_put_back_in_service_is_as_well_as_its_agent_says(town: Town) -> None:
    agent = town.machine()
    service.cordon(Device.objects.get(uuid="GPU-n1-0"), "ada", "hot")
    agent.devices[1] = msgspec.structs.replace(agent.devices[1], health="UNHEALTHY", health_reason="Xid 79")
    agent.report()
    service.uncordon(Device.objects.get(uuid="GPU-n1-0"), "ada")
    agent.node.refresh_from_db()
    assert agent.node.inventory_hash == ""
    agent.report()
    assert Device.objects.get(uuid="GPU-n1-0").health == Health.UNHEALTHY


def test_devices_are_cordoned_in_the_administration(town: Town, admin: Client) -> None:
    town.machine()
    device = Device.objects.get(uuid="GPU-n1-1")
    for action, health in (("cordon", "CORDONED"), ("uncordon", "OK")):
        admin.post("/admin/fleet/device/", {"action": action, "_selected_action": [str(device.pk)]})
        device.refresh_from_db()
        assert device.health == health


def test_a_broken_invariant_is_an_alarm_for_staff_until_it_holds_again(town: Town, admin: Client) -> None:
    job = town.running(town.machine())
    assert call_command("check_invariants", stdout=StringIO()) is None
    Job.objects.filter(pk=job.pk).update(event_seq=99)
    try:
        watch.check()
        told = Alarm.objects.get(kind=alarms.INVARIANT)
        assert told.subject == "I12"
        assert f"#{job.number}" in told.says
        signs = {sign["code"] for sign in town.staff.read("/overview")["attention"]}
        assert "InvariantBroken" in signs
        assert "InvariantBroken" not in {sign["code"] for sign in town.owner.read("/overview")["attention"]}
        assert b"I12" in admin.get("/").content
        out = StringIO()
        with pytest.raises(SystemExit) as end:
            call_command("check_invariants", stdout=out)
        assert end.value.code == 1
        assert "I12" in out.getvalue()
    finally:
        job.refresh_from_db()
        Job.objects.filter(pk=job.pk).update(event_seq=job.events.count())
    Heartbeat.objects.all().delete()
    watch.check()
    assert not Alarm.objects.exists()


def test_an_invariant_that_takes_too_long_is_given_up_and_said(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.operations import invariants

    slow = invariants.Invariant("I0", "sleeps", "SELECT pg_sleep(30)::text")
    monkeypatch.setattr(invariants, "INVARIANTS", (slow,))
    monkeypatch.setattr(invariants, "PATIENCE_S", 1)
    found = invariants.check()
    assert found.broken == {}
    assert found.unchecked[0].startswith("I0: ")
    monkeypatch.undo()
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone()[0] == "30s"


def test_what_is_wrong_with_a_node_stands_on_its_page_in_the_list_and_on_the_overview(
    town: Town, admin: Client
) -> None:
    town.machine()
    says = "inventory refused: device gpu-3 memory_bytes is 9223372036854775807; at most 2^50"
    alarms.raised(alarms.INVENTORY, {"n1": verbatim(says)})
    alarms.raised(alarms.STAGE, {"#12 main": verbatim("KeyError: 'x'")})
    assert town.stranger.read("/nodes/n1")["alarms"] == [says]
    assert says in admin.get("/nodes/n1").content.decode()
    assert says in admin.get("/").content.decode()
    codes = [sign["code"] for sign in town.stranger.read("/overview")["attention"]]
    assert "InventoryRefused" in codes
    assert "StageSetAside" not in codes
    assert "StageSetAside" in [sign["code"] for sign in town.staff.read("/overview")["attention"]]
    alarms.raised(alarms.INVENTORY, {}, about="n1")
    assert town.stranger.read("/nodes/n1")["alarms"] == []


def test_an_alarm_counts_how_often_it_was_found_and_keeps_what_can_be_stored(town: Town) -> None:
    for _ in range(3):
        alarms.raised(alarms.POOL, {"p\x00q": verbatim("a\x00b\ud800" + "x" * 900)})
    told = Alarm.objects.get()
    assert told.times == 3
    assert len(told.says) == 500
    assert "\x00" not in told.says + told.subject
    alarms.raised(alarms.INVENTORY, {"gone": verbatim("x")})
    alarms.forget_old()
    assert not Alarm.objects.filter(kind=alarms.INVENTORY).exists()
    alarms.raised(alarms.POOL, {f"p{i}": verbatim("x") for i in range(1_000)})
    assert Alarm.objects.count() == alarms.MOST


def test_a_problem_document_names_no_page_that_is_not_there(town: Town) -> None:
    problem = json.loads(town.owner.get("/jobs/999").content)
    assert problem.get("type", "about:blank") == "about:blank"
    assert (problem["code"], problem["title"]) == ("not_found", "Not Found")
