"""The shape of the model and its weights: one flat vector in which every matrix has its place.

Both implementations of the model share this layout, so that a checkpoint written by one can be resumed by the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from finetune.settings import Settings


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer: ``layers`` blocks of attention and a two-layer network over ``width`` numbers."""

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int

    @classmethod
    def of(cls, settings: Settings, vocabulary: int) -> Shape:
        if settings.width % settings.heads:
            raise SystemExit(f"--width {settings.width} must be a multiple of --heads {settings.heads}")
        return cls(vocabulary, settings.context, settings.width, settings.heads, settings.layers)


@dataclass(frozen=True)
class Place:
    """Where one matrix lies in the flat vector."""

    name: str
    dims: tuple[int, ...]
    start: int
    stop: int


def layout(shape: Shape) -> list[Place]:
    """Every matrix in order. A matrix of dims (in, out) is applied as ``x @ matrix``; ``tokens`` serves both ends."""
    width = shape.width
    dims: list[tuple[str, tuple[int, ...]]] = [
        ("tokens", (shape.vocabulary, width)),
        ("places", (shape.context, width)),
    ]
    for block in range(shape.layers):
        dims += [
            (f"{block}.attention.gain", (width,)),
            (f"{block}.attention.in", (width, 3 * width)),
            (f"{block}.attention.out", (width, width)),
            (f"{block}.network.gain", (width,)),
            (f"{block}.network.in", (width, 4 * width)),
            (f"{block}.network.out", (4 * width, width)),
        ]
    dims.append(("gain", (width,)))
    places = []
    start = 0
    for name, size in dims:
        places.append(Place(name, size, start, start + prod(size)))
        start += prod(size)
    return places


def views(flat: Any, shape: Shape) -> dict[str, Any]:
    """The matrices by name, as views into ``flat``, which is a numpy array or a torch tensor."""
    return {place.name: flat[place.start : place.stop].reshape(place.dims) for place in layout(shape)}


def fresh(shape: Shape, seed: int) -> NDArray[np.float32]:
    """First weights: gains of one, the rest small and random, smaller where a block adds to the stream."""
    dice = np.random.default_rng([seed, 0])
    flat = np.zeros(layout(shape)[-1].stop, np.float32)
    for place in layout(shape):
        if place.name.endswith("gain"):
            flat[place.start : place.stop] = 1.0
            continue
        spread = 0.04 if place.name in {"tokens", "places"} else 0.6 / np.sqrt(place.dims[0])
        if place.name.endswith(".out"):
            spread /= np.sqrt(2 * shape.layers)
        flat[place.start : place.stop] = dice.normal(0.0, spread, place.stop - place.start)
    return flat


@dataclass
class State:
    """All that training needs to go on: weights, the two moments of Adam, and how many updates were made."""

    flat: NDArray[np.float32]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    updates: int


def save(path: Path, shape: Shape, flat: NDArray[np.float32]) -> None:
    """Writes a finished model."""
    sizes: dict[str, Any] = asdict(shape)
    np.savez(path, flat=flat, **sizes)


def load(path: Path) -> tuple[Shape, NDArray[np.float32]]:
    """Reads what :func:`save` wrote."""
    if not path.exists():
        raise SystemExit(f"there is no model at {path}: run the stage that makes it first")
    with np.load(path) as file:
        sizes = {name: int(file[name]) for name in Shape.__dataclass_fields__}
        return Shape(**sizes), file["flat"]
