"""A job's state, how long it is in it, and its file: told alike by pages, lists, REST and ``yard``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import yaml
from django.db import connection
from django.utils import timezone

from agents.protocol import Phase
from controlplane.accounts import service as access
from controlplane.jobs.models import Attempt, Job, Stage
from switchyard.cli.main import main
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text
from tests.record.yard import stage

Yard = Callable[..., str]


@pytest.fixture
def yard(town: Town, live_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Yard:
    """Runs the command as the owner against this server; returns what it printed."""
    assert town.owner.user is not None
    _, secret = access.make_token(town.owner.user, "cli", scopes=access.SCOPES)
    monkeypatch.setenv("YARD_URL", live_server.url)
    monkeypatch.setenv("YARD_TOKEN", secret)

    def run(*words: str) -> str:
        code = main(list(words))
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


def test_a_paused_job_says_so_everywhere(town: Town, yard: Yard) -> None:
    agent = town.machine()
    job = town.running(agent, name="paused-one", cpus=2)
    attempt = Attempt.objects.get()
    assert town.owner.post(f"/attempts/{attempt.id}/adjust", {"suspended": True}).status_code == 200
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "SUSPENDED"
    assert [j["number"] for j in town.owner.read("/jobs?state=SUSPENDED")["results"]] == [job.number]
    assert town.owner.read("/jobs?state=RUNNING")["results"] == []
    assert town.owner.read("/overview")["counts"]["jobs"] == {"SUSPENDED": 1}
    client = browser(town.owner)
    page = text(client, f"/jobs/{job.number}")
    assert set(re.findall(r"</svg>([A-Z]{4,})</span>", page)) == {"SUSPENDED"}, "a badge tells another state"
    page = text(client, f"/jobs/{job.number}/timeline")
    bars = json.loads(re.search(r'id="chart-attempts" type="application/json">(.*?)</script>', page)[1])  # type: ignore[index]
    assert [bar["s"] for bar in bars["items"] if bar["to"] is None] == ["SUSPENDED"]
    listed = text(client, "/jobs")
    assert "SUSPENDED" in re.search(r"<tbody>.*</tbody>", listed, re.DOTALL)[0]  # type: ignore[index]
    assert '<option value="SUSPENDED"' in listed or ">SUSPENDED</option>" in listed
    assert "\tSUSPENDED\t" in yard("ps")
    told = yard("show", str(job.number))
    assert "SUSPENDED" in told
    assert "RUNNING" not in told
    assert town.owner.post(f"/attempts/{attempt.id}/adjust", {"suspended": False}).status_code == 200
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "RUNNING"


def test_a_job_runs_as_long_as_one_of_its_stages_does(town: Town) -> None:
    agent = town.machine()
    stages = [{"name": name, "run": "true", "cpus": 1} for name in ("one", "two")]
    job = town.running(agent, stages=stages)
    first = Attempt.objects.get(stage__name="one")
    assert town.owner.post(f"/attempts/{first.id}/adjust", {"suspended": True}).status_code == 200
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "RUNNING"
    agent.end(stage(job, "two"))
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "SUSPENDED"


def test_show_counts_each_state_from_when_it_began(town: Town, yard: Yard) -> None:
    """A stage that ran for two days and was told to stop just now is not STOPPING for two days."""
    agent = town.machine()
    job = town.running(agent, cpus=1)
    long_ago = timezone.now() - timedelta(days=2)
    Stage.objects.update(started_at=long_ago, state_at=long_ago)
    Attempt.objects.update(started_at=long_ago)
    assert "RUNNING  for 2d00h" in yard("show", str(job.number))
    assert town.owner.post(f"/jobs/{job.number}/cancel").status_code == 200
    assert re.search(r"STOPPING  for [0-9]s", yard("show", str(job.number)))
    assert re.search(r"· so for <time datetime=.* data-t=.running.", text(browser(town.owner), f"/jobs/{job.number}"))
    agent.set(stage(job), Phase.ENDED)
    assert "COMPLETED  for 2d00h" in yard("show", str(job.number))


def test_a_job_file_keeps_its_order(town: Town) -> None:
    """By page, REST and clone. PostgreSQL's jsonb would put the shortest keys first."""
    written = """\
time_limit: 2h
name: ordered
env:
  ZEBRA: '1'
  A: '2'
stages:
- run: python train.py
  name: train
  cpus: 2
- run: python evaluate.py
  needs:
  - train
  name: evaluate
"""
    town.machine()
    answer = town.owner.post("/jobs", written, kind="application/yaml")
    assert answer.status_code == 201, answer.content
    number = json.loads(answer.content)["number"]
    spec = town.owner.read(f"/jobs/{number}/spec")["spec"]
    assert yaml.safe_dump(spec, sort_keys=False) == written
    client = browser(town.owner)
    page = text(client, f"/jobs/{number}/spec")
    shown = re.search(r'id="job-spec"[^>]*>(.*?)</pre>', page, re.DOTALL)[1]  # type: ignore[index]
    assert shown.replace("&#x27;", "'") == written
    clone = text(client, f"/jobs/new?from={number}")
    assert list(json.loads(re.search(r'type="application/json">(\{"spec".*?)</script>', clone)[1])["spec"]) == [  # type: ignore[index]
        "time_limit", "name", "env", "stages",
    ]  # fmt: skip


def test_an_older_record_learns_since_when_its_stages_are_in_their_states(town: Town) -> None:
    """What the migration does to rows that were written before a stage knew the time of its state."""
    migration = import_module("controlplane.jobs.migrations.0012_state_at")
    agent = town.machine()
    job = town.running(agent, cpus=2)
    attempt = Attempt.objects.get()
    assert town.owner.post(f"/attempts/{attempt.id}/adjust", {"suspended": True}).status_code == 200
    waiting = town.job(hold=True)
    Stage.objects.update(state_at=None)
    Job.objects.filter(pk=job.pk).update(state="RUNNING")
    with connection.cursor() as cursor:
        cursor.execute(migration.SINCE)
        cursor.execute(migration.PAUSED)
    assert town.owner.read(f"/jobs/{job.number}")["state"] == "SUSPENDED"
    assert town.owner.read(f"/jobs/{waiting.number}")["state"] == "HELD"
    assert stage(job).state_at is None, "since when it is paused was not written down"
    assert town.owner.post(f"/attempts/{attempt.id}/adjust", {"suspended": False}).status_code == 200
    Stage.objects.update(state_at=None)
    with connection.cursor() as cursor:
        cursor.execute(migration.SINCE)
    attempt.refresh_from_db()
    assert stage(job).state_at == attempt.started_at
