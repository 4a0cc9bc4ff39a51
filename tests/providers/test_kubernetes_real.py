"""A pilot's Job in a real Kubernetes, where ``KUBECONFIG`` leads to one: made, found, run and deleted.

The namespace is that of the context, and the image is ``YARD_TEST_KUBERNETES_IMAGE``, by default one with a shell:
its agent does not join, and is not what is tested.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.providers import kinds
from controlplane.providers.engine import EngineFault, ForeignPhase
from tests.providers.test_kinds import TAG, order

ABSENT = "NO KUBERNETES HERE: KUBECONFIG names none that answers"


@pytest.fixture
def cluster(tmp_path: Path, settings: Any) -> Iterator[Any]:
    """The provider's engine for the current context."""
    file = os.environ.get("KUBECONFIG", "").partition(":")[0]
    if not file or not Path(file).is_file():
        pytest.skip(ABSENT)
    config = yaml.safe_load(Path(file).read_text())
    by = {kind: {one["name"]: one for one in config[kind]} for kind in ("clusters", "users", "contexts")}
    context = by["contexts"][config["current-context"]]["context"]
    where, who = by["clusters"][context["cluster"]]["cluster"], by["users"][context["user"]]["user"]
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "url").write_text(where["server"])
    (folder / "token").write_text(who.get("token", ""))
    for name, of, key in [
        ("ca.crt", where, "certificate-authority"), ("tls.crt", who, "client-certificate"),
        ("tls.key", who, "client-key"),
    ]:  # fmt: skip
        if f"{key}-data" in of:
            (folder / name).write_bytes(base64.b64decode(of[f"{key}-data"]))
        elif key in of:
            (folder / name).write_bytes(Path(of[key]).read_bytes())
    settings.PROVIDER_ENDPOINTS = str(tmp_path)
    image = os.environ.get("YARD_TEST_KUBERNETES_IMAGE", "docker.io/library/busybox:1")
    given = {"endpoint": "real", "namespace": context.get("namespace", "default"), "image": image}
    one = kinds.engine("kubernetes", {**given, "python": "/bin/true"})
    try:
        one.list(TAG)
    except EngineFault:
        pytest.skip(ABSENT)
    yield one
    one.down([order().label], force=True)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_pilot_is_made_once_found_and_deleted(cluster: Any) -> None:
    asked = replace(order(), shape={"name": "s", "cpus": 1, "memory_gib": 0.0625})
    assert cluster.up(asked) == asked.label
    until(lambda: [each.label for each in cluster.list(TAG)] == [asked.label])
    # Its agent is a program that ends well.
    until(lambda: [each.phase for each in cluster.list(TAG)] == [ForeignPhase.ENDED])
    cluster.down([asked.label])
    until(lambda: cluster.list(TAG) == [])
    cluster.down([asked.label])
