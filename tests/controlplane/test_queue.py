"""The page of the queue: its order, the places of its jobs, and what it keeps to itself."""

from __future__ import annotations

import json
import re

from django.test import Client

from tests.controlplane.people import Person, Town


def _page(person: Person, path: str = "/queue") -> str:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def _places(page: str) -> list[tuple[int, str]]:
    """The number and the place of each job of a page, in its order."""
    return [(int(n), at) for n, at in re.findall(r'data-choose value="(\d+)"[^>]*>(\d*)', page)]


def test_jobs_stand_in_the_order_of_priority_and_submission(town: Town) -> None:
    town.machine()
    low, normal, urgent, held = (
        town.job(priority="low"),
        town.job(),
        town.job(priority="high"),
        town.job(priority="high", hold=True),
    )
    page = _page(town.owner)
    assert _places(page) == [(urgent.number, "1"), (held.number, ""), (normal.number, "2"), (low.number, "3")]
    assert _places(_page(town.owner, "/queue?pool=default&page=9")) == _places(page)
    assert _places(_page(town.owner, "/queue?pool=elsewhere")) == []


def test_the_reason_stands_under_a_job(town: Town) -> None:
    town.machine()
    job = town.job(devices={"kind": "gpu", "count": 1}, hold=True)
    town.cycle()
    page = _page(town.owner)
    assert f'data-otherwise="/jobs/{job.number}/otherwise?stage=' in page
    assert "can change this" in page


def test_a_place_counts_jobs_that_are_not_shown(town: Town) -> None:
    town.machine()
    hidden = town.job()
    answer = town.stranger.post("/jobs", {"name": "theirs", "run": "true"})
    assert answer.status_code == 201
    page = _page(town.stranger)
    assert _places(page) == [(json.loads(answer.content)["number"], "2")]
    assert f"#{hidden.number}" not in page


def test_the_api_tells_the_same_places_a_part_at_a_time(town: Town) -> None:
    town.machine()
    low, held = town.job(priority="low"), town.job(priority="high", hold=True)
    normal = town.job()
    told = town.owner.read("/queue")
    expected = [(None, held.number), (1, normal.number), (2, low.number)]
    assert [(one["place"], one["job"]["number"]) for one in told["results"]] == expected
    assert told["total"] == 3
    second = town.owner.read("/queue?pool=default&first=1&limit=1")
    assert [one["place"] for one in second["results"]] == [1]
    assert town.owner.read("/queue?pool=elsewhere") == {"results": [], "total": 0}
    assert town.stranger.read("/queue") == {"results": [], "total": 0}
    for wrong in ("limit=501", "limit=0", "first=-1", "first=x", "offset=3"):
        assert town.owner.get(f"/queue?{wrong}").status_code == 400, wrong
