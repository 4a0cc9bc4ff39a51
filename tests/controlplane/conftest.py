"""Four people around one cluster, and a client for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.record.conftest import assert_invariants, forget

if TYPE_CHECKING:
    from tests.controlplane.people import Town


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """No test leaves the language of its last request to the next one."""
    from django.utils import translation

    yield
    translation.deactivate()


@pytest.fixture
def town(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    # Imported late: this file is read before Django's apps are loaded.
    from django.core.cache import cache

    from controlplane.queries import shared
    from tests.controlplane.people import Town

    forget(monkeypatch)
    cache.clear()  # and with it the snapshots that pages share
    # However slow this machine is: no test is answered with what held before its last change.
    monkeypatch.setattr(shared, "QUICK_S", float("inf"))
    yield Town()
    assert_invariants()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of an object store that is a real HTTP server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["files", "objects"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """Each of the two storages in turn; files lie below a folder of this test."""
    import boto3
    from django.conf import settings
    from django.core.files.storage import storages
    from django.test import override_settings

    from controlplane.settings import _storages

    url = ""
    if request.param == "objects":
        endpoint = request.getfixturevalue("store")
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ):
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="yard")
        client.close()
        url = f"s3://yard/cluster?endpoint={endpoint}&region=us-east-1&addressing=path"
    kept = {**settings.STORAGES, **_storages(url, tmp_path, tmp_path / "logs")}
    with override_settings(BLOBS=tmp_path, LOGS=tmp_path / "logs", STORAGE_URL=url, STORAGES=kept):
        yield url, tmp_path
        if url:
            for name in ("bundles", "simulations", "archive", "traces"):
                storages[name].bucket.meta.client.close()
