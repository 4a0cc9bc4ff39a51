"""The page of a node: what its devices did of late, and which stages ran on it and have left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from controlplane.fleet.models import Device, DeviceSample
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text
from tests.record.yard import stage


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def drawn(page: str) -> Any:
    """What the chart of the devices shows."""
    return json.loads(re.search(r'id="chart-over-time" type="application/json">(.*?)</script>', page)[1])  # type: ignore[index]


def past(page: str) -> str:
    return re.search(r'id="panel-past".*?</section>', page, re.DOTALL)[0]  # type: ignore[index]


def test_each_measured_device_has_a_row_of_the_chart(town: Town) -> None:
    town.machine()
    assert drawn(text(browser(town.owner), "/nodes/n1")) == {}
    row = Device.objects.get(node__name="n1", kind="gpu", index=1)
    now = timezone.now()
    for ago_s, used in ((600, 0.25), (300, 0.75), (0, 0.5)):
        DeviceSample.objects.create(
            device=row, at=now - timedelta(seconds=ago_s), utilisation=used, power_w=400 * used, memory_used_bytes=2**30
        )
    chart = drawn(text(browser(town.owner), "/nodes/n1"))
    assert (chart["rows"], chart["unit"], chart["max"]) == (["gpu1"], "%", 100)
    assert chart["z"][0][0] == 25, "it begins with the first measurement"
    assert {25, 75, 50} == set(chart["z"][0]) - {None}
    assert len(chart["x"]) == len(chart["z"][0]) <= 60, "ten minutes of an hour in steps of twelve seconds"
    assert None in chart["z"][0], "a long gap stays one"
    watts = drawn(text(browser(town.owner), "/nodes/n1?metric=power&range=15m"))
    assert (watts["unit"], watts["max"]) == ("W", 300)
    assert drawn(text(browser(town.owner), "/nodes/n1?metric=temperature")) == {}
    assert drawn(text(browser(town.owner), "/nodes/n1?metric=__class__&range=nought"))["rows"] == ["gpu1"]


def test_what_left_the_node_is_listed_the_newest_first_and_of_others_only_that_it_was(town: Town) -> None:
    agent = town.machine()
    assert "Nothing has ended here yet." in past(text(browser(town.owner), "/nodes/n1"))
    first = town.running(agent, name="came-first", devices={"kind": "gpu", "count": 2})
    assert "came-first" not in past(text(browser(town.owner), "/nodes/n1")), "it has not left"
    agent.end(stage(first))
    second = town.running(agent, name="came-second", devices={"kind": "gpu"}, retry={"max": 1})
    agent.end(stage(second), code=3)
    rows = re.findall(r"<tr>(.*?)</tr>", past(text(browser(town.owner), "/nodes/n1")), re.DOTALL)[1:]
    assert [re.search(r"came-\w+", row)[0] for row in rows] == ["came-second", "came-first"]  # type: ignore[index]
    assert "1 GPU, 1 CPU" in rows[0]
    assert "exit 3" in rows[0]
    assert "2 GPUs, 1 CPU" in rows[1]
    assert "by itself" in rows[1]
    others = past(text(browser(town.stranger), "/nodes/n1"))
    assert others.count("another project") == 2
    assert "came-" not in others
    assert "exit 3" not in others
    assert f"/jobs/{first.number}" not in others


def test_what_nothing_asked_for_is_said_in_words(town: Town) -> None:
    town.agent("n1", disk_bytes=2**40)
    assert "nothing of 1024 GiB asked for" in text(browser(town.owner), "/nodes/n1")
