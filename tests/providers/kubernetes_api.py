"""A scripted API server of Kubernetes for tests: the few routes that the provider asks, with objects in memory.

It is no Kubernetes: no scheduler, no kubelet and no controllers run, and a test says what becomes of a pod. It refuses
what has no token, names that are taken, and bodies that are not what their route is for.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.providers.scripted_http import Asked

TOKEN: Final = "a-service-account-token"
NAMESPACE: Final = "pilots"
_WHERE: Final = {
    "secrets": f"/api/v1/namespaces/{NAMESPACE}/secrets",
    "pods": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "jobs": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
}
_KINDS: Final = {"secrets": "Secret", "pods": "Pod", "jobs": "Job"}
NOW: Final = "2026-11-28T08:00:00Z"


@dataclass
class ScriptedKubernetes:
    """The objects by kind and name. ``refuses`` maps a method and kind to the status and message of a refusal."""

    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in _WHERE})
    refuses: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    page: int = 500
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, asked: Asked) -> tuple[int, bytes]:
        with self.lock:
            return self._answer(asked)

    def _answer(self, asked: Asked) -> tuple[int, bytes]:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        parts = urlsplit(asked.path)
        kind = next((kind for kind, where in _WHERE.items() if parts.path.startswith(where)), None)
        if kind is None:
            return _status(404, "the server could not find the requested resource")
        if (asked.method, kind) in self.refuses:
            return _status(*self.refuses[asked.method, kind])
        name = parts.path.removeprefix(_WHERE[kind]).strip("/")
        match asked.method:
            case "POST" if not name:
                return self._create(kind, json.loads(asked.body))
            case "GET" if not name:
                return self._list(kind, parse_qs(parts.query))
            case "DELETE" if name:
                return self._delete(kind, name)
        return _status(405, "the server does not allow this method on the requested resource")

    def _create(self, kind: str, given: dict[str, Any]) -> tuple[int, bytes]:
        name = given["metadata"]["name"]
        if given["kind"] != _KINDS[kind] or len(name) > 63:
            return _status(400, "the object provided is unrecognized")
        if name in self.objects[kind]:
            return _status(409, f'{kind} "{name}" already exists')
        given["metadata"]["creationTimestamp"] = NOW
        self.objects[kind][name] = given
        if kind == "jobs":
            template = given["spec"]["template"]
            pod = f"{name}-x7k2p"
            self.objects["pods"][pod] = {
                "metadata": {"name": pod, "labels": dict(template["metadata"]["labels"]), "creationTimestamp": NOW},
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }
        return 201, json.dumps(given).encode()

    def _list(self, kind: str, asks: dict[str, list[str]]) -> tuple[int, bytes]:
        name, _, value = asks["labelSelector"][0].partition("=")
        chosen = [each for each in self.objects[kind].values() if each["metadata"].get("labels", {}).get(name) == value]
        start = int(asks.get("continue", ["0"])[0])
        size = min(self.page, int(asks["limit"][0]))
        more = {"continue": str(start + size)} if len(chosen) > start + size else {}
        return 200, json.dumps({"metadata": more, "items": chosen[start : start + size] or None}).encode()

    def _delete(self, kind: str, name: str) -> tuple[int, bytes]:
        if self.objects[kind].pop(name, None) is None:
            return _status(404, f'{kind} "{name}" not found')
        if kind == "jobs":
            # As a kubelet and the garbage collector would, a little later.
            self.objects["pods"] = {
                pod: each for pod, each in self.objects["pods"].items() if not pod.startswith(f"{name}-")
            }
        return 200, json.dumps({"kind": "Status", "status": "Success"}).encode()

    def runs(self, name: str, started: str = NOW, **metadata: Any) -> None:
        """The pod of a Job runs from then on."""
        pod = self.objects["pods"][f"{name}-x7k2p"]
        pod["status"] = {"phase": "Running", "startTime": started}
        pod["metadata"] |= metadata

    def ends(self, name: str, phase: str = "Failed") -> None:
        """The pod of a Job has ended, and so has the Job."""
        self.objects["pods"][f"{name}-x7k2p"]["status"]["phase"] = phase
        kind = "Failed" if phase == "Failed" else "Complete"
        self.objects["jobs"][name]["status"] = {"conditions": [{"type": kind, "status": "True"}]}


def _status(code: int, message: str) -> tuple[int, bytes]:
    return code, json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code}).encode()
