"""Counterfactuals as changes of a job: the merge patch of its job file by which a tried change is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.jobs.change import works_alike
from scheduler.core.explain.counterfactual import CounterfactualChange

Patch = dict[str, Any]
OF_JOB = frozenset({"hold", "pool", "priority", "reservation"})


def patch_of(changes: tuple[CounterfactualChange, ...], spec: Mapping[str, Any], stage: str) -> Patch | None:
    """Return the merge patch that makes all these changes for a stage, or None if some need something else.

    Whoever may change the job can apply it with ``PATCH /api/v1/jobs/NAME``.
    """
    patch: Patch = {}
    own = next((each for each in spec.get("stages") or [] if each.get("name") == stage), None)
    for change in changes:
        one = _one(change, spec, own or {})
        if one is None:
            return None
        for key, value in one.items():
            if (
                own is not None
                and key not in ("hold", "pool", "priority", "reservation")
                and (key in own or value is not None)
            ):
                patch.setdefault("stages", {}).setdefault(stage, {})[key] = value
            else:
                patch[key] = value
    return patch


def _one(change: CounterfactualChange, spec: Mapping[str, Any], own: Mapping[str, Any]) -> Patch | None:
    """Return the keys of the job file that make one change, or None."""
    params = change.params
    match change.kind:
        case "release":
            return {"hold": False}
        case "begin":
            return {"begin": None}
        case "reservation":
            return {"reservation": None}
        case "limit":
            return {"time_limit": params["limit_s"]}
        case "pool":
            return {"pool": params["pool"]}
        case "priority":
            return {"priority": params["name"]}
        case "nodes":
            return {"nodes": params["nodes"]}
        case "disk":
            return {"disk": f"{params['gib']}GiB"}
        case "domain":
            return {"topology": None}
        case "avoid":
            return {"avoid": None}
        case "only":
            return {key: None for key in ("only_on", "constraint") if key in own or key in spec}
        case "devices":
            return _devices(spec, own, lambda way: {"count": min(way.get("count", 1), params["count"])})
        case "model":
            return _devices(spec, own, lambda way: {**_without(way, "model", "vendor"), "kind": params["kind"]})
        case "kind":
            return _devices(
                spec, own, lambda way: {**_without(way, "model", "vendor", "memory"), "kind": params["kind"]}
            )
    return None


def _devices(spec: Mapping[str, Any], own: Mapping[str, Any], turn: Callable[[Patch], Patch]) -> Patch | None:
    """Return ``devices`` with each ask for an accelerator merged with what ``turn`` gives.

    None if the file names no devices, or they cannot change.
    """
    asked = own.get("devices") or spec.get("devices")
    if not isinstance(asked, dict) or not works_alike(asked):
        return None
    if "any_of" not in asked:
        return {"devices": turn(asked)}
    # A list is replaced as a whole.
    ways = [way if way.get("kind") == "cpu" else {**way, **turn(way)} for way in asked["any_of"]]
    kept = [{name: value for name, value in way.items() if value is not None} for way in ways]
    return {"devices": {"any_of": kept}}


def _without(way: Patch, *names: str) -> Patch:
    return dict.fromkeys((name for name in names if name in way), None)
