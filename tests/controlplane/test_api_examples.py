"""The description of the API can be followed: the server takes each address and each body that it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.accounts.models import User
from tests.controlplane.people import Town

SCHEMA = yaml.load((Path(__file__).parents[2] / "openapi.yaml").read_text(), yaml.CSafeLoader)
# A bundle is a file, and no text shows one.
FILES = {"bundles_upload"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in SCHEMA["paths"].items():
        for method, operation in methods.items():
            yield path.removeprefix("/api/v1"), method, operation


def bodies(operation: dict[str, Any]) -> list[Any]:
    """The bodies that the description shows; one empty one where none is taken."""
    if "requestBody" not in operation:
        return [None]
    content = operation["requestBody"]["content"].get("application/json", {})
    return [example["value"] for example in content.get("examples", {}).values()]


@pytest.mark.parametrize(
    ("path", "method", "operation"), [pytest.param(*one, id=one[2]["operationId"]) for one in operations()]
)
def test_every_example_is_taken(town: Town, path: str, method: str, operation: dict[str, Any]) -> None:
    town.machine()
    User.objects.filter(pk=town.user.pk).update(is_superuser=True)
    headers = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            assert "example" in parameter, f"{path}: no example of {parameter['name']}"
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        elif parameter.get("required"):
            (example,) = parameter["examples"].values()
            if parameter["in"] == "header":
                headers[parameter["name"]] = example["value"]
                continue
            path += f"?{parameter['name']}={example['value']}"
    if method == "get":
        # Not all that the examples name is there; but each address is one.
        assert town.staff.get(path).status_code in {200, 404}
        return
    shown = bodies(operation)
    assert shown or operation["operationId"] in FILES, "a route that takes a body shows one"
    for body in shown:
        sent = "" if body is None else json.dumps(body)
        kind = "application/json"
        answer = town.staff.client.generic(method.upper(), f"/api/v1{path}", sent, content_type=kind, headers=headers)
        # What is asked for may not be there, may have expired or may not be in its place; but it was understood.
        assert answer.status_code in {200, 201, 204, 404, 409} or b"expired_token" in answer.content, answer.content
