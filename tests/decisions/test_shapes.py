"""Whatever a snapshot may hold can be written and read: a new field that cannot be is found here and not at night."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from scheduler.core.model.types import Plan, Snapshot
from scheduler.decisions import canonical


def parts(shape: Any, at: str, seen: set[type]) -> Iterator[tuple[str, Any]]:
    """All types inside a type, with the place where they stand."""
    yield at, shape
    for arg in typing.get_args(shape):
        if arg is not Ellipsis:
            yield from parts(arg, at, seen)
    if dataclasses.is_dataclass(shape) and isinstance(shape, type) and shape not in seen:
        seen.add(shape)
        for name, inner in typing.get_type_hints(shape).items():
            yield from parts(inner, f"{at}.{name}", seen)


@pytest.mark.parametrize("whole", [Snapshot, Plan])
def test_only_the_fields_of_a_snapshot_itself_map_by_something_else_than_words(whole: type) -> None:
    odd = [
        at
        for at, shape in parts(whole, whole.__name__, set())
        if isinstance(typing.get_origin(shape), type) and issubclass(typing.get_origin(shape), Mapping)
        if typing.get_args(shape)[0] is not str and at.count(".") > 1
    ]
    assert odd == [], "MessagePack sorts words only: give such a field a list of pairs"


def test_every_field_of_a_snapshot_has_a_reader() -> None:
    empty = Snapshot(())
    written = {
        name: {key: canonical.encode(piece) for key, piece in found.items()}
        for name, found in canonical.pieces(empty).items()
    }
    read = {name: {key: canonical.decode(name, raw) for key, raw in found.items()} for name, found in written.items()}
    assert canonical.whole(read) == empty
    assert set(written) == {field.name for field in dataclasses.fields(Snapshot)}


def test_pieces_of_one_field_have_names_of_their_own() -> None:
    for name, (shape, many) in canonical.shapes().items():
        if many:
            fields = {field.name for field in dataclasses.fields(shape)}
            assert fields & {"id", "name", "project"}, (
                f"{name} needs an id, or scheduler.decisions.canonical a key for it"
            )
