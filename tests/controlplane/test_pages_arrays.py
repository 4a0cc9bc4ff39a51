"""The page of an array, and where arrays and their elements stand on other pages."""

from __future__ import annotations

import json
import re

from django.http import HttpResponse
from django.test import Client

from agents.protocol import Phase, Progress
from controlplane.jobs.models import Job
from tests.controlplane.people import Town
from tests.controlplane.test_api_arrays import SWEEP, made
from tests.record.yard import stage


def reading(town: Town, who: str, path: str, language: str = "en") -> HttpResponse:
    client = Client(headers={"accept-language": language})
    client.force_login(getattr(town, who).user)
    return client.get(path)


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
    drawn = json.loads(re.findall(r'id="chart-points"[^>]*>(.*?)</script>', text)[0])
    assert [axis["name"] for axis in drawn["axes"]] == ["lr", "seed", "loss"]
    assert [(line["name"], line["values"], line["level"]) for line in drawn["lines"]] == [
        (f"{number}_0", [0.1, 1, 0.5], 9), (f"{number}_1", [0.1, 2, 0.25], 0),
    ]  # fmt: skip
    assert all(0 <= place <= 1 for line in drawn["lines"] for place in line["at"])
    one = reading(town, "owner", f"/arrays/{number}?state=RUNNING").content.decode()
    assert one.count('id="element-') == 2
    assert reading(town, "stranger", f"/arrays/{number}").status_code == 404


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
