"""Whatever goes wrong, the answer is a problem document that tells no secrets."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions

from controlplane.api import problem
from controlplane.fleet.service import NodeRefused
from controlplane.queries import jobs
from scheduler.core.model.lifecycle import IllegalTransition, StageEvent, State
from tests.controlplane.people import Town


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (OperationalError("the connection is closed"), 503, "database_unavailable", "2"),
        (InterfaceError("connection already closed"), 503, "database_unavailable", "2"),
        (caused(OperationalError("x"), psycopg.errors.LockNotAvailable("x")), 503, "busy", "2"),
        (caused(OperationalError("x"), psycopg.errors.QueryCanceled("x")), 503, "busy", "2"),
        (caused(OperationalError("x"), psycopg.errors.DiskFull("x")), 503, "storage_full", "30"),
        (IntegrityError("duplicate key"), 409, "conflict", None),
        (IllegalTransition(State.RUNNING, StageEvent.HOLD), 409, "illegal_transition", None),
        (NodeRefused("no"), 409, "refused", None),
        (Http404("secret"), 404, "not_found", None),
        (PermissionDenied("secret"), 403, "permission_denied", None),
        (exceptions.Throttled(wait=7), 429, "throttled", "7"),
        (exceptions.ValidationError({"name": ["must be short"]}), 400, "invalid", None),
        (ZeroDivisionError("secret"), 500, "internal", None),
    ],
)
def test_each_error_has_its_document(
    town: Town, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, retry: str | None
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(jobs, "visible", fail)
    answer = town.owner.get("/jobs")
    body = json.loads(answer.content)
    assert (answer.status_code, body["code"], answer.get("Retry-After")) == (status, code, retry)
    assert answer["Content-Type"] == "application/problem+json"
    assert "secret" not in answer.content.decode()
    assert len(body["trace_id"]) == 32


def test_unknown_addresses_and_methods(town: Town) -> None:
    for path in ("/nothing", "/jobs/", "/jobs/1/nothing", "/"):
        answer = town.owner.get(path)
        assert (answer.status_code, json.loads(answer.content)["code"]) == (404, "not_found"), path
    answer = town.owner.client.delete("/api/v1/jobs")
    assert (answer.status_code, json.loads(answer.content)["code"]) == (405, "method_not_allowed")
    assert town.anonymous.get("/nothing").status_code == 401


def test_pointers_of_nested_faults() -> None:
    error = exceptions.ValidationError({"a": {"b": ["x"]}, "c": ["y", "z"]})
    found = problem.refusal(error).errors
    assert [(fault.pointer, fault.detail) for fault in found] == [("/a/b", "x"), ("/c", "y"), ("/c", "z")]
