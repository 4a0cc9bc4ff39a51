"""The committed description of the API is the one that the code gives, and names every route."""

from __future__ import annotations

from pathlib import Path

import yaml
from django.core.management import call_command
from django.test import Client

COMMITTED = Path(__file__).parents[2] / "openapi.yaml"


def test_the_committed_schema_is_the_present_one(tmp_path: Path) -> None:
    made = tmp_path / "openapi.yaml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(made))
    assert made.read_text() == COMMITTED.read_text(), (
        "the API has changed: run `python manage.py spectacular --file openapi.yaml` and commit it"
    )


def test_every_route_is_described_with_its_answers() -> None:
    from tests.controlplane.test_api_access import routes

    schema = yaml.load(COMMITTED.read_text(), yaml.CSafeLoader)
    described = {path.removeprefix("/api/v1/") for path in schema["paths"]}
    blanked = {"/".join("*" if part.startswith("{") else part for part in path.split("/")) for path in described}
    assert blanked == routes() - {"openapi.yaml", "docs"}
    names = [operation["operationId"] for path in schema["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (path, method)
            assert any(status.startswith("2") for status in operation["responses"]), (path, method)


def test_the_documentation_needs_nothing_from_elsewhere(db: None) -> None:
    page = Client().get("/api/v1/docs").content.decode()
    assert "swagger-ui" in page
    assert "cdn" not in page
    assert "https://" not in page
