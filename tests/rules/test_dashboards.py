"""What dashboards and alerts ask for is told by ``/metrics``, and both are files that their programs read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.telemetry.metrics import METRICS as OF_AGENTS
from controlplane.observability.catalogue import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = DEPLOY / "prometheus" / "switchyard-rules.yml"
KNOWN = {series for metric in METRICS for series in metric.series} | {metric.name for metric in OF_AGENTS}
LABELS = {metric.name: set(metric.labels) for metric in (*OF_AGENTS, *METRICS)}
OF_TARGETS = {"cluster", "job", "instance", "le"}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def expressions() -> Iterator[tuple[str, str]]:
    """Each PromQL expression, and where it stands."""
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in panels(board):
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: ${variable['name']}", variable["query"]["query"]
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        yield f"{RULES.name}: {rule['alert']}", rule["expr"]


def test_each_metric_that_is_asked_for_is_told_with_the_labels_that_are_chosen_by() -> None:
    asked = set()
    for place, expression in expressions():
        named = re.findall(r"\b((?:switchyard|DCGM|npu)_\w+)(?:\{([^}]*)\})?", expression)
        assert named or expression.startswith("up{"), place
        for name, chosen in named:
            assert name in KNOWN, (place, name)
            base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in LABELS else name
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", chosen)) - OF_TARGETS
            # A device is told of by agents too, which do not know pools.
            assert labels <= LABELS[base], (place, name, labels - LABELS[base])
            asked.add(base)
    assert len(asked) > 40, "this test reads what it should"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_as_grafana_has_them_now(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["schemaVersion"] >= 39
    assert {panel["type"] for panel in panels(board)} <= {"timeseries", "stat"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {panel["datasource"]["uid"] for panel in panels(board)} == {"${datasource}"}
    variables = [one["name"] for one in board["templating"]["list"]]
    assert variables[:2] == ["datasource", "cluster"]
    text = path.read_text()
    assert all(re.search(rf"\$\{{?{name}\b", text) for name in variables), "each variable is used"
    taken = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken)), "no panel lies on another"
    assert max(x for x, _ in taken) < 24


def test_there_are_four_dashboards_of_different_names() -> None:
    boards = [json.loads(path.read_text()) for path in BOARDS]
    assert {board["uid"].removeprefix("switchyard-") for board in boards} == {"cluster", "queue", "devices", "projects"}
    assert len({board["title"] for board in boards}) == 4


def test_alerts_are_rules_that_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (apt-get install prometheus)")
    for words in (["check", "rules", RULES], ["test", "rules", RULES.with_name("rules-test.yml")]):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
