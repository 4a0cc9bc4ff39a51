"""The pages lead to the same page of other clusters, by links that carry nothing of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from controlplane.clusters import MOST, ClusterAddress, parsed
from tests.browser.site import ROOT
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text

EAST = ClusterAddress("east", "https://east.example.org")
WEST = ClusterAddress("west", "http://10.0.0.7:8470")


def test_a_list_is_names_and_addresses() -> None:
    assert parsed(["east=https://east.example.org/", " west = http://10.0.0.7:8470"]) == (EAST, WEST)
    assert parsed([]) == ()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("https://east.example.org", "a name has"),
        ("=https://east.example.org", "a name has"),
        ("<b>=https://east.example.org", "a name has"),
        ("east", "no address"),
        ("east=east.example.org", "no address"),
        ("east=javascript:alert(1)", "no address"),
        ("east=https://east.example.org:99999", "no address"),
        ('east=https://east.example.org" onclick="x', "no address"),
        ("east=https://[::1", "no address"),
        ("east=https://me:secret@east.example.org", "neither user nor path"),
        ("east=https://east.example.org/yard", "neither user nor path"),
        ("east=https://east.example.org?token=1", "neither user nor path"),
    ],
)
def test_what_is_no_such_list_is_refused(entry: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parsed([entry])


def test_names_are_there_once_and_not_too_many() -> None:
    with pytest.raises(ValueError, match="there twice"):
        parsed(["east=https://a.example.org", "east=https://b.example.org"])
    with pytest.raises(ValueError, match="are the most"):
        parsed([f"c{n}=https://c{n}.example.org" for n in range(MOST + 1)])


def test_a_check_of_the_settings_says_what_is_wrong() -> None:
    environment = {**os.environ, "YARD_CLUSTERS": "east=ftp://east"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert 'YARD_CLUSTERS: "east=ftp://east": no address like https://yard.example.org' in done.stderr


def led_to(page: str) -> list[str]:
    return re.findall(r'<a href="([^"]*)" rel="noopener">west</a>', page)


def test_a_page_leads_to_the_same_page_or_its_list(town: Town, settings: Any) -> None:
    settings.CLUSTER_NAME, settings.CLUSTERS = "east", (EAST, WEST)
    job = town.running(town.machine())
    client = browser(town.owner)
    for path, there in (
        ("/", "/"),
        ("/queue?pool=secret", "/queue"),
        ("/jobs/new", "/jobs/new"),
        (f"/jobs/{job.number}", "/jobs"),
        (f"/jobs/{job.number}/logs", "/jobs"),
        ("/nodes/n1", "/nodes"),
        ("/profiles/hybrid", "/profiles"),
    ):
        page = text(client, path)
        assert led_to(page) == [WEST.address + there]
        assert 'rel="noopener">east</a>' not in page


@pytest.mark.parametrize("clusters", [(), (EAST,)])
def test_one_cluster_has_no_menu(town: Town, settings: Any, clusters: tuple[ClusterAddress, ...]) -> None:
    settings.CLUSTER_NAME, settings.CLUSTERS = "east", clusters
    assert "y-cluster" not in text(browser(town.owner), "/")
