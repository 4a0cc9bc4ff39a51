"""What pages say in numbers: who needs somebody, what is overdue, how many of which kind, and how much of a list."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from controlplane.jobs.models import Attempt, Checkpoint, Decision, Event, Job, Stage
from controlplane.pools.models import Quota
from controlplane.queries.attention import CURES, FORMS
from scheduler.core.model.reasons import RANK
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, every_tab, text
from tests.record.yard import cpu, gpu

CHINESE = {"Accept-Language": "zh-CN"}


def chart(page: str, name: str) -> Any:
    """What a chart of the page draws."""
    return json.loads(re.search(rf'id="{name}" type="application/json">(.*?)</script>', page)[1])  # type: ignore[index]


def attention(page: str) -> str:
    """The list of what needs somebody."""
    return re.search(r"(Needs attention|需要关注)</h2>(.*?)</section>", page, re.DOTALL)[2]  # type: ignore[index]


def test_a_job_that_a_hard_quota_blocks_for_ever_wants_a_person(town: Town) -> None:
    """Beside it stood "Nothing wants a person now"."""
    town.machine()
    job = town.job(name="greedy", devices={"kind": "gpu", "count": 2})
    town.cycle()
    assert "Nothing wants a person now" in attention(text(browser(town.owner), "/"))
    Quota.objects.create(project=town.project, kind="gpu", nominal=1, borrowing_limit=0)
    town.agent("n2", cpu("n2"), gpu("n2"))
    job = town.job(name="blocked", devices={"kind": "gpu", "count": 2})
    town.cycle()
    stage = Stage.objects.get(job=job)
    assert stage.reasons[0]["code"] == "ExceedsQuotaMax"
    cache.clear()  # what a transaction has not committed makes no snapshot old
    told = attention(text(browser(town.owner), "/"))
    assert f"main of #{job.number} will never start as things are" in told
    assert "the hard limit of project default is 1" in told
    assert "ask for less, or have the hard limit of the project raised" in told
    chinese = attention(text(browser(town.owner), "/", **CHINESE))
    assert f"#{job.number}" in chinese
    assert "提高项目的硬性上限" in chinese
    assert "will never start" not in chinese
    assert f"#{job.number}" not in attention(text(browser(town.stranger), "/"))


@pytest.mark.parametrize("code", sorted(CURES))
def test_what_only_a_deed_starts_is_listed_with_the_deed(town: Town, code: str) -> None:
    assert code in RANK
    town.machine()
    job = town.job()
    passes = {"code": "DependencyPending", "params": {"stages": "x"}, "text": "waits for x", "acts": "nobody"}
    Stage.objects.update(reasons=[passes, {"code": code, "params": {}, "text": "as it is", "acts": "user"}])
    (sign,) = town.owner.read("/overview")["attention"]
    assert (sign["code"], sign["params"]["reason"], sign["href"]) == ("NeverStarts", code, f"/jobs/{job.number}")
    assert sign["detail"].endswith(CURES[code])
    (chinese,) = json.loads(town.owner.get("/overview", **CHINESE).content)["attention"]
    assert CURES[code] not in chinese["detail"]


def test_what_was_held_and_forgotten_is_listed(town: Town) -> None:
    town.machine()
    job = town.job(hold=True)
    assert town.owner.read("/overview")["attention"] == []
    Stage.objects.update(state_at=timezone.now() - timedelta(days=3, hours=1))
    (sign,) = town.owner.read("/overview")["attention"]
    assert sign["title"] == f"main of #{job.number} has been on hold for 3 d 1 h"
    assert sign["detail"] == "held by owner; release it, or cancel it"
    assert sign["level"] in {form.level for form in FORMS.values()}


def test_a_list_that_shows_some_says_of_how_many(town: Town) -> None:
    town.machine()
    for _ in range(20):
        town.job()
    Stage.objects.update(reasons=[{"code": "InvalidSpec", "params": {}, "text": "x", "acts": "user"}])
    told = town.owner.read("/overview")
    assert (len(told["attention"]), told["attention_count"]) == (3, 20)
    page = text(browser(town.owner), "/")
    assert "showing 3 of 20" in page
    assert "共 20" in text(browser(town.owner), "/", **CHINESE)


def test_a_stage_that_is_overdue_is_drawn_beyond_now_and_says_since_when(town: Town) -> None:
    job = town.running(town.machine(), cpus=1)
    began = timezone.now() - timedelta(hours=2)
    estimate = {"p50_s": 600.0, "p90_s": 1200.0, "basis": "declared limits", "speed": 1.0}
    Attempt.objects.update(started_at=began, created_at=began, estimate=estimate)
    Stage.objects.update(started_at=began)
    page = text(browser(town.owner), f"/jobs/{job.number}/timeline")
    bars = chart(page, "chart-attempts")["items"]
    runs, late = bars[-2:]
    assert (runs["s"], late["s"]) == ("RUNNING", "OVERDUE")
    assert runs["to"] == late["from"] == (began + timedelta(minutes=20)).replace(microsecond=0).isoformat()
    assert late["to"] > timezone.now().isoformat()
    since = (began + timedelta(minutes=20)).strftime("%m-%d %H:%M")
    assert f"overdue since {since} UTC" in late["tip"]
    tip = chart(text(browser(town.owner), f"/jobs/{job.number}/timeline", **CHINESE), "chart-attempts")["items"][-1][
        "tip"
    ]
    assert f"自 {since} UTC 起已超出预计" in tip


def test_devices_are_counted_by_kind(town: Town) -> None:
    """Three nodes of eight GPUs are 24 GPUs, not 27 devices."""
    for name in ("n1", "n2", "n3"):
        town.agent(name, cpu(name, cores=8), *(gpu(name, index) for index in range(8)))
    client = browser(town.owner)
    timeline = text(client, "/timeline")
    assert "24 GPUs, 3 CPUs" in timeline
    assert "27" not in re.search(r'<div class="y-head">.*?<div class="end">', timeline, re.DOTALL)[0]  # type: ignore[index]
    assert "24 个 GPU，3 个 CPU" in text(client, "/timeline", **CHINESE)
    assert "8 GPUs, 1 CPU<" in text(client, "/nodes/n1")
    job = town.job(devices={"kind": "gpu", "count": 2})
    town.cycle()
    page = text(client, f"/jobs/{job.number}")
    assert "Stops main on 2 GPUs; it has no checkpoint." in page
    assert "held now: 2 GPUs, 1 CPU<" in text(client, "/timeline")
    assert "当前占用：2 个 GPU，1 个 CPU<" in text(client, "/timeline", **CHINESE)


def test_a_decision_tells_every_reason_the_commonest_first_and_walks_to_each(town: Town) -> None:
    """jsonb keeps the shortest names first, so "the first three" hid the reason of nearly all."""
    waits = {"CapacityInsufficient": 310, "Held": 1, "UserLimit": 2, "BeginTime": 3, "ReservedForHigher": 40}
    row = Decision.objects.create(
        at=timezone.now(), profile="hybrid", duration_ms=1.0, waiting=356, waits=waits,
        head={"stage": "#1/main", "code": "CapacityInsufficient"},
    )  # fmt: skip
    Decision.objects.create(at=timezone.now(), profile="hybrid", duration_ms=1.0, waiting=1, waits={"Held": 1})
    (_, told) = town.owner.read("/decisions")["results"]
    assert list(told["waits"]) == ["CapacityInsufficient", "ReservedForHigher", "BeginTime", "UserLimit", "Held"]
    client = browser(town.owner)
    listed = re.search(rf'<tr id="decision-{row.pk}">.*?</tr>', text(client, "/decisions"), re.DOTALL)
    assert listed is not None
    for page in (listed[0], text(client, f"/decisions/{row.pk}")):
        plain = re.sub(r"<[^>]+>", "", page).replace("&nbsp;", " ")
        at = [plain.index(f"{count} × {code}") for code, count in told["waits"].items()]
        assert at == sorted(at), "every reason, the commonest first"
        assert f'href="/decisions/{row.pk}?code=CapacityInsufficient#waited"' in page
    found = town.owner.read("/decisions?code=ReservedForHigher")["results"]
    assert [one["id"] for one in found] == [row.pk]
    assert "No decision matches" in text(browser(town.owner), "/decisions?code=Fragmented")


def test_every_list_of_a_job_walks_or_says_how_much_there_is(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    job = town.job(stages=[{"name": f"s{i}", "run": "true"} for i in range(2)])
    at = job.submitted_at
    stages = list(job.stages.all())
    many = [
        Attempt(stage=stage, number=number, created_at=at, ended_at=at) for stage in stages for number in range(1, 301)
    ]
    Attempt.objects.bulk_create(many)
    points = [Checkpoint(stage=stages[0], attempt=many[0], step=step, path="/x", at=at) for step in range(620)]
    Checkpoint.objects.bulk_create(points)
    Event.objects.bulk_create(
        Event(job=job, seq=seq, at=at, kind="told", actor="engine", text=f"fact {seq}") for seq in range(2, 1235)
    )
    Job.objects.update(event_seq=1234)

    def walked(path: str) -> list[Any]:
        found: list[Any] = []
        following: str | None = path
        while following:
            answer = town.owner.read(following)
            found += answer["results"]
            following = answer["next"] and answer["next"].removeprefix("/api/v1")
        return found

    attempts = walked(f"/jobs/{job.number}/attempts")
    assert [(a["stage"], a["number"]) for a in attempts] == [(s, n) for s in ("s0", "s1") for n in range(1, 301)]
    assert [p["step"] for p in walked(f"/jobs/{job.number}/checkpoints?limit=500")] == list(range(619, -1, -1))
    assert [e["seq"] for e in walked(f"/jobs/{job.number}/events?sort=-seq")] == list(range(1234, 0, -1))
    assert town.owner.get(f"/jobs/{job.number}/events?sort=at").status_code == 400
    client = browser(town.owner)
    page = every_tab(client, job.number)
    for told in ("showing 8 of 600", "showing 12 of 620", "showing 100 of 1,234"):
        assert told in page
    older = re.search(r'href="(\?events=[^"]+)">Older', page)[1].replace("&amp;", "&")  # type: ignore[index]
    assert "fact 1134<" in text(client, f"/jobs/{job.number}/timeline{older}")
    assert "showing 500 of 620" in text(client, f"/jobs/{job.number}/checkpoints?all=checkpoints")
    assert "共 1,234" in text(client, f"/jobs/{job.number}/timeline", **CHINESE)
    Attempt.objects.all().delete()  # no agent ever ran these


def test_nodes_beyond_a_page_are_walked(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.pages.nodes.PER_PAGE", 2)
    for name in ("n1", "n2", "n10"):
        town.agent(name, cpu(name))
    client = browser(town.owner)
    first = text(client, "/nodes")
    following = re.search(r'href="(\?cursor=[^"]+)">Next', first)[1]  # type: ignore[index]
    second = text(client, f"/nodes{following}")
    named = [re.findall(r'class="l1" href="/nodes/([^"]+)"', page) for page in (first, second)]
    assert named == [["n1", "n2"], ["n10"]]
    assert ">Previous</a>" in second


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "-1", "x", "0", ""])
def test_a_page_of_the_timeline_that_there_is_not_is_one_that_there_is(town: Town, number: str) -> None:
    town.machine()
    assert browser(town.owner).get("/timeline", {"page": number}).status_code == 200
