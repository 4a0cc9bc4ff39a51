"""The pages of decisions and of simulations: they say what the API says, to those who may see it, in both languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.jobs.models import Decision
from controlplane.scheduling import shadow
from controlplane.scheduling.recorder import Noted, Recorder
from controlplane.simulations import service, worker
from tests.controlplane.people import Person, Town


def browser(person: Person, language: str = "en") -> Client:
    client = Client(headers={"accept-language": language})
    assert person.user is not None
    client.force_login(person.user)
    return client


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


@pytest.fixture
def decided(town: Town, settings: Any, tmp_path: Path) -> Decision:
    """A decision that starts one stage of the owner and lets another wait, with a shadow beside it."""
    settings.DECISIONS = tmp_path / "decisions"
    recorder = Recorder()
    town.running(town.machine(), devices={"kind": "gpu", "count": 1})
    town.job(name="wide", devices={"kind": "gpu", "count": 2})
    town.job(name="small")
    recorder._notes.append(Noted(town.cycle(), 0.004, 1_700_000_000.0))
    (row,) = recorder.flush()
    town.pool.shadow_profile = "fifo"
    town.pool.save()
    shadow.evaluate_shadows(row.pk)
    return row


def test_a_decision_is_told_with_who_started_and_who_waits(town: Town, decided: Decision) -> None:
    client = browser(town.owner)
    listed = text(client, "/decisions")
    assert f'href="/decisions/{decided.pk}"' in listed
    assert decided.started[0]["stage"].split("/")[0] in listed
    page = text(client, f"/decisions/{decided.pk}")
    assert decided.started[0]["why"] in page
    assert "CapacityInsufficient" in page
    assert "Shadow profile" in page
    assert text(browser(town.owner), "/decisions?did=evict").count("No decision matches") == 1
    assert client.get("/decisions/999999").status_code == 404


def test_a_stranger_reads_that_it_happened_and_not_to_whom(town: Town, decided: Decision) -> None:
    page = text(browser(town.stranger), f"/decisions/{decided.pk}")
    assert "of other projects not shown" in page
    assert decided.started[0]["why"] not in page
    assert "/record" not in page
    assert "/record" in text(browser(town.staff), f"/decisions/{decided.pk}")


def test_another_profile_is_compared_on_the_page(town: Town, decided: Decision) -> None:
    client = browser(town.owner)
    assert "dynamic would have started and stopped the same." in text(client, f"/decisions/{decided.pk}?with=dynamic")
    assert "Choose one" in text(client, f"/decisions/{decided.pk}?with=nonsense")


def test_a_simulation_is_shown_as_table_and_plots(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ask_to_run", lambda _: None)
    asked = {
        "trace": {"generate": {"jobs": 15}},
        "world": {"nodes": "2x8"},
        "profiles": ["hybrid", "fifo"],
        "loads": [1, 2],
    }
    number = json.loads(town.owner.post("/simulations", asked).content)["id"]
    client = browser(town.owner)
    waiting = text(client, f"/simulations/{number}")
    assert "data-call=" in waiting
    assert "chart-waits" not in waiting
    worker.run(number)
    page = text(client, f"/simulations/{number}")
    assert all(f'id="{name}"' in page for name in ("chart-waits", "chart-used", "chart-sweep", "chart-gantt-0"))
    assert "Results at load 2" in page
    assert "simulated" in page
    assert "data-call=" not in page
    assert f'href="/simulations/{number}"' in text(client, "/simulations")
    assert browser(town.mate).get(f"/simulations/{number}").status_code == 404


def test_both_speak_chinese(town: Town, decided: Decision) -> None:
    client = browser(town.owner, "zh-CN")
    assert "决策" in text(client, f"/decisions/{decided.pk}")
    assert "新建仿真" in text(client, "/simulations")
