"""A POST with an Idempotency-Key takes effect once; a bundle is kept once."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from controlplane.accounts.models import IdempotencyKey
from controlplane.jobs.models import Job
from controlplane.settings import _storages
from tests.controlplane.people import Person, Town

KEY = {"Idempotency-Key": "abc"}


def test_the_same_request_makes_one_job(town: Town) -> None:
    town.machine()
    first = town.owner.post("/jobs", {"run": "x"}, **KEY)
    again = town.owner.post("/jobs", {"run": "x"}, **KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert json.loads(first.content) == json.loads(again.content)
    assert ("Idempotency-Replayed" in first, again["Idempotency-Replayed"]) == (False, "true")
    assert Job.objects.count() == 1


def test_a_key_belongs_to_one_request_and_one_person(town: Town) -> None:
    town.machine()
    assert town.owner.post("/jobs", {"run": "x"}, **KEY).status_code == 201
    assert json.loads(town.owner.post("/jobs", {"run": "y"}, **KEY).content)["code"] == "key_reused"
    assert town.owner.post("/jobs/batch", {"jobs": [{"run": "x"}]}, **KEY).status_code == 422
    assert town.mate.post("/jobs", {"run": "y"}, **KEY).status_code == 201
    assert town.owner.post("/jobs", {"run": "x"}, **{"Idempotency-Key": "k" * 201}).status_code == 400
    assert Job.objects.count() == 2


def test_what_was_refused_may_be_repaired_under_the_same_key(town: Town) -> None:
    town.machine()
    assert town.owner.post("/jobs", {"rum": "x"}, **KEY).status_code == 422
    assert IdempotencyKey.objects.count() == 0
    assert town.owner.post("/jobs", {"run": "x"}, **KEY).status_code == 201


def test_cancelling_with_a_key_answers_the_same_again(town: Town) -> None:
    town.machine()
    job = town.job()
    answers = [town.owner.post(f"/jobs/{job.number}/cancel", {}, **KEY) for _ in range(2)]
    assert [json.loads(answer.content)["state"] for answer in answers] == ["CANCELLED"] * 2


@pytest.mark.django_db(transaction=True)
def test_many_at_once_with_one_key_make_one_job() -> None:
    town = Town()
    town.machine()
    answers: list[Any] = []

    def post() -> None:
        try:
            answers.append(Person.post(town.owner, "/jobs", {"run": "x"}, **KEY))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({json.loads(answer.content)["number"] for answer in answers if answer.status_code == 201}) == 1
    assert Job.objects.count() == 1


def test_a_bundle_is_kept_under_its_digest(town: Town, tmp_path: Path) -> None:
    content = gzip.compress(b"files", mtime=0)
    digest = hashlib.sha256(content).hexdigest()
    with override_settings(BLOBS=tmp_path, STORAGES={**settings.STORAGES, **_storages("", tmp_path, tmp_path)}):
        assert town.owner.get(f"/bundles/{digest}").status_code == 404
        first = town.owner.post("/bundles", content, kind="application/gzip")
        again = town.mate.post("/bundles", content, kind="application/octet-stream")
        assert (first.status_code, again.status_code) == (201, 200)
        assert json.loads(first.content) == json.loads(again.content) == {"sha256": digest, "size_bytes": len(content)}
        assert town.owner.get(f"/bundles/{digest}").status_code == 200
        assert town.owner.client.head(f"/api/v1/bundles/{digest}").status_code == 200
        assert (tmp_path / digest[:2] / digest).read_bytes() == content
        town.machine()
        assert town.owner.post("/jobs", {"run": "x", "bundle": digest}).status_code == 201
    refused = town.owner.post("/jobs", {"run": "x", "bundle": "0" * 64})
    assert json.loads(refused.content)["errors"][0]["code"] == "unknown_bundle"


def test_what_is_no_bundle_is_refused_and_leaves_nothing(town: Town, tmp_path: Path) -> None:
    with override_settings(
        BLOBS=tmp_path, STORAGES={**settings.STORAGES, **_storages("", tmp_path, tmp_path)}, BUNDLE_MAX_BYTES=1000
    ):
        assert town.owner.post("/bundles", b"plain", kind="application/gzip").status_code == 422
        assert town.owner.post("/bundles", b"", kind="application/gzip").status_code == 422
        assert town.owner.post("/bundles", b"\x1f\x8b" + b"x" * 1000, kind="application/gzip").status_code == 413
        for path in ("/bundles/..%2f..%2fetc", "/bundles/" + "Z" * 64, "/bundles/abc"):
            assert town.owner.get(path).status_code == 404
    assert list(tmp_path.iterdir()) == []
