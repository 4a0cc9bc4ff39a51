"""Pilots as Jobs of Kubernetes: manifests against the published schemas, requests against a scripted API server.

No Kubernetes runs here: what a cluster does with a Job is not tested, only what is asked and how answers are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.models import Node
from controlplane.operations import pilots as duty
from controlplane.providers import kinds
from controlplane.providers.engine import EngineFault, EngineRefused, ForeignPhase
from controlplane.providers.models import NodeProvider, Pilot
from tests.providers.kubernetes_api import NAMESPACE, TOKEN, ScriptedKubernetes
from tests.providers.scripted_http import ScriptedServer, serving
from tests.providers.test_kinds import TAG, order
from tests.record.yard import Yard

LABEL = order().label
# The oldest one that has all the fields, and newer ones.
VERSIONS = ("1.27", "1.31", "1.34")
GIVEN = {"endpoint": "k8s", "namespace": NAMESPACE, "image": "registry.example.org/switchyard:1"}
ALL = {
    **GIVEN, "node_selector": {"compute": "yes"}, "priority_class": "low", "runtime_class": "nvidia",
    "pull_secret": "p",
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], "queue": "pilots",
    "grace_s": 20, "run_as": "nobody",
}  # fmt: skip


@pytest.fixture
def api() -> ScriptedKubernetes:
    return ScriptedKubernetes()


@pytest.fixture
def server(api: ScriptedKubernetes, tmp_path: Path, settings: Any) -> Iterator[ScriptedServer]:
    settings.PROVIDER_ENDPOINTS = str(tmp_path)
    with serving(api) as scripted:
        (tmp_path / "k8s").mkdir()
        (tmp_path / "k8s" / "url").write_text(scripted.url)
        (tmp_path / "k8s" / "token").write_text(TOKEN)
        yield scripted


def made(**more: Any) -> Any:
    return kinds.engine("kubernetes", {**GIVEN, **more})


def shaped(*devices: dict[str, Any], **more: Any) -> Any:
    return replace(order(), shape={"name": "s", "cpus": 2, "memory_gib": 0.5, "devices": list(devices), **more})


@pytest.mark.parametrize("given", [GIVEN, ALL], ids=["needed", "all"])
def test_what_is_asked_for_fits_the_schemas_of_kubernetes(given: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas (pip install kubernetes-validate)")
    one = kinds.engine("kubernetes", given)
    asked = shaped({"kind": "gpu", "vendor": "nvidia", "count": 2})
    for version in VERSIONS:
        validate.validate(one.job(asked), version, strict=True)
        validate.validate(one.secret(asked), version, strict=True)
    wrong = one.job(asked)
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_setting_is_accepted_and_lands_in_the_job() -> None:
    module = kinds.module("kubernetes")
    assert all(module.SETTINGS[name](value) for name, value in ALL.items())
    text = json.dumps(kinds.engine("kubernetes", ALL).job(order()))
    assert all(word in text for word in ('"compute": "yes"', '"low"', '"nvidia"', '"NoSchedule"', "queue-name"))
    for name, value in [
        ("namespace", "a/b"), ("image", "--privileged"), ("image", "a b"), ("node_selector", {"a b": "c"}),
        ("node_selector", {"a": {"b": "c"}}), ("tolerations", [{"hostNetwork": True}]), ("tolerations", {"a": "b"}),
        ("tolerations", [{"effect": "Never"}]), ("queue", "-"), ("priority_class", "A"), ("endpoint", "../x"),
    ]:  # fmt: skip
        assert not module.SETTINGS[name](value), (name, value)


@pytest.mark.parametrize(
    ("device", "resource"),
    [
        ({"kind": "gpu", "vendor": "nvidia"}, "nvidia.com/gpu"),
        ({"kind": "gpu", "model": "NVIDIA H100 80GB HBM3"}, "nvidia.com/gpu"),
        ({"kind": "gpu", "vendor": "AMD"}, "amd.com/gpu"),
        ({"kind": "gpu", "vendor": "intel"}, "gpu.intel.com/i915"),
        ({"kind": "npu", "vendor": "huawei"}, "huawei.com/Ascend910"),
        ({"kind": "npu", "model": "Ascend 910B"}, "huawei.com/Ascend910"),
    ],
)
def test_devices_are_those_of_the_vendors_plugins(device: dict[str, Any], resource: str) -> None:
    (container,) = made().job(shaped({**device, "count": 4}))["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "512Mi", resource: "4"}
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_a_shape_may_name_the_resource_and_a_device_of_nobody_is_refused(server: ScriptedServer) -> None:
    gpu = {"kind": "gpu", "count": 1}
    job = made().job(shaped(gpu, resource="nvidia.com/mig-1g.10gb"))
    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    with pytest.raises(EngineRefused, match="DeviceUnnamed"):
        made().up(shaped(gpu))
    assert server.asked == []


def test_a_pilot_is_found_by_its_label_runs_and_goes_with_its_secret(
    server: ScriptedServer, api: ScriptedKubernetes
) -> None:
    one = made()
    assert one.list(TAG) == []
    assert one.up(order()) == LABEL
    (found,) = one.list(TAG)
    assert (found.label, found.handle, found.phase) == (LABEL, LABEL, ForeignPhase.QUEUED)
    api.runs(LABEL)
    (found,) = one.list(TAG)
    # 2026-11-28 08:00 and half an hour.
    assert (found.phase, found.ends_at) == (ForeignPhase.RUNNING, 1_795_852_800 + 1_800)
    assert one.list("f" * 12) == []
    one.down([LABEL])
    assert one.list(TAG) == []
    assert api.objects == {"jobs": {}, "pods": {}, "secrets": {}}
    one.down([LABEL], force=True)


def test_the_join_token_is_in_the_secret_and_nowhere_else(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    one = replace(order(), token="join-token-of-forty-three-characters-or-so")
    made().up(one)
    assert api.objects["secrets"][LABEL]["stringData"] == {"token": one.token}
    assert one.token not in json.dumps([api.objects["jobs"], api.objects["pods"]])
    pod = api.objects["jobs"][LABEL]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert TOKEN not in json.dumps(api.objects)


def test_a_job_that_is_there_is_adopted(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    made().up(order())
    api.objects["secrets"].clear()
    assert made().up(order()) == LABEL
    assert list(api.objects["jobs"]) == [LABEL]


@pytest.mark.parametrize("kind", ["secrets", "jobs"])
def test_a_quota_that_is_full_is_a_refusal_and_leaves_nothing(
    server: ScriptedServer, api: ScriptedKubernetes, kind: str
) -> None:
    api.refuses["POST", kind] = (403, "exceeded quota: gpus, requested: nvidia.com/gpu=4, used: 8, limited: 8")
    with pytest.raises(EngineRefused) as raised:
        made().up(order())
    assert raised.value.detail == "403 exceeded quota: gpus, requested: nvidia.com/gpu=4, used: 8, limited: 8"
    assert api.objects == {"jobs": {}, "pods": {}, "secrets": {}}


def test_what_may_have_been_taken_is_no_refusal(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    api.refuses["POST", "jobs"] = (500, "etcdserver: request timed out")
    with pytest.raises(EngineFault) as raised:
        made().up(order())
    assert type(raised.value) is EngineFault
    assert LABEL in api.objects["secrets"], "the Job may come yet"


def test_a_secret_of_nobody_is_deleted_once_it_is_old(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    made().up(order())
    for number, made_at in ((2, timezone.now() - timedelta(minutes=11)), (3, timezone.now())):
        made().up(order(number))
        api.objects["jobs"].pop(order(number).label)
        api.objects["pods"].pop(f"{order(number).label}-x7k2p")
        api.objects["secrets"][order(number).label]["metadata"]["creationTimestamp"] = made_at.isoformat()
    api.objects["secrets"]["other"] = {"metadata": {"name": "other", "creationTimestamp": "2000-01-01T00:00:00Z"}}
    assert [each.label for each in made().list(TAG)] == [LABEL]
    assert set(api.objects["secrets"]) == {LABEL, order(3).label, "other"}


def test_an_evicted_pod_ends_when_its_grace_is_over(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    made().up(order())
    api.runs(LABEL, deletionTimestamp="2026-11-28T08:01:00Z")
    (found,) = made().list(TAG)
    assert (found.phase, found.ends_at) == (ForeignPhase.RUNNING, 1_795_852_860)
    api.ends(LABEL)
    (found,) = made().list(TAG)
    assert found.phase is ForeignPhase.ENDED


def test_a_pod_without_its_job_counts_until_it_is_gone(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    made().up(order())
    api.runs(LABEL)
    del api.objects["jobs"][LABEL]
    assert [each.phase for each in made().list(TAG)] == [ForeignPhase.RUNNING]
    api.objects["pods"][f"{LABEL}-x7k2p"]["status"]["phase"] = "Unknown"
    assert [each.phase for each in made().list(TAG)] == [ForeignPhase.RUNNING]


def test_a_list_has_pages_but_not_for_ever(
    server: ScriptedServer, api: ScriptedKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.page = 2
    for number in range(1, 6):
        made().up(order(number))
    assert len(made().list(TAG)) == 5
    monkeypatch.setattr(kinds.module("kubernetes"), "MOST_PAGES", 2)
    with pytest.raises(EngineFault, match="EndpointTooLoud"):
        made().list(TAG)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<html>", "AnswerUnreadable"),
        (b"[]", "AnswerUnreadable"),
        (b'{"metadata":' + b"[" * 100_000, "AnswerUnreadable"),
        (b'{"metadata": {}, "items": [{"metadata": {"creationTimestamp": "soon"}}]}', "AnswerUnreadable"),
        (b'{"metadata": {}, "items": [{"metadata": {"name": 7}}]}', "AnswerUnreadable"),
        (b'{"items": []}', "AnswerUnreadable"),
    ],
)
def test_nonsense_is_a_fault(server: ScriptedServer, body: bytes, code: str) -> None:
    server.answer = lambda _: (200, body)
    with pytest.raises(EngineFault) as raised:
        made().list(TAG)
    assert raised.value.code == code


def test_a_phase_that_nobody_knows_is_a_fault(server: ScriptedServer, api: ScriptedKubernetes) -> None:
    made().up(order())
    api.objects["pods"][f"{LABEL}-x7k2p"]["status"]["phase"] = "Flying"
    with pytest.raises(EngineFault, match="AnswerUnreadable"):
        made().list(TAG)


def test_a_token_that_is_not_admitted_is_said_and_not_shown(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "k8s" / "token").write_text("an-old-token")
    with pytest.raises(EngineFault) as raised:
        made().list(TAG)
    assert (raised.value.code, raised.value.detail) == ("KubernetesSaid", "401 Unauthorized")
    # One that is renewed is used at once.
    (tmp_path / "k8s" / "token").write_text(TOKEN)
    assert made().list(TAG) == []


# -- with the record


@pytest.mark.django_db(transaction=True)
def test_the_node_of_an_evicted_pod_drains_and_another_pilot_takes_its_place(
    yard: Yard, server: ScriptedServer, api: ScriptedKubernetes
) -> None:
    NodeProvider.objects.create(
        name="cloud", kind="kubernetes", pool=yard.pool, settings=GIVEN, min_nodes=1, max_nodes=1, hours=1.0,
        shapes=[{"name": "s", "cpus": 2, "memory_gib": 4}],
    )  # fmt: skip

    def look() -> Pilot | None:
        NodeProvider.objects.update(retry_at=None)
        duty.look()
        return Pilot.objects.exclude(state="GONE").first()

    look()
    pilot = look()
    assert pilot is not None
    assert (pilot.state, pilot.handle) == ("QUEUED", pilot.label)
    started = timezone.now().isoformat()
    api.runs(pilot.label, started=started)
    pilot = look()
    assert pilot is not None
    assert pilot.state == "UP"
    api.runs(pilot.label, started=started, deletionTimestamp=(timezone.now() + timedelta(seconds=60)).isoformat())
    look()
    pilot.refresh_from_db()
    assert (pilot.state, pilot.why) == ("LEAVING", "ends")
    # It is empty: the engine is told to end it, and has by the next look.
    look()
    look()
    pilot.refresh_from_db()
    assert (pilot.state, pilot.why) == ("GONE", "ends")
    other = look()
    assert other is not None
    assert other.node == Node.objects.get(name="cloud-1"), "its node is used again"
    assert list(api.objects["jobs"]) == [other.label] != [pilot.label]
    assert NodeProvider.objects.get().condition == ""
