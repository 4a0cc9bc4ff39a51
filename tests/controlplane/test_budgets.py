"""Budgets of device-hours: who sets and sees them, what counts, what they hold back and stop, and who is told."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.utils import timezone

from controlplane.fleet.models import Device
from controlplane.jobs.models import Event, Stage
from controlplane.notifications import budget_mail, webhook_delivery
from controlplane.notifications.models import WebhookDelivery
from controlplane.pools.models import Budget
from controlplane.usage import budgets, ledger
from controlplane.usage.models import LedgerDay
from controlplane.usage.tasks import count
from tests.controlplane.people import Town
from tests.controlplane.test_usage import past

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
GPU = {"kind": "gpu", "count": 2}


def used_up(town: Town, **fields: Any) -> Budget:
    """A budget of the owner's project of which a worker has counted that all is used."""
    until = datetime.now(UTC) + timedelta(days=3)
    given = {"kind": "gpu", "hours": 10, "at_end": "hold", "used_hours": 12.5, "until_at": until, **fields}
    return Budget.objects.create(project=town.project, **given)


def test_accountants_set_budgets_and_projects_see_their_own(town: Town) -> None:
    for person in (town.owner, town.lead):
        assert person.post("/budgets", {"project": "default", "hours": 1}).status_code == 403
    wrong = town.staff.post("/budgets", {"project": "nowhere", "hours": 5}).json()["errors"][0]
    assert (wrong["pointer"], "nowhere" in wrong["detail"], "default, other" in wrong["detail"]) == (
        "/project",
        True,
        True,
    )
    answer = town.staff.post("/budgets", {"project": "default", "hours": 5})
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["kind"], made["period"], made["at_end"], made["used_hours"]) == ("", "month", "notify", 0.0)
    assert town.staff.post("/budgets", {"project": "default", "hours": 6}).status_code in {400, 409}, "one of a sort"
    days = {"first_day": "2026-01-01", "last_day": "2026-06-30"}
    for wrong in (
        {"hours": -1}, {"hours": "many"}, {"hours": 1, "kind": "tpux"}, {"hours": 1, "period": "week"},
        {"hours": 1, "at_end": "kill"}, {"hours": 1, **days}, {"hours": 1, "period": "dates"},
        {"hours": 1, "period": "dates", "first_day": "2026-02-01", "last_day": "2026-01-01"},
        {"hours": 1, "period": "dates", "first_day": "2026-02-01", "last_day": "2996-01-01"},
        {"hours": 1, "used_hours": 0}, {},
    ):  # fmt: skip
        assert town.staff.post("/budgets", {"project": "default", **wrong}).status_code == 400, wrong
    dated = town.staff.post("/budgets", {"project": "other", "hours": 1, "period": "dates", **days}).json()
    assert (dated["first_day"], dated["last_day"], dated["hours_per_day"]) == (*days.values(), None)
    seen = {
        name: [one["number"] for one in getattr(town, name).read("/budgets")["results"]]
        for name in ("owner", "viewer", "stranger", "staff")
    }
    mine, theirs = [made["number"]], [dated["number"]]
    assert seen == {"owner": mine, "viewer": mine, "stranger": theirs, "staff": mine + theirs}
    path = f"/budgets/{made['number']}"
    assert town.stranger.get(path).status_code == 404
    assert town.staff.patch(path, {"hours": 8}).status_code == 428
    etag = town.staff.get(path)["ETag"]
    assert town.staff.patch(path, {"hours": 8}, **{"if-match": etag}).json()["hours"] == 8
    assert town.staff.patch(path, {"hours": 9}, **{"if-match": etag}).status_code == 412


@pytest.mark.parametrize(
    ("period", "today", "days"),
    [
        ("month", date(2026, 2, 28), (date(2026, 2, 1), date(2026, 2, 28))),
        ("month", date(2026, 12, 31), (date(2026, 12, 1), date(2026, 12, 31))),
        ("quarter", date(2026, 11, 26), (date(2026, 10, 1), date(2026, 12, 31))),
        ("quarter", date(2026, 1, 1), (date(2026, 1, 1), date(2026, 3, 31))),
    ],
)
def test_a_period_is_a_whole_month_or_quarter(period: str, today: date, days: tuple[date, date]) -> None:
    assert budgets.period_of(Budget(period=period), today) == days


def test_used_is_the_ledger_and_what_runs_and_the_forecast_goes_on_at_the_mean_of_the_last_days(town: Town) -> None:
    town.machine()
    first, second = Device.objects.filter(kind="gpu")
    past(town, [(first, 1000)], NOW - 48 * HOUR, NOW - 38 * HOUR)
    past(town, [(second, 500)], NOW - 4 * HOUR, None)
    Device.objects.filter(pk=second.pk).update(claimed_milli=500)
    ledger.refresh(NOW - HOUR)
    assert LedgerDay.objects.filter(built_at=NOW - HOUR).exists()
    mine = {"project": town.project, "hours": 20}
    gpus = Budget.objects.create(kind="gpu", **mine)
    rows = [
        gpus,
        Budget.objects.create(kind="", **{**mine, "hours": 12}),
        Budget.objects.create(kind="cpu", **mine),
        Budget.objects.create(kind="gpu", normalised=True, **mine),
        Budget.objects.create(
            kind="gpu", period="dates", first_day=date(2026, 11, 26), last_day=date(2026, 11, 26), **mine
        ),
    ]
    found = budgets.count(rows, NOW)
    assert [round(found[one.pk].used_hours, 3) for one in rows[:3]] == [12.0, 12.0, 0.0]
    assert found[rows[3].pk].used_hours > 0
    assert round(found[rows[4].pk].used_hours, 3) == 2.0, "only what was used on its day"
    one = found[gpus.pk]
    # In 2.5 days since the first with use, 12 hours; the month has 4.5 more.
    assert (round(one.hours_per_day or 0, 3), round(one.forecast_hours, 3)) == (4.8, 33.6)
    assert one.ends_at is not None
    assert abs(one.ends_at - (NOW + timedelta(days=8 / 4.8))) < timedelta(seconds=1)
    assert found[rows[1].pk].ends_at == NOW, "it is used up"
    assert found[rows[2].pk].ends_at is None


def test_a_used_up_budget_holds_what_asks_for_its_devices_and_says_until_when(town: Town) -> None:
    town.machine()
    budget = used_up(town)
    gpu, cpu = town.job(devices=GPU), town.job()
    town.cycle()
    assert Stage.objects.get(job=cpu).state == "STARTING", "it asks for none of them"
    (reason, *_rest) = Stage.objects.get(job=gpu).reasons
    assert (reason["code"], reason["acts"]) == ("Budget", "admin")
    assert reason["params"]["number"] == budget.pk
    said = "project default has used 12.5 of the 10 gpu-hours of budget"
    assert said in json.dumps(town.owner.read(f"/jobs/{gpu.number}/why"))
    assert town.staff.patch(f"/budgets/{budget.pk}", {"at_end": "notify"}, **{"if-match": "*"}).status_code == 200
    town.cycle()
    assert Stage.objects.get(job=gpu).state == "STARTING"


@pytest.mark.parametrize(
    "fields",
    [{"at_end": "notify"}, {"hours": 13}, {"until_at": datetime(2026, 1, 1, tzinfo=UTC)}, {"kind": "npu"}],
    ids=["only told", "not used up", "its period is over", "of other devices"],
)
def test_what_is_no_used_up_budget_of_these_devices_holds_nothing(town: Town, fields: dict[str, Any]) -> None:
    town.machine()
    used_up(town, **fields)
    job = town.job(devices=GPU)
    town.cycle()
    assert Stage.objects.get(job=job).state == "STARTING"


def test_a_budget_that_stops_asks_what_it_pays_for_to_save_and_to_wait_again(town: Town) -> None:
    machine = town.machine()
    gpu, cpu = town.running(machine, devices=GPU), town.running(machine)
    budget = Budget.objects.create(project=town.project, kind="gpu", hours=0, at_end="hold")
    budgets.refresh([budget])
    assert Stage.objects.get(job=gpu).state == "RUNNING", "a budget that holds lets it finish"
    Budget.objects.update(at_end="stop")
    count()
    budgets.refresh(Budget.objects.all())
    assert [Stage.objects.get(job=job).state for job in (gpu, cpu)] == ["STOPPING", "RUNNING"]
    (event,) = Event.objects.filter(job=gpu, kind="stop")
    assert f"budget {budget.pk} of project default is used up" in event.text
    machine.end(Stage.objects.get(job=gpu), code=143)
    town.cycle()
    stage = Stage.objects.get(job=gpu)
    assert (stage.state, stage.failures, stage.reasons[0]["code"]) == ("PENDING", 0, "Budget")


def test_leads_are_told_once_at_each_level_and_again_after_it_was_raised(town: Town, settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    for person in (town.lead, town.owner, town.stranger):
        assert person.user is not None
        address = f"{person.user.username}@example.org"
        EmailAddress.objects.create(user=person.user, email=address, verified=True, primary=True)
    budget = used_up(town, used_hours=7.9)
    assert budget_mail.send() == 0
    for used, sent in ((8.0, 1), (9.5, 0), (10.0, 1), (11.0, 0)):
        Budget.objects.update(used_hours=used)
        assert (budget_mail.send(), used) == (sent, used)
    assert [message.to for message in mail.outbox] == [["lead@example.org"]] * 2
    assert f"Project default has used 100 % of budget {budget.pk}" in mail.outbox[1].subject
    assert "nothing more starts" in mail.outbox[1].body
    budgets.refresh([budget])
    assert Budget.objects.get().told == 0, "nothing is used: what was told is forgotten"


def test_webhooks_that_ask_for_it_are_told_once_of_each_level_with_or_without_mail(town: Town, settings: Any) -> None:
    settings.EMAIL_HOST = ""
    for name, asks, project in (("yes", True, "default"), ("no", False, "default"), ("others", True, "other")):
        body = {"url": "https://example.org/hook", "budgets": asks}
        person = town.lead if project == "default" else town.stranger
        path = f"/api/v1/projects/{project}/webhooks/{name}"
        assert person.client.put(path, json.dumps(body), content_type="application/json").status_code == 201
    used_up(town, used_hours=8.0, until_at=timezone.now() + timedelta(days=1))
    for used in (8.0, 9.0, 10.0, 11.0):
        Budget.objects.update(used_hours=used)
        budget_mail.send()
        Budget.objects.filter(told=80).update(told=0)  # as after a mail server that took nothing
        budget_mail.send()
    told = list(WebhookDelivery.objects.order_by("id"))
    assert [(one.webhook.name, one.data["level"]) for one in told] == [("yes", 80), ("yes", 100)]
    assert webhook_delivery.type_of(told[0].data) == "switchyard.budget.reached"
