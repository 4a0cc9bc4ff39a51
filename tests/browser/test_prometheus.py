"""A real Prometheus, as the example configures it, scrapes the seeded yard and answers every panel and rule."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.browser.site import Site, port_to_be
from tests.rules.test_dashboards import BOARDS, RULES, panels

EXAMPLE = RULES.with_name("prometheus.yml")
# What the seeded yard cannot have: agents of its own, a scheduler that runs, jobs that ended while it is watched.
EMPTY = {
    "Clock", "Energy, an hour", "Throttled", "Unhealthy, and faults", "Time of a cycle", "Since the last cycle",
    "Cycles and decisions a second", "Tasks that failed, an hour", "Fullest file systems of nodes",
    "Wait until the first start", "Off the announced start", "Share of jobs that fail, of a day", "Use of quotas",
    "Borrowed", "Age of the newest checkpoint",
    *("Attempts ended for others, an hour", "Device-hours lost by that, an hour", "Queued again, an hour"),
    *("Ends of attempts, an hour", "Ended jobs, an hour", "Device-hours, of a day"),
    "Device-hours lost by evictions, of a day",
}  # fmt: skip


class Prometheus:
    """A running server of Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url
        # The moment for which questions are asked: what the yard measured is told for a minute only. Now, if empty.
        self.at = ""

    def ask(self, path: str, **query: str) -> Any:
        moment = {"time": self.at} if path == "query" and self.at else {}
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query | moment)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return json.load(answer)["data"]

    def wait(self, query: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until a query has an answer; what was scraped twice has rates."""
        deadline = time.monotonic() + 180
        while not self.ask("query", query=query)["result"]:
            assert time.monotonic() < deadline, self.ask("targets")["activeTargets"]
            meanwhile()
            time.sleep(0.5)


@pytest.fixture(scope="module")
def prometheus(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus (apt-get install prometheus)")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load(EXAMPLE.read_text())
    # As long as a busy server may take to answer: a scrape lasts no longer than the time between two.
    config["global"] = {"scrape_interval": "10s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    scrape = config["scrape_configs"][0]
    scrape["scheme"], scrape["static_configs"][0]["targets"] = "http", [urlsplit(site.url).netloc]
    scrape["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "token").write_text(token(site))
    del config["scrape_configs"][1:]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = port_to_be()
    command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            found = Prometheus(f"http://127.0.0.1:{port}")
            until = time.monotonic() + 180
            while True:
                try:
                    urllib.request.urlopen(f"{found.url}/-/ready", timeout=60).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise RuntimeError((folder / "log").read_text()) from None
                    time.sleep(0.05)
            site.pulse()
            found.wait("count_over_time(switchyard_build_info[5m]) > 1", site.pulse)
            found.at = str(time.time())
            yield found
        finally:
            process.terminate()
            process.wait(60)


def token(site: Site) -> str:
    """A token of the administrator that may read."""
    secret = "yard_" + uuid.uuid4().hex
    site.run(
        """INSERT INTO access_token (id, user_id, name, digest, scopes, created_at, expires_at)
           SELECT %s, id, 'prometheus', %s, '["read"]', now(), now() + interval '1 hour'
           FROM access_user WHERE username = 'admin'""",
        uuid.uuid4(),
        hashlib.sha256(secret.encode()).hexdigest(),
    )
    return secret


def test_the_example_scrapes_and_what_it_finds_is_of_the_cluster(prometheus: Prometheus) -> None:
    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    found = prometheus.ask("query", query='count({__name__=~"switchyard_.+"}) by (cluster)')["result"]
    assert [one["metric"] for one in found] == [{"cluster": "yard"}]
    assert int(found[0]["value"][1]) > 200
    assert prometheus.ask("query", query='{__name__=~"switchyard_.+", exported_job=~".+"}')["result"] == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_each_panel_is_answered(prometheus: Prometheus, path: Path) -> None:
    board = json.loads(path.read_text())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert prometheus.ask(f"label/{label}/values", **{"match[]": metric}), variable["name"]
    silent = set()
    for panel in panels(board):
        answers = [
            prometheus.ask("query", query=re.sub(r"\$\{?(\w+)\}?", ".*", target["expr"]))["result"]
            for target in panel["targets"]
        ]
        if not any(answers):
            silent.add(panel["title"])
    assert silent <= EMPTY


def test_rules_are_evaluated_without_error(prometheus: Prometheus) -> None:
    prometheus.wait("ALERTS{alertstate!=''} or absent(ALERTS)")
    (group,) = prometheus.ask("rules")["groups"]
    assert len(group["rules"]) > 10
    assert [rule for rule in group["rules"] if rule["health"] not in {"ok", "unknown"}] == []
