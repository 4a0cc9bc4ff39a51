"""A snapshot as canonical JSON and back: the same world gives the same bytes, whatever order it was read in.

Keys are sorted, lists of things with an id are sorted by it, and floats are rounded to a millionth.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from scheduler.core.model.types import Plan, Snapshot

FORMAT = 1


def dump(value: Snapshot | Plan, now: float | None = None) -> str:
    """The canonical text of a snapshot (taken ``now``) or of a plan."""
    kind = type(value).__name__.lower()
    body = {"format": FORMAT, kind: _plain(_sorted(value) if isinstance(value, Snapshot) else value)}
    if now is not None:
        body["now"] = round(now, 6)
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def load(text: str) -> tuple[Snapshot, float | None]:
    """Return the snapshot that :func:`dump` wrote, and its time. Raises ``ValueError`` with what is wrong and where."""
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the snapshot is not JSON: {error}") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT or "snapshot" not in body:
        raise ValueError(f'a snapshot file is an object with "format": {FORMAT} and "snapshot"')
    now = body.get("now")
    if now is not None and not isinstance(now, (int, float)):
        raise ValueError('"now" must be a number of seconds since the epoch')
    return typing.cast(Snapshot, _build(Snapshot, body["snapshot"], "snapshot")), now


def _sorted(world: Snapshot) -> Snapshot:
    return dataclasses.replace(
        world,
        nodes=tuple(
            dataclasses.replace(
                node, devices=tuple(sorted(node.devices, key=lambda one: one.id)), pools=tuple(sorted(node.pools))
            )
            for node in sorted(world.nodes, key=lambda one: one.id)
        ),
        waiting=tuple(sorted(world.waiting, key=lambda one: one.id)),
        running=tuple(sorted(world.running, key=lambda one: one.id)),
        projects=tuple(sorted(world.projects, key=lambda one: one.id)),
        quotas=tuple(sorted(world.quotas, key=lambda one: (one.cohort, one.project, one.kind))),
        limits=tuple(sorted(world.limits, key=lambda one: one.number)),
        budgets=tuple(sorted(world.budgets, key=lambda one: one.number)),
        pools=tuple(sorted(world.pools, key=lambda one: one.name)),
        maintenance=tuple(sorted(world.maintenance, key=lambda one: one.id)),
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):  # (kind, model) pairs have no place in a JSON key
            return [[list(key), _plain(value[key])] for key in sorted(value)]
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


@cache
def _hints(shape: type) -> dict[str, Any]:
    return typing.get_type_hints(shape)


def _build(shape: Any, value: Any, at: str) -> Any:
    """``value`` as an instance of ``shape``; ``at`` is where in the document we are."""
    origin, args = typing.get_origin(shape), typing.get_args(shape)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _build(next(one for one in args if one is not type(None)), value, at)
    if dataclasses.is_dataclass(shape) and isinstance(shape, type):
        if not isinstance(value, dict):
            raise ValueError(f"{at} must be an object")
        hints = _hints(shape)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            raise ValueError(f"{at} has no field {unknown[0]!r}; it takes {', '.join(hints)}")
        try:
            return shape(**{name: _build(hints[name], one, f"{at}.{name}") for name, one in value.items()})
        except TypeError as error:
            raise ValueError(f"{at}: {error}") from None
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{at} must be a list")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], one, f"{at}[{i}]") for i, one in enumerate(value))
        if len(value) != len(args):
            raise ValueError(f"{at} must have {len(args)} items")
        return tuple(_build(kind, one, f"{at}[{i}]") for i, (kind, one) in enumerate(zip(args, value, strict=True)))
    if origin is not None and issubclass(origin, Mapping):
        pairs = value.items() if isinstance(value, dict) else value
        return {_build(args[0], key, at): _build(args[1], one, f"{at}.{key}") for key, one in pairs}
    if isinstance(shape, type) and issubclass(shape, Enum):
        try:
            return shape(value)
        except ValueError:
            raise ValueError(f"{at} is {value!r}; it must be one of {', '.join(one.value for one in shape)}") from None
    if shape is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(shape, type) and shape is not object and not isinstance(value, shape):
        raise ValueError(f"{at} is {value!r}; it must be of type {shape.__name__}")
    return value
