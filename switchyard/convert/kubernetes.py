"""A Job of Kubernetes as a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from switchyard.convert.source import Conversion, Source, mapped, name, quantity, size
from switchyard.problem import SpecError

VENDORS: Final[Mapping[str, tuple[str, str]]] = {
    "nvidia.com": ("gpu", "nvidia"),
    "amd.com": ("gpu", "amd"),
    "gpu.intel.com": ("gpu", "intel"),
    "habana.ai": ("gpu", "habana"),
    "huawei.com": ("npu", "huawei"),
    "google.com": ("tpu", "google"),
}
STORAGE: Final = "a `hostPath` becomes one of `mounts`; what a claim holds must lie in a folder of the nodes"
REASONS: Final[Mapping[str, str]] = {
    "metadata.namespace": "`project` says who it is charged to",
    "metadata.annotations": "labels of a job file are for finding it; there are no annotations",
    "spec.ttlSecondsAfterFinished": "what has ended is kept as the installation and the project say",
    "spec.template.metadata": "a stage has no metadata of its own",
    "spec.template.spec.volumes": STORAGE,
    "spec.template.spec.containers[0].volumeMounts": STORAGE,
    "spec.template.spec.containers[0].envFrom": "name each variable under `env`, or each secret under `secrets`",
    "spec.template.spec.containers[0].resources.limits": "a stage gets what it asks for, and no more",
    "spec.template.spec.containers": "a stage has one container; others become stages, by hand",
    "spec.template.spec.initContainers": "write it as a stage that this one `needs`",
    "spec.template.spec.nodeSelector": "see `pool`, `only_on`, `constraint`, `avoid` and `devices` of the job file",
    "spec.template.spec.affinity": "see `topology`, `only_on`, `constraint`, `avoid` and `site` of the job file",
    "spec.template.spec.tolerations": "see `pool` of the job file",
    "spec.template.spec.restartPolicy": "a new attempt is a new container always",
    "spec.podFailurePolicy": "see `retry` of the job file",
}


def convert(document: object) -> Conversion:
    """Convert a Job (``batch/v1``). Raises SpecError for anything else."""
    source = Source(mapped(document, "a Job of Kubernetes"))
    kind, version = source.text("kind"), source.text("apiVersion")
    if kind != "Job" or not version.startswith("batch/"):
        raise SpecError(f"a Job of batch/v1 can be converted, not {kind or 'a document'} of {version or 'no version'}")
    labels = source.mapping("metadata", "labels")
    queue = labels.pop("kueue.x-k8s.io/queue-name", "")
    pod = ("spec", "template", "spec")
    spec: dict[str, Any] = {
        "name": name(source.text("metadata", "name") or source.text("metadata", "generateName")),
        "pool": str(queue),
        "priority": source.text(*pod, "priorityClassName"),
        "labels": {key: str(value) for key, value in labels.items()},
        "hold": source.take("spec", "suspend") is True or None,
        "time_limit": source.whole("spec", "activeDeadlineSeconds"),
    }
    tries = source.whole("spec", "backoffLimit")
    spec["retry"] = {"max": tries + 1} if tries else None
    grace = source.whole(*pod, "terminationGracePeriodSeconds")
    spec["preemption"] = {"grace": f"{min(grace, 900)}s"} if grace else None
    spec["array"] = _array(source)
    containers = source.take(*pod, "containers")
    rest = _listed(containers)
    first = _mapped(rest[0]) if rest else {}
    if isinstance(place := _place(source.document, pod), dict) and rest:
        place["containers"] = [first, *rest[1:]]
    spec["mounts"] = _mounts(source, pod, first)
    _container(source, first, spec)
    return source.end(spec, REASONS)


def _place(document: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        document = document.get(step) if isinstance(document, dict) else None
    return document


def _mounts(source: Source, pod: tuple[str, ...], container: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the folders of the nodes that the container mounts, and leave the other volumes in the document."""
    volumes = _listed(source.take(*pod, "volumes"))
    folders = {
        str(each["name"]): str(path)
        for each in map(_mapped, volumes)
        if each.get("name") and (path := _mapped(each.get("hostPath")).get("path"))
    }
    found, rest = [], []
    for each in _listed(container.pop("volumeMounts", None)):
        one = _mapped(each)
        if (folder := folders.get(str(one.get("name")))) and one.get("mountPath"):
            below = str(one.get("subPath") or "").strip("/")
            folder = f"{folder.rstrip('/')}/{below}" if below else folder
            found.append({"source": folder, "path": str(one["mountPath"]), "readonly": one.get("readOnly") is True})
        else:
            rest.append(each)
    if rest:
        container["volumeMounts"] = rest
    if others := [each for each in volumes if _mapped(each).get("name") not in folders]:
        place = _place(source.document, pod)
        place["volumes"] = others
    return found


def _array(source: Source) -> dict[str, Any] | None:
    """Return the array that stands for completions."""
    count, at_once = source.whole("spec", "completions"), source.whole("spec", "parallelism")
    mode = source.text("spec", "completionMode")
    count = count or at_once or 1
    if count == 1:
        return None
    if mode != "Indexed":
        source.drop("spec.completions", "its pods become an array, each with an index of its own (YARD_ARRAY_INDEX)")
    return {"indexes": f"0-{count - 1}", **({"max_parallel": at_once} if at_once and at_once < count else {})}


def _container(source: Source, container: dict[str, Any], spec: dict[str, Any]) -> None:
    at = "spec.template.spec.containers[0]"
    container.pop("name", None)
    container.pop("imagePullPolicy", None)
    spec["image"] = str(container.pop("image", "") or "")
    command, arguments = container.pop("command", None) or [], container.pop("args", None) or []
    words = [str(word) for part in (command, arguments) for word in (part if isinstance(part, list) else [part])]
    if words and not command:
        source.drop(f"{at}.command", "the image's own entry point is not known here; write it before the arguments")
    spec["command"] = [re.sub(r"\$\(([A-Za-z_]\w*)\)", r"${\1}", word) for word in words]
    if spec["command"] != words:
        source.drop(f"{at}.args", "$(NAME) is filled by a shell alone: let the command be one, as in sh -c")
    if folder := container.pop("workingDir", None):
        source.drop(f"{at}.workingDir", f"let the command go there: cd {folder}")
    env, secrets = {}, []
    for index, each in enumerate(_listed(container.pop("env", None))):
        if not isinstance(each, dict):
            source.drop(f"{at}.env[{index}]", "it is no mapping")
            continue
        reference = {} if "value" in each else _mapped(_mapped(each.get("valueFrom")).get("secretKeyRef"))
        variable = str(each.get("name", ""))
        if reference:
            secrets.append({"name": str(reference.get("key", variable)), "env": variable})
        elif "valueFrom" in each:
            source.drop(f"{at}.env[{index}]", f"{variable} is told from elsewhere; see what a stage is given")
        else:
            env[variable] = str(each.get("value", ""))
    spec["env"], spec["secrets"] = env, secrets
    resources = _mapped(container.get("resources"))
    asked = {**_mapped(resources.pop("limits", None)), **_mapped(resources.pop("requests", None))}
    _resources(source, asked, spec, f"{at}.resources")


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _mapped(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _resources(source: Source, asked: dict[str, Any], spec: dict[str, Any], at: str) -> None:
    for key, value in asked.items():
        vendor, slash, what = str(key).partition("/")
        if key == "cpu":
            found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(m?)", str(value))
            spec["cpus"] = float(found[1]) / (1000 if found[2] else 1) if found else None
            if spec["cpus"] and spec["cpus"] == int(spec["cpus"]):
                spec["cpus"] = int(spec["cpus"])
        elif key == "memory" and (count := quantity(value)):
            spec["memory"] = size(count)
        elif key == "ephemeral-storage" and (count := quantity(value)):
            spec["disk"] = size(count)
        elif slash and vendor in VENDORS and str(value).isdecimal() and "devices" not in spec:
            kind, maker = VENDORS[vendor]
            named = {}
            if what.startswith("mig-"):
                named = {"partition": what.removeprefix("mig-")}
            elif what.lower().startswith("ascend") and what != "Ascend":
                named = {"model": what}
            spec["devices"] = {"kind": kind, "vendor": maker, **named, "count": int(str(value)[:6])}
        else:
            source.drop(f"{at}.{key}", "a job file has no key for it")
