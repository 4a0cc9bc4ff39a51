"""Bundles, traces and results lie in the storage that the settings name: files, or an object store over real HTTP."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import storages
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client

from controlplane import storage
from controlplane.settings import _storages
from controlplane.simulations import service, worker
from controlplane.simulations.models import Simulation
from tests.controlplane.people import Town
from tests.controlplane.test_simulations import SMALL
from tests.record.test_uploads import credential

CSV = "submit_s,duration_s,gpus\n0,60,1\n5,60,2\n"


def test_a_bundle_goes_in_and_out(town: Town, place: tuple[str, Path]) -> None:
    url, folder = place
    content = gzip.compress(bytes(range(256)) * 4096, mtime=0)
    digest = hashlib.sha256(content).hexdigest()
    assert town.owner.get(f"/bundles/{digest}").status_code == 404
    assert town.owner.post("/bundles", content, kind="application/gzip").status_code == 201
    assert town.mate.post("/bundles", content, kind="application/gzip").status_code == 200
    assert town.owner.read(f"/bundles/{digest}")["size_bytes"] == len(content)
    agent = town.machine()
    town.running(agent, bundle=digest)
    told = Client().get(f"/agent/v1/bundles/{digest}", headers=credential(agent))
    assert (told["Content-Length"], b"".join(told)) == (str(len(content)), content)
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept == ([] if url else [folder / digest[:2] / digest])
    if not url:
        assert kept[0].stat().st_mode & 0o777 == 0o600


def test_what_a_simulation_reads_and_gives_lies_in_the_storage(
    town: Town, place: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ask_to_run", lambda _: None)
    answer = town.owner.post("/simulations", {**SMALL, "trace": {"text": CSV, "format": "generic"}})
    assert answer.status_code == 201, answer.content
    row = Simulation.objects.get()
    assert (row.scenario["trace"], row.trace_bytes) == ({"format": "generic"}, len(CSV))
    assert row.trace_sha256 == hashlib.sha256(CSV.encode()).hexdigest()
    assert service.scenario_of(row)["trace"]["text"] == CSV
    worker.run(row.pk)
    found = town.owner.read(f"/simulations/{row.pk}")
    assert found["result"]["stages"] == 2
    row.refresh_from_db()
    assert json.loads(storage.bytes_of("simulations", row.result, row.result_sha256)) == found["result"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(s)::text FROM simulations_simulation s")
        assert CSV.splitlines()[1] not in cursor.fetchone()[0]
    storages["simulations"].delete(row.result)
    assert town.owner.get(f"/simulations/{row.pk}").status_code == 410


@pytest.mark.django_db(transaction=True)
def test_bytes_go_with_their_row(place: tuple[str, Path]) -> None:
    from controlplane.accounts.models import User

    user = User.objects.create(username="ada")
    names = [service._name("trace"), service._name("result")]
    digests = [storage.keep("simulations", name, b"kept") for name in names]
    assert set(digests) == {hashlib.sha256(b"kept").hexdigest()}
    Simulation.objects.create(user=user, name="x", scenario={}, trace=names[0], result=names[1])
    assert all(storages["simulations"].exists(name) for name in names)
    user.delete()
    assert not any(storages["simulations"].exists(name) for name in names)


def test_bytes_that_are_not_those_that_were_kept_are_not_believed(place: tuple[str, Path]) -> None:
    digest = storage.keep("simulations", "aa/one", b"first")
    assert storage.bytes_of("simulations", "aa/one", digest) == b"first"
    storage.keep("simulations", "aa/one", b"second")
    with pytest.raises(storage.BytesLost):
        storage.bytes_of("simulations", "aa/one", digest)
    with pytest.raises(storage.BytesLost):
        storage.bytes_of("simulations", "aa/none", digest)


async def test_a_download_is_read_piece_by_piece(tmp_path: Path) -> None:
    content = bytes(3 * storage.PIECE + 7)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        pieces = [piece async for piece in storage.Download(file)]
    assert [len(piece) for piece in pieces] == [storage.PIECE] * 3 + [7]


@pytest.mark.parametrize("url", ["http://bucket", "s3://", "s3://bucket?endpont=http://x", "bucket"])
def test_an_address_of_no_storage_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="s3://bucket/prefix"):
        _storages(url, Path("/nowhere"), Path("/nowhere"))


@pytest.mark.django_db(transaction=True)
def test_rows_of_before_move_there_and_back(place: tuple[str, Path]) -> None:
    """By the migration that moves them, in both directions."""
    before, after = [("simulations", "0001_initial")], [("simulations", "0002_storage_bytes_in_storage")]
    leaves = [node for node in MigrationExecutor(connection).loader.graph.leaf_nodes() if node[0] == "simulations"]
    result = {"summary": [1, 2.5, "x"]}
    scenario = {"trace": {"text": CSV, "format": "generic"}, "world": {}}
    try:
        old = _migrated(before)
        user = old.get_model("access", "User").objects.create(username="ada")
        rows = old.get_model("simulations", "Simulation").objects
        done = rows.create(user=user, name="done", scenario=scenario, result=result, phase="DONE").pk
        bare = rows.create(user=user, name="bare", scenario={"trace": {"generate": {}}}).pk
        new = _migrated(after).get_model("simulations", "Simulation").objects
        row = new.get(pk=done)
        assert storage.bytes_of("simulations", row.trace, row.trace_sha256).decode() == CSV
        assert json.loads(storage.bytes_of("simulations", row.result, row.result_sha256)) == result
        assert (row.scenario, new.get(pk=bare).result) == ({"trace": {"format": "generic"}, "world": {}}, "")
        back = _migrated(before).get_model("simulations", "Simulation").objects
        assert (back.get(pk=done).scenario, back.get(pk=done).result) == (scenario, result)
        assert not storages["simulations"].exists(row.trace)
        back.all().delete()
    finally:
        _migrated(leaves)


def _migrated(targets: Any) -> Any:
    executor = MigrationExecutor(connection)
    state = executor.migrate(targets)
    return state.apps


def test_the_store_is_a_real_server(store: str) -> None:
    with urlopen(f"{store}/moto-api/") as answer:
        assert answer.status == 200
