"""What the settings make of an address with TLS, with and without a proxy that ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from deploy.local.service import ROOT

# Answers are asked of the whole application, in a process of its own: settings are read once.
ASK = """
import json, sys
import django
django.setup()
from django.conf import settings
from django.core.management import call_command
from django.test import Client
def told(path, method="get", csrf=False, **headers):
    client = Client(enforce_csrf_checks=csrf)
    if csrf:
        client.cookies["yard_csrf"] = "a" * 32
        headers["X-CSRFToken"] = "a" * 32
    answer = getattr(client, method)(path, headers=headers)
    return [answer.status_code, answer.get("Location", "")]
host, https = {"Host": "yard.example.org"}, {"X-Forwarded-Proto": "https"}
print(json.dumps({
    "plain": told("/sign-in", **host),
    "forwarded": told("/sign-in", **host, **https),
    "version": told("/api/v1/version", Host="127.0.0.1"),
    "agent": told("/agent/v1/telemetry", "post", Host="127.0.0.1"),
    "other": told("/api/v1/version", Host="other.example.org"),
    "posted": told("/language", "post", csrf=True, Host="127.0.0.1", Origin="https://yard.example.org", **https),
    "forged": told("/language", "post", csrf=True, Host="127.0.0.1", Origin="https://other.example.org", **https),
    "hosts": settings.ALLOWED_HOSTS,
    "secure": [settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE, settings.SECURE_HSTS_SECONDS > 0],
}))
"""


def told(**environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=ROOT,
        env=os.environ | {"YARD_URL": "https://yard.example.org"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def proxied() -> dict[str, Any]:
    return told(YARD_BEHIND_PROXY="1")


def test_pages_over_plain_http_lead_to_tls(proxied: dict[str, Any]) -> None:
    assert proxied["plain"] == [301, "https://yard.example.org/sign-in"]
    assert proxied["secure"] == [True, True, True]


def test_what_the_proxy_took_over_tls_is_answered(proxied: dict[str, Any]) -> None:
    assert proxied["forwarded"] == [200, ""]


def test_without_a_proxy_its_header_is_not_believed() -> None:
    assert told()["forwarded"] == [301, "https://yard.example.org/sign-in"]


def test_checks_of_health_and_agents_inside_are_answered_without_tls(proxied: dict[str, Any]) -> None:
    assert proxied["version"] == [200, ""]
    assert proxied["agent"] == [401, ""]


def test_the_public_address_is_answered_whatever_else_is_listed() -> None:
    answers = told(YARD_ALLOWED_HOSTS="127.0.0.1,web,", YARD_BEHIND_PROXY="1")
    assert answers["hosts"] == ["127.0.0.1", "web", "yard.example.org"]
    assert answers["other"][0] == 400


def test_forms_of_the_public_address_are_taken_and_no_others(proxied: dict[str, Any]) -> None:
    """Also where a proxy tells another Host than the one that the browser asked."""
    assert proxied["forged"][0] == 403
    assert proxied["posted"][0] not in (403, 301)


@pytest.mark.parametrize("address", ["yard.example.org", "ftp://yard.example.org", "https://"])
def test_an_address_that_is_none_is_refused_with_an_example(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import django; django.setup()"],
        cwd=ROOT,
        env=os.environ | {"YARD_URL": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "https://yard.example.org" in done.stderr.splitlines()[-1]
