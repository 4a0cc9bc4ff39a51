"""Public data of device models: peak rates by precision, bandwidth and watts, from ``models.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Model:
    """``features`` are dense peak rates, as ``source`` gives them.

    ``memory_bytes`` is used if a vendor's tool reports none; ``idle_watts`` for simulated devices only.
    """

    name: str
    vendor: str
    match: str
    features: dict[str, float]
    memory_bytes: int
    idle_watts: float
    source: str


@functools.cache
def models() -> tuple[Model, ...]:
    content = tomllib.loads((Path(__file__).parent / "models.toml").read_text())
    return tuple(
        Model(
            name=entry["name"],
            vendor=entry["vendor"],
            match=entry["match"],
            features=entry["features"],
            memory_bytes=int(entry["memory_gib"]) << 30,
            idle_watts=float(entry["idle_watts"]),
            source=entry["source"],
        )
        for entry in content["device"]
    )


def named(name: str) -> Model:
    return next(model for model in models() if model.name == name)


def known(vendor: str, model: str) -> Model | None:
    """Return the data of a model by its name in the vendor's tool; None if there are none."""
    return next(
        (each for each in models() if each.vendor == vendor and re.search(each.match, model, re.IGNORECASE)), None
    )


def features(vendor: str, model: str) -> dict[str, float]:
    """Return the rates of a model; empty if there are no data."""
    found = known(vendor, model)
    return dict(found.features) if found else {}
