"""The page of an array, and where arrays and their elements stand on other pages."""

from __future__ import annotations

import json
import re
from typing import Any

from django.http import HttpResponse
from django.test import Client

from agents.protocol import Exit, Phase, Progress
from controlplane.jobs.models import Job
from controlplane.pages.gantt import look
from tests.controlplane.people import Town
from tests.controlplane.test_api_arrays import HALVING, POINTS, SWEEP, made
from tests.record.yard import stage


def reading(town: Town, who: str, path: str, language: str = "en") -> HttpResponse:
    client = Client(headers={"accept-language": language})
    client.force_login(getattr(town, who).user)
    return client.get(path)


def drawn_in(text: str) -> dict[str, Any]:
    """The lines of the elements on the page of an array."""
    return dict(json.loads(re.findall(r'id="chart-points"[^>]*>(.*?)</script>', text)[0]))


def test_an_array_tells_its_elements_and_draws_their_points(town: Town) -> None:
    agent = town.machine()
    number = made(town.owner, SWEEP)["number"]
    town.cycle()
    agent.start()
    for index, loss in enumerate((0.5, 0.25)):
        one = Job.objects.get(array=number, array_index=index)
        agent.set(stage(one), Phase.RUNNING, progress=Progress(step=1, values={"loss": loss}))
    for language, words in (("en", ("Best so far", "at most 2 at a time")), ("zh-hans", ("目前最佳", "同时最多 2 个"))):
        text = reading(town, "owner", f"/arrays/{number}?metric=loss", language).content.decode()
        assert all(word in text for word in words)
    # Narrow, a row is a card whose figures have their names beside them.
    assert 'data-label="lr">0.1</td>' in text
    assert 'data-label="loss">0.5</td>' in text
    drawn = drawn_in(text)
    assert [axis["name"] for axis in drawn["axes"]] == ["lr", "seed", "loss"]
    assert [(line["name"], line["values"], line["level"]) for line in drawn["lines"]] == [
        (f"{number}_0", [0.1, 1, 0.5], 9), (f"{number}_1", [0.1, 2, 0.25], 0),
    ]  # fmt: skip
    assert all(0 <= place <= 1 for line in drawn["lines"] for place in line["at"])
    one = reading(town, "owner", f"/arrays/{number}?state=RUNNING").content.decode()
    assert one.count('id="element-') == 2
    assert reading(town, "stranger", f"/arrays/{number}").status_code == 404


def test_a_sweep_shows_its_rungs_and_marks_what_was_stopped_early(town: Town) -> None:
    agent = town.machine()
    number = made(town.owner, {"name": "sweep", "run": "x", "array": {**POINTS, "halving": HALVING}})["number"]
    town.cycle()
    agent.start()
    assert (
        "No element has reported loss at step 10 or later"
        in reading(town, "owner", f"/arrays/{number}").content.decode()
    )
    for index, loss in enumerate((0.5, 0.75)):
        one = Job.objects.get(array=number, array_index=index)
        agent.set(stage(one), Phase.RUNNING, progress=Progress(step=12, values={"accuracy": 0.1, "loss": loss}))
    town.cycle()
    text = reading(town, "owner", f"/arrays/{number}").content.decode()
    assert "needed 0.5" not in text  # it may still complete before it stops
    assert [line["stopped"] for line in drawn_in(text)["lines"]] == [False, False]
    agent.set(stage(one), Phase.ENDED, exit=Exit(code=0, stopped=True))
    (attempt,) = town.owner.read(f"/jobs/{one.number}/attempts")["results"]
    assert look(attempt, "CANCELLED") == "CANCELLED"
    for language, words in (
        ("en", ("Rungs", "those with the smallest loss go on, 1 in 2", "1 stopped early", "had 0.75, needed 0.5")),
        ("zh-hans", ("比较级", "1 个提前停止", "0.75，需要达到 0.5")),
    ):
        text = reading(town, "owner", f"/arrays/{number}", language).content.decode()
        assert [word for word in words if word not in text] == []
    drawn = drawn_in(text)
    assert [(axis["name"]) for axis in drawn["axes"]] == ["lr", "loss"]  # the rule's metric, not the first by name
    assert [line["stopped"] for line in drawn["lines"]] == [False, True]
    assert re.search(r"25\s*%", reading(town, "owner", "/jobs").content.decode())  # one of four has done its part


def test_the_address_of_a_number_leads_to_what_it_is(town: Town) -> None:
    town.machine()
    number = made(town.owner, SWEEP)["number"]
    assert reading(town, "owner", f"/jobs/{number}")["Location"] == f"/arrays/{number}"
    assert reading(town, "owner", f"/jobs/{number}_3")["Location"] == f"/jobs/{number + 4}"
    assert reading(town, "stranger", f"/jobs/{number}").status_code == 404
    assert reading(town, "stranger", f"/jobs/{number}_3").status_code == 404
    element = reading(town, "owner", f"/jobs/{number + 4}").content.decode()
    assert f'href="/arrays/{number}">{number}_3</a>' in element
    listed = reading(town, "owner", "/jobs").content.decode()
    assert f'id="array-{number}"' in listed
    assert f'id="job-{number + 1}"' not in listed
    assert f'id="job-{number + 1}"' in reading(town, "owner", f"/jobs?array={number}").content.decode()
