"""The chart renders with Helm's own engine, fits the schemas of Kubernetes, and is in step with docker-compose.yml.

The engine is that of the package ``helm-python-sdk``, the schemas are those of ``kubernetes-validate``. No cluster is
asked: what a cluster does with it is not tested here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from deploy.local.service import ROOT
from tests.deploy.test_compose import AGENTS, OURS

CHART = ROOT / "deploy" / "helm" / "switchyard"
NEEDED: dict[str, Any] = {"existingSecret": "keys", "database": {"host": "db"}, "redis": {"host": "redis"}}
ALL: dict[str, Any] = {
    **NEEDED,
    "redis": {"host": "redis", "tls": True, "password": True},
    "environment": {"YARD_DEVICE_KINDS": "tpu"},
    "ingress": {"className": "nginx", "tlsSecret": "tls", "annotations": {"a/b": "c"}},
    "persistence": {"storageClass": "nfs"},
    "scheduler": {"replicas": 2},
    "networkPolicy": {"storesTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "image": {"digest": "sha256:" + "a" * 64, "pullSecrets": [{"name": "pull"}]},
    "sessionsUrl": "https://*.example-sessions.net",
    "router": {"enabled": True, "url": "https://models.example.org", "tlsSecret": "tls"},
    "agents": {
        "enabled": True,
        "joinSecret": "join",
        "sharedHostPath": "/shared",
        "runtimeClassName": "nvidia",
        "nodeSelector": {"compute": "yes"},
        "tolerations": [{"operator": "Exists"}],
        "extraArgs": ["--health-checks=/etc/yard/health.toml"],
    },
}
# The oldest one that the chart admits, and newer ones.
VERSIONS = ("1.27", "1.31", "1.34")


@pytest.fixture(scope="module")
def chart() -> Any:
    try:
        from helm_python.chart import Chart
    except ImportError:
        pytest.skip("no Helm engine (pip install helm-python-sdk)")
    return Chart.load(CHART)


def rendered(chart: Any, values: dict[str, Any], *, upgrade: bool = False) -> list[dict[str, Any]]:
    files = chart.render(values, name="yard", namespace="yard", is_install=not upgrade, is_upgrade=upgrade)
    found = [document for text in files.values() for document in yaml.safe_load_all(text) if document]
    assert len({(each["kind"], each["metadata"]["name"]) for each in found}) == len(found)
    return found


def named(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"].removeprefix("yard-"): each for each in documents if each["kind"] == kind}


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in documents:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"].removeprefix("yard-"), each["spec"]["template"]["spec"]


@pytest.mark.parametrize("upgrade", [False, True])
@pytest.mark.parametrize("values", [NEEDED, ALL], ids=["needed", "all"])
def test_what_it_renders_fits_the_schemas_of_kubernetes(chart: Any, values: dict[str, Any], upgrade: bool) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no schemas (pip install kubernetes-validate)")
    documents = rendered(chart, values, upgrade=upgrade)
    for version in VERSIONS:
        for document in documents:
            validate.validate(document, version, strict=True)
    wrong = json.loads(json.dumps(documents[0]))
    wrong["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, VERSIONS[0], strict=True)


def test_it_is_in_step_with_the_compose_file(chart: Any) -> None:
    documents = rendered(chart, ALL)
    deployments = named(documents, "Deployment")
    assert deployments.keys() == OURS.keys() - AGENTS.keys() - {"secrets", "migrate"}
    for name, deployment in deployments.items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["command"] == [word.replace("//web:", "//yard-web:") for word in OURS[name]["command"]]
        told = {each["name"] for each in container["env"]}
        assert (OURS[name].get("environment") or {}).keys() - {"PGPASSFILE", "YARD_SIGN_IN_COMMAND"} <= told
    (agent,) = named(documents, "DaemonSet")["agent"]["spec"]["template"]["spec"]["containers"]
    for compose in AGENTS.values():
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": compose["cap_add"]}


def test_nobody_has_more_rights_than_it_needs(chart: Any) -> None:
    for name, pod in pods(rendered(chart, ALL)):
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert "requests" in container["resources"]
            if name != "agent":
                assert pod["securityContext"]["runAsNonRoot"] is True
                assert context["capabilities"] == {"drop": ["ALL"]}
    (agent,) = [pod for name, pod in pods(rendered(chart, ALL)) if name == "agent"]
    assert [each["name"] for each in agent["containers"][0]["env"]] == ["NODE_NAME"], "no key, no store"
    assert not any("claim" in str(volume).lower() for volume in agent["volumes"])
    assert not agent.keys() & {"hostPID", "hostNetwork", "hostIPC"}


def test_the_router_sees_its_own_key_and_no_store(chart: Any) -> None:
    pod = dict(pods(rendered(chart, ALL)))["router"]
    (container,) = pod["containers"]
    assert [each["name"] for each in container["env"]] == ["YARD_LOG_LEVEL"]
    (volume,) = pod["volumes"]
    assert [each["key"] for each in volume["secret"]["items"]] == ["router.key"]
    assert "router" not in named(rendered(chart, NEEDED), "Deployment")


def test_no_secret_stands_in_what_is_rendered(chart: Any) -> None:
    documents = rendered(chart, ALL)
    assert not named(documents, "Secret")
    for _, pod in pods(documents):
        for container in pod["containers"]:
            for each in container["env"]:
                if "PASSWORD" in each["name"] and not each["name"].endswith("_FILE"):
                    assert each["valueFrom"]["secretKeyRef"]["name"] == "keys"


def test_the_workers_are_reached_by_nobody(chart: Any) -> None:
    documents = rendered(chart, ALL)
    policies = named(documents, "NetworkPolicy")
    assert policies.keys() == named(documents, "Deployment").keys() | {"migrate"}
    for name, policy in policies.items():
        assert bool(policy["spec"]["ingress"]) == (name in {"web", "gateway", "router"})
    servers = {name: service["spec"]["selector"] for name, service in named(documents, "Service").items()}
    for name, selector in servers.items():
        assert selector == policies[name]["spec"]["podSelector"]["matchLabels"]


def test_tables_are_made_before_anything_new_starts(chart: Any) -> None:
    for upgrade in (False, True):
        job = named(rendered(chart, ALL, upgrade=upgrade), "Job")["migrate"]
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        (blobs,) = [each for each in job["spec"]["template"]["spec"]["volumes"] if each["name"] == "blobs"]
        assert ("persistentVolumeClaim" in blobs) == upgrade


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"existingSecret": ""}, "existingSecret"),
        ({"url": "yard.example.org"}, "url"),
        ({"webb": {}}, "webb"),
        ({"web": {"replicas": "many"}}, "replicas"),
        ({"agents": {"enabled": True}}, "joinSecret"),
        ({"router": {"enabled": True}}, "url"),
        ({"sessionsUrl": "https://example.org"}, "sessionsUrl"),
        ({"migrate": {"lockTimeout": "for ever"}}, "lockTimeout"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_with_their_name(chart: Any, values: dict[str, Any], says: str) -> None:
    from helm_python.errors import HelmError

    with pytest.raises(HelmError, match=says):
        chart.validate_schema({**NEEDED, **values})
