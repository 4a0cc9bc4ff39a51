"""The gateway that agents speak with: a process that has what they need and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deploy.local.service import ROOT

# What only people and their browsers need.
FOREIGN = ("controlplane.api", "controlplane.pages", "rest_framework", "django.contrib.admin", "drf_spectacular")
_ASK = """
import json, sys
import asgiref.sync
from controlplane.gateway.asgi import application, django_application
from django.test import AsyncClient

async def ask(path, method):
    answer = await getattr(AsyncClient(), method)(path)
    return answer.status_code

async def main():
    return {path: await ask(path, method) for path, method in (
        ("/healthz", "get"), ("/agent/v1/logs", "post"), ("/api/v1/version", "get"), ("/", "get"),
        ("/admin/", "get"), ("/sign-in", "get"))}

found = asgiref.sync.async_to_sync(main)()
print(json.dumps({"found": found, "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, object]:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        "YARD_SECRET_KEY": "a secret of this test alone, longer than fifty characters",
        "YARD_ALLOWED_HOSTS": "testserver",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run([sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_answers_agents_and_has_no_page_and_no_rest(told: dict[str, object]) -> None:
    assert told["found"] == {
        "/healthz": 200,
        "/agent/v1/logs": 401,
        "/api/v1/version": 404,
        "/": 404,
        "/admin/": 404,
        "/sign-in": 404,
    }


def test_it_loads_nothing_that_only_people_need(told: dict[str, object]) -> None:
    assert [name for name in told["modules"] if name.startswith(FOREIGN)] == []  # type: ignore[attr-defined]
