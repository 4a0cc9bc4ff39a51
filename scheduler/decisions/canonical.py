"""Canonical MessagePack of snapshots and plans, in pieces that can be compared: equal worlds give equal bytes.

Keys are sorted, objects with an id are sorted by it, whole numbers stay integers. Floats keep all their bits, because
an equal plan needs equal inputs; the engine already rounds scores and prices to a millionth.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import msgspec

from scheduler.core.model.types import Plan, Snapshot

Pieces = dict[str, dict[str, Any]]
"""A snapshot by field and key: each node, stage, right ... is one piece. ``""`` is the key of a field that is one."""


def _plain_number(value: Any) -> Any:
    """Convert a numpy scalar to a plain number."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} has no place in a snapshot")


_ENCODER = msgspec.msgpack.Encoder(order="sorted", enc_hook=_plain_number)


def encode(value: Any) -> bytes:
    """Encode one piece as canonical bytes."""
    return _ENCODER.encode(value)


@cache
def shapes() -> Mapping[str, tuple[Any, bool]]:
    """Return for each field of a snapshot the type of its pieces, and whether there are many."""
    found = {}
    for name, shape in typing.get_type_hints(Snapshot).items():
        args = typing.get_args(shape)
        many = typing.get_origin(shape) is tuple and args[1:] == (Ellipsis,) and is_dataclass(args[0])
        found[name] = (args[0] if many else shape, many)
    return found


@cache
def _paired(field: str) -> bool:
    """Whether the field is a mapping with keys other than strings, which MessagePack stores as sorted pairs."""
    shape = shapes()[field][0]
    origin, args = typing.get_origin(shape), typing.get_args(shape)
    return isinstance(origin, type) and issubclass(origin, Mapping) and args[0] is not str


@cache
def _decoder(field: str) -> msgspec.msgpack.Decoder[Any]:
    shape = shapes()[field][0]
    return msgspec.msgpack.Decoder(list[tuple[typing.get_args(shape)]] if _paired(field) else shape)  # type: ignore[misc]


def key(piece: Any) -> str:
    """Return the key of a piece within its field."""
    for name in ("id", "name"):
        if hasattr(piece, name):
            return str(getattr(piece, name))
    if hasattr(piece, "project") and hasattr(piece, "kind"):
        return "\x1f".join(str(getattr(piece, name, "")) for name in ("cohort", "project", "kind", "model"))
    return hashlib.blake2b(encode(piece), digest_size=12).hexdigest()


def pieces(world: Snapshot) -> Pieces:
    """Split a snapshot into pieces."""
    found: Pieces = {}
    for name, (_, many) in shapes().items():
        value = getattr(world, name)
        if many:
            found[name] = {key(one): one for one in value}
        else:
            found[name] = {"": sorted(value.items()) if _paired(name) else value}
    return found


def changes(before: Snapshot | None, after: Snapshot) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return by field the pieces of two snapshots that may differ, before and after; all of them if there was none
    before.

    Identical objects are equal and are not compared: stores keep unchanged objects.
    """
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for name, (_, many) in shapes().items():
        old: Any = () if before is None else getattr(before, name)
        new = getattr(after, name)
        if before is not None and old is new:
            continue
        if many:
            known, here = set(map(id, old)), set(map(id, new))
            found[name] = (
                {key(one): one for one in old if id(one) not in here},
                {key(one): one for one in new if id(one) not in known},
            )
        else:
            was = {} if before is None else {"": sorted(old.items()) if _paired(name) else old}
            found[name] = (was, {"": sorted(new.items()) if _paired(name) else new})
    return found


def whole(parts: Mapping[str, Mapping[str, Any]]) -> Snapshot:
    """Join pieces to a snapshot, each field in the order of its keys. Missing fields take their defaults."""
    given: dict[str, Any] = {}
    for field in fields(Snapshot):
        if field.name in parts:
            many, found = shapes()[field.name][1], parts[field.name]
            one = dict(found[""]) if _paired(field.name) else None if many else found[""]
            given[field.name] = tuple(found[name] for name in sorted(found)) if many else one
    return Snapshot(**given)


def decode(field: str, content: bytes) -> Any:
    """Decode a piece of a snapshot's ``field`` that :func:`encode` wrote. Raises ``ValueError`` for anything else."""
    try:
        return _decoder(field).decode(content)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a recorded piece of {field} cannot be read: {error}") from None


def plan_bytes(plan: Plan) -> bytes:
    """Return the canonical bytes of a plan, by which two plans are compared."""
    return encode(plan)


def digest(plan: Plan) -> str:
    """Return sixteen bytes of the plan's digest in hexadecimal."""
    return hashlib.blake2b(plan_bytes(plan), digest_size=16).hexdigest()
