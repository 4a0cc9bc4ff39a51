"""The value of a secret variable reaches the agent and nobody else, wherever a job is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from controlplane.accounts import service
from controlplane.accounts.models import User
from controlplane.api.urls import urlpatterns
from controlplane.jobs import masked
from controlplane.jobs.models import Decision, Job, Stage
from controlplane.scheduling import recorder as recording
from controlplane.scheduling.recorder import Recorder
from scheduler.decisions import log
from tests.controlplane.people import Person, Town
from tests.controlplane.test_pages import every_tab
from tests.record.yard import Yard, cpu

TOLD, MARKED, OF_A_DEVICE, A_NUMBER = "told-by-its-name", "marked-by-the-file", "of-one-alternative", 9876543210123
SECRETS = (TOLD, MARKED, OF_A_DEVICE, str(A_NUMBER))
ASKED: dict[str, Any] = {
    "env": {"HF_TOKEN": TOLD, "LOUD": "everybody-may-read", "EMPTY_TOKEN": ""},
    "stages": [
        {"name": "one", "run": "true", "env": {"PLAN": MARKED, "PIN_PASSWORD": A_NUMBER}, "secrets": ["PLAN"]},
        {"name": "two", "run": "true", "devices": {"any_of": [{"kind": "cpu", "env": {"API_KEY": OF_A_DEVICE}}]}},
    ],
}


def leaks(content: bytes | str) -> list[str]:
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return [secret for secret in SECRETS if secret in text]


def browser(person: Person) -> Client:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


def test_the_agent_gets_the_real_values(town: Town) -> None:
    agent = town.agent("n1", cpu("n1"), cpu("n2"))
    town.job(**ASKED)
    town.cycle()
    specs = {wanted.spec.stage: wanted.spec for wanted in agent.look() if wanted.spec}
    assert specs["one"].env["HF_TOKEN"] == TOLD
    assert (specs["one"].env["PLAN"], specs["one"].env["PIN_PASSWORD"]) == (MARKED, str(A_NUMBER))
    assert specs["one"].secrets == ["HF_TOKEN", "PIN_PASSWORD", "PLAN"]
    assert specs["two"].env["API_KEY"] == OF_A_DEVICE


def test_no_answer_of_the_api_shows_one(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, **ASKED)
    read = 0
    for each in urlpatterns:
        path = "/" + str(each.pattern).replace("<str:name>", str(job.number))
        # Streams have their own tests, and no end.
        if path.startswith("/jobs/") and not re.search("[<(?^]|openapi|watch|follow", path):
            for person in (town.owner, town.mate, town.staff):
                answer = person.get(path)
                read += answer.status_code == 200
                assert not leaks(answer.content), path
    for path in ("/jobs", "/events", "/decisions", "/overview", "/timeline", "/nodes/n1", "/devices"):
        answer = town.staff.get(path)
        assert (answer.status_code, leaks(answer.content)) == (200, []), path
    assert read > 20
    shown = town.owner.read(f"/jobs/{job.number}/spec")
    assert shown["spec"]["env"] == {"HF_TOKEN": "***", "LOUD": "everybody-may-read", "EMPTY_TOKEN": ""}
    assert shown["spec"]["stages"][0]["env"] == {"PLAN": "***", "PIN_PASSWORD": "***"}
    ways = {each["stage"]: each["request"]["alternatives"][0]["env"] for each in shown["stages"]}
    assert ways["one"]["LOUD"] == "everybody-may-read"
    assert (ways["one"]["PLAN"], ways["two"]["API_KEY"]) == ("***", "***")


def test_neither_submitting_nor_a_dry_run_nor_a_refusal_repeats_one(town: Town) -> None:
    town.machine()
    for path in ("/jobs", "/jobs?dry_run=validate", "/jobs?dry_run=placement"):
        answer = town.owner.post(path, {"name": "s", **ASKED})
        assert answer.status_code in {200, 201}
        assert not leaks(answer.content), path
    key = {"Idempotency-Key": "once"}
    again = [town.owner.post("/jobs", {"name": "s", **ASKED}, **key) for _ in range(2)]
    assert again[1]["Idempotency-Replayed"] == "true"
    assert not leaks(again[1].content)
    wrong = {"name": "s", "run": "true", "env": {"A_TOKEN": [TOLD], "PLAN": {"x": MARKED}}, "secrets": ["PLAN"]}
    refused = town.owner.post("/jobs", wrong)
    assert refused.status_code == 422
    assert not leaks(refused.content)


def test_no_page_shows_one(town: Town) -> None:
    job = town.running(town.machine(), **ASKED)
    client = browser(town.mate)
    tabs = every_tab(client, job.number)
    assert not leaks(tabs.encode())
    for path in ("/jobs", f"/jobs/new?from={job.number}", "/", f"/jobs/{job.number}/otherwise"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert not leaks(answer.content), path
    assert "everybody-may-read" in tabs


def test_a_copy_says_what_to_enter_again_and_is_refused_until_then(town: Town) -> None:
    town.machine()
    job = town.job(**ASKED)
    client = browser(town.owner)
    page = client.get(f"/jobs/new?from={job.number}").content.decode()
    assert "Values of secrets are not copied: enter API_KEY, HF_TOKEN, PIN_PASSWORD, PLAN again" in page
    assert "Values of secrets" not in client.get("/jobs/new").content.decode()
    found = re.search(r'<script id="submit-known" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    copied = json.loads(found[1])["spec"]
    for path in ("/jobs", "/jobs?dry_run=validate", "/jobs?dry_run=placement"):
        refused = town.owner.post(path, copied)
        assert refused.status_code == 422
        assert {(each["pointer"], each["code"]) for each in json.loads(refused.content)["errors"]} == {
            ("/env/HF_TOKEN", "masked"),
            ("/stages/0/env/HF_TOKEN", "masked"),
            ("/stages/0/env/PLAN", "masked"),
            ("/stages/0/env/PIN_PASSWORD", "masked"),
            ("/stages/1/devices/any_of/0/env/API_KEY", "masked"),
        }
    copied["env"]["HF_TOKEN"] = "another"
    copied["stages"][0]["env"] = ASKED["stages"][0]["env"]
    copied["stages"][1]["devices"] = ASKED["stages"][1]["devices"]
    assert town.owner.post("/jobs", copied).status_code == 201


def test_the_administration_shows_none(town: Town) -> None:
    town.running(town.machine(), **ASKED)
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    client = Client()
    client.force_login(User.objects.get(pk=town.user.pk))
    for model in admin.site._registry:
        if model._meta.app_label != "jobs":
            continue
        name = model._meta.label_lower.replace(".", "_")
        assert not leaks(client.get(reverse(f"admin:{name}_changelist")).content)
        for row in model.objects.all():  # type: ignore[attr-defined]
            answer = client.get(reverse(f"admin:{name}_change", args=[row.pk]))
            assert (answer.status_code, leaks(answer.content)) == (200, []), model
    for row in (Job.objects.get(), Stage.objects.get(name="one")):
        name = row._meta.label_lower.replace(".", "_")
        page = client.get(reverse(f"admin:{name}_change", args=[row.pk])).content.decode()
        assert "everybody-may-read" in page
        assert "HF_TOKEN&quot;: &quot;***" in page


def test_neither_decisions_nor_events_nor_any_other_table_holds_one(town: Town, settings: Any, tmp_path: Path) -> None:
    settings.DECISIONS = tmp_path / "decisions"
    recorder = Recorder()
    recorder._pid = -1
    town.machine()
    town.job(**ASKED)
    cycle = town.cycle()
    recorder._notes.append(recording.Noted(cycle, 0.003, 1_700_000_000.0))
    recorder.flush()
    assert Decision.objects.exists()
    written = log.read(settings.DECISIONS, Decision.objects.latest("id").id)
    assert written is not None
    assert not leaks(repr(written))
    holding = {
        model
        for model in apps.get_models()
        if leaks(repr(list(model._base_manager.values())))  # type: ignore[attr-defined]
    }
    assert not holding


def test_yard_show_prints_none(
    transactional_db: None, live_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from switchyard.cli.main import main

    yard = Yard()
    agent = yard.agent("n1")
    job = yard.submit(**ASKED)
    yard.cycle()
    agent.start()
    _, token = service.make_token(yard.user, "test", scopes=service.SCOPES)
    monkeypatch.setenv("YARD_URL", live_server.url)
    monkeypatch.setenv("YARD_TOKEN", token)
    for words in (
        ["show", str(job.number)],
        ["show", str(job.number), "--json"],
        ["ps", "-a"],
        ["why", str(job.number)],
    ):
        assert main(words) == 0, words
        said = capsys.readouterr()
        assert str(job.number) in said.out
        assert not leaks(said.out + said.err)


def test_what_is_masked_and_what_is_left() -> None:
    spec = {
        "secrets": ["A"],
        "env": {"A": "x", "B": "y", "MY_SECRET": "z", "NO_TOKEN": "", "TOKENIZERS": "w"},
        "labels": {"A": "label"},
        "run": "echo x",
    }
    before = json.dumps(spec)
    assert masked.shown(spec) == {
        **spec,
        "env": {"A": "***", "B": "y", "MY_SECRET": "***", "NO_TOKEN": "", "TOKENIZERS": "w"},
    }
    assert json.dumps(spec) == before
    assert masked.names(spec) == ["A", "MY_SECRET"]
    assert masked.names({"env": {"B": "y"}}) == []
