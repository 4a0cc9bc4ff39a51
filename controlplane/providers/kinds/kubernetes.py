"""Pilots as Jobs of a Kubernetes cluster, over plain HTTPS with a service account's token.

The official client would bring 15 packages for eight requests. A Job and the Secret with its join token are named after
the pilot's label, so an API server refuses a second one; a Job makes one pod, and its token admits one agent once. A
pod that is evicted or preempted ends when its grace is over: until then its node drains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from django.utils import timezone
from msgspec import Meta

from controlplane.providers import endpoint, script, typed
from controlplane.providers.engine import (
    LABEL,
    EngineFault,
    EngineRefused,
    ForeignPhase,
    ForeignPilot,
    PilotOrder,
)

_LABEL_NAME: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_LONG: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_IMAGE: Final = re.compile(r"[a-z0-9]([A-Za-z0-9_.:/@-]{0,399}[A-Za-z0-9])?")
_MOST_RULES: Final = 20
_TOLERATION: Final[Mapping[str, typed.Check]] = {
    "key": typed.is_text(_LABEL_NAME),
    "operator": lambda value: value in ("Exists", "Equal"),
    "value": typed.is_text(_LABEL_VALUE),
    "effect": lambda value: value in ("NoSchedule", "PreferNoSchedule", "NoExecute"),
}


def _is_selector(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= _MOST_RULES
        and all(typed.is_text(_LABEL_NAME)(name) for name in value)
        and all(typed.is_text(_LABEL_VALUE)(one) for one in value.values())
    )


def _is_tolerations(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_RULES
        and all(isinstance(one, Mapping) and one.keys() <= _TOLERATION.keys() for one in value)
        and all(_TOLERATION[key](each) for one in value for key, each in one.items())
    )


SETTINGS: Final[Mapping[str, typed.Check]] = {
    **script.SETTINGS,
    "endpoint": typed.is_text(typed.NAME),
    "namespace": typed.is_text(_DNS),
    "image": typed.is_text(_IMAGE),
    "node_selector": _is_selector,
    "tolerations": _is_tolerations,
    "priority_class": typed.is_text(_DNS_LONG),
    "runtime_class": typed.is_text(_DNS_LONG),
    "pull_secret": typed.is_text(_DNS_LONG),
    "queue": typed.is_text(_DNS_LONG),
    "most": typed.is_whole(1, 10_000),
}
NEEDED: Final = ("endpoint", "namespace", "image")
SHAPE: Final[Mapping[str, typed.Check]] = {"resource": typed.is_text(_RESOURCE), "node_selector": _is_selector}

# The names of the vendors' device plugins. A shape's "resource" is another one, such as nvidia.com/mig-1g.10gb.
PLUGINS: Final[Mapping[str, str]] = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel": "gpu.intel.com/i915",
    "habana": "habana.ai/gaudi",
    "huawei": "huawei.com/Ascend910",
    "ascend": "huawei.com/Ascend910",
    "google": "google.com/tpu",
}
PROVIDER, PILOT = "switchyard/provider", "switchyard/pilot"
_QUEUE: Final = "kueue.x-k8s.io/queue-name"
STATE: Final = "/var/lib/switchyard-agent"
# What a pod that ends may take beyond its stages' grace, in seconds.
END_S: Final = 30.0
# What has ended stays in the list for so long, in seconds.
KEPT_S: Final = 3_600
# The Secret of a pilot that is not there so long after it was made will not be needed.
ORPHAN_S: Final = 600.0
PAGE: Final = 500
MOST_PAGES: Final = 20
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Root for nothing but to change to the users of stages and to care for their files, as in the chart.
_CAPABILITIES: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_NICE"]
_Text = Annotated[str, Meta(max_length=1_000)]


class KubeListMeta(msgspec.Struct, frozen=True, rename={"more": "continue"}):
    """Where a list goes on; empty at its end."""

    more: str = ""


class KubeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What every object has."""

    name: _Text = ""
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class KubeCondition(msgspec.Struct, frozen=True):
    type: _Text = ""
    status: _Text = ""


class KubeJobStatus(msgspec.Struct, frozen=True):
    conditions: list[KubeCondition] = []


class KubeJob(msgspec.Struct, frozen=True):
    metadata: KubeMetadata
    status: KubeJobStatus = KubeJobStatus()


class KubePodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: _Text = ""
    start_time: datetime | None = None


class KubePodSpec(msgspec.Struct, frozen=True, rename="camel"):
    active_deadline_seconds: Annotated[int, Meta(ge=0, le=2**40)] | None = None


class KubePod(msgspec.Struct, frozen=True):
    metadata: KubeMetadata
    spec: KubePodSpec = KubePodSpec()
    status: KubePodStatus = KubePodStatus()


class KubeSecret(msgspec.Struct, frozen=True):
    metadata: KubeMetadata


class KubeJobPage(msgspec.Struct, frozen=True):
    metadata: KubeListMeta
    items: list[KubeJob] | None = None


class KubePodPage(msgspec.Struct, frozen=True):
    metadata: KubeListMeta
    items: list[KubePod] | None = None


class KubeSecretPage(msgspec.Struct, frozen=True):
    metadata: KubeListMeta
    items: list[KubeSecret] | None = None


class KubeRefusal(msgspec.Struct, frozen=True):
    """What an API server says of a request that it did not do."""

    message: str = ""


_refusal = msgspec.json.Decoder(KubeRefusal).decode


class KubernetesCluster:
    """One namespace of the cluster at one endpoint."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.given['namespace']}"

    @property
    def _batch(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.given['namespace']}"

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, secret: str = "", accept: str = ""
    ) -> endpoint.EndpointAnswer:
        where = endpoint.of(self.given["endpoint"])
        return where.ask(method, path, body, secret=secret, accept=accept or "application/json")

    def up(self, order: PilotOrder) -> str:
        job = self.job(order)
        answer = self._ask("POST", f"{self._core}/secrets", self.secret(order), secret=order.token)
        if not answer.is_well:
            # Nothing runs without a Job, which was not asked for.
            raise EngineRefused("KubernetesSaid", _told(answer))
        answer = self._ask("POST", f"{self._batch}/jobs", job, secret=order.token)
        # One of this name is what was asked for.
        if answer.is_well or answer.status == 409:
            return order.label
        if not 400 <= answer.status < 500:
            raise EngineFault("KubernetesSaid", _told(answer))
        self._ask("DELETE", f"{self._core}/secrets/{order.label}")
        raise EngineRefused("KubernetesSaid", _told(answer))

    def secret(self, order: PilotOrder) -> dict[str, Any]:
        """Return the Secret with the join token of a pilot."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": order.label, "labels": _labels(order)},
            "type": "Opaque",
            "immutable": True,
            "stringData": {"token": order.token},
        }

    def job(self, order: PilotOrder) -> dict[str, Any]:
        """Return the Job of a pilot. Raises EngineRefused for a shape whose devices no plugin is known for."""
        labels = _labels(order)
        queued = {_QUEUE: self.given["queue"]} if "queue" in self.given else {}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": order.label, "labels": {**labels, **queued}},
            "spec": {
                "backoffLimit": 0,
                "parallelism": 1,
                "completions": 1,
                "ttlSecondsAfterFinished": KEPT_S,
                "template": {"metadata": {"labels": labels}, "spec": self._pod(order)},
            },
        }

    def _pod(self, order: PilotOrder) -> dict[str, Any]:
        given, shape = self.given, order.shape
        selector = {**given.get("node_selector", {}), **shape.get("node_selector", {})}
        grace_s = float(given.get("grace_s", script.GRACE_S)) + END_S
        own = {
            "nodeSelector": selector,
            "tolerations": given.get("tolerations"),
            "priorityClassName": given.get("priority_class"),
            "runtimeClassName": given.get("runtime_class"),
            "imagePullSecrets": [{"name": given["pull_secret"]}] if "pull_secret" in given else None,
        }
        return {
            "restartPolicy": "Never",
            # From when the pod has a node, not from when it was asked for.
            "activeDeadlineSeconds": math.ceil(order.hours * 3_600),
            "terminationGracePeriodSeconds": math.ceil(grace_s),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [self._container(order)],
            "volumes": [{"name": name, "emptyDir": {}} for name in ("state", "tmp", "vartmp")],
            **{name: value for name, value in own.items() if value},
        }

    def _container(self, order: PilotOrder) -> dict[str, Any]:
        runs = {"python": "python3", **self.given, "state_below": STATE}
        reserved = {
            "cpu": str(order.shape["cpus"]),
            "memory": f"{math.ceil(order.shape['memory_gib'] * 1_024)}Mi",
            **_devices(order.shape),
        }
        return {
            "name": "agent",
            "image": self.given["image"],
            "command": ["sh", "-c", script.of(order, runs)],
            "env": [
                {"name": script.TOKEN, "valueFrom": {"secretKeyRef": {"name": order.label, "key": "token"}}},
            ],
            "resources": {"requests": reserved, "limits": reserved},
            "securityContext": {
                "runAsUser": 0,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"], "add": _CAPABILITIES},
            },
            "volumeMounts": [
                {"name": "state", "mountPath": STATE},
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "vartmp", "mountPath": "/var/tmp"},
            ],
        }

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        # The node's kubelet confirms each end, also with the shortest grace: without it a pod might run on unseen.
        how: dict[str, Any] = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 1} if force else {})}
        for label in handles:
            self._delete(f"{self._batch}/jobs/{label}", how)
            if force:
                for pod in self._listed("pods", KubePodPage, f"{PILOT}={label}"):
                    self._delete(f"{self._core}/pods/{pod.metadata.name}", {"gracePeriodSeconds": 1})
            self._delete(f"{self._core}/secrets/{label}", {})

    def _delete(self, path: str, how: Mapping[str, Any]) -> None:
        answer = self._ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **how})
        if not answer.is_well and answer.status != 404:
            raise EngineFault("KubernetesSaid", _told(answer))

    def list(self, tag: str) -> list[ForeignPilot]:
        chosen, start = f"{PROVIDER}={tag}", f"yard-{tag}-"
        jobs = {each.metadata.name: each for each in self._listed("jobs", KubeJobPage, chosen)}
        pods: dict[str, KubePod] = {}
        for pod in self._listed("pods", KubePodPage, chosen):
            label = pod.metadata.labels.get(PILOT, "")
            if label not in pods or _rank(pod) > _rank(pods[label]):
                pods[label] = pod
        labels = [
            each for each in sorted(jobs.keys() | pods.keys()) if LABEL.fullmatch(each) and each.startswith(start)
        ]
        found = [_read(label, jobs.get(label), pods.get(label)) for label in labels]
        self._sweep(chosen, {each.label for each in found if each.phase is not ForeignPhase.ENDED})
        return found

    def _sweep(self, chosen: str, needed: set[str]) -> None:
        """Delete Secrets of pilots that are not there any more, or never came to be."""
        before = timezone.now() - timedelta(seconds=ORPHAN_S)
        for each in self._listed("secrets", KubeSecretPage, chosen, _METADATA):
            name, made_at = each.metadata.name, each.metadata.creation_timestamp
            if name not in needed and LABEL.fullmatch(name) and made_at is not None and made_at < before:
                self._delete(f"{self._core}/secrets/{name}", {})

    def _listed(self, kind: str, page: type[Any], selector: str, accept: str = "") -> Iterator[Any]:
        """Yield the objects of a kind that have a label, page by page."""
        where = f"{self._batch if kind == 'jobs' else self._core}/{kind}"
        asks = {"labelSelector": selector, "limit": str(PAGE)}
        for _ in range(MOST_PAGES):
            answer = self._ask("GET", f"{where}?{urlencode(asks)}", accept=accept)
            if not answer.is_well:
                raise EngineFault("KubernetesSaid", _told(answer))
            try:
                read = msgspec.json.decode(answer.body, type=page)
            except (msgspec.DecodeError, RecursionError):
                raise EngineFault("AnswerUnreadable", f"GET {kind}") from None
            yield from read.items or ()
            if not read.metadata.more:
                return
            asks["continue"] = read.metadata.more
        raise EngineFault("EndpointTooLoud", f"GET {kind}")

    def price(self, shape: Mapping[str, Any]) -> float:
        return float(shape.get("price", 0.0))

    def limits(self) -> int | None:
        most: int | None = self.given.get("most")
        return most


def _labels(order: PilotOrder) -> dict[str, str]:
    tag = order.label.split("-")[1]
    return {"app.kubernetes.io/managed-by": "switchyard", PROVIDER: tag, PILOT: order.label}


def _devices(shape: Mapping[str, Any]) -> dict[str, str]:
    """Return what a device plugin is to reserve. Raises EngineRefused where it is not known which one."""
    counts: dict[str, int] = {}
    for device in shape.get("devices", ()):
        if device["kind"] == "cpu":
            continue
        vendor = (device.get("vendor") or device.get("model", "").partition(" ")[0]).lower()
        resource = shape.get("resource") or PLUGINS.get(vendor)
        if resource is None:
            raise EngineRefused("DeviceUnnamed", shape["name"])
        counts[resource] = counts.get(resource, 0) + device.get("count", 1)
    return {resource: str(count) for resource, count in counts.items()}


def _told(answer: endpoint.EndpointAnswer) -> str:
    try:
        return f"{answer.status} {answer.in_words(_refusal(answer.body).message)}"
    except (msgspec.DecodeError, RecursionError):
        return f"{answer.status} {answer.said}"


def _rank(pod: KubePod) -> int:
    """How much a pod counts, should a Job have several: one that runs before one that waits, and that before others."""
    return {"Running": 2, "Pending": 1, "Unknown": 2}.get(pod.status.phase, 0)


def _read(label: str, job: KubeJob | None, pod: KubePod | None) -> ForeignPilot:
    """Read what there is of one pilot. Raises EngineFault where it makes no sense."""
    is_over = job is None or any(
        each.type in ("Complete", "Failed") and each.status == "True" for each in job.status.conditions
    )
    if pod is None:
        return ForeignPilot(label, label, ForeignPhase.ENDED if is_over else ForeignPhase.QUEUED)
    match pod.status.phase:
        # Of a pod whose node is out of contact nobody knows the end.
        case "Running" | "Unknown":
            return ForeignPilot(label, label, ForeignPhase.RUNNING, _ends_at(pod))
        case "Pending" | "":
            return ForeignPilot(label, label, ForeignPhase.QUEUED)
        case "Succeeded" | "Failed":
            return ForeignPilot(label, label, ForeignPhase.ENDED)
    raise EngineFault("AnswerUnreadable", "GET pods")


def _ends_at(pod: KubePod) -> float | None:
    """Return when a pod ends: at its deadline, or when the grace of an eviction or a preemption is over."""
    ends = [pod.metadata.deletion_timestamp.timestamp()] if pod.metadata.deletion_timestamp else []
    if pod.status.start_time is not None and pod.spec.active_deadline_seconds is not None:
        ends.append(pod.status.start_time.timestamp() + pod.spec.active_deadline_seconds)
    return min(ends, default=None)


def engine(given: Mapping[str, Any]) -> KubernetesCluster:
    return KubernetesCluster(given)
