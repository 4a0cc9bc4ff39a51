"""What is publicly known of device models: peak rates by precision, bandwidth and watts, from ``devices.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Model:
    """``features`` are dense peak rates; ``memory_bytes`` and ``idle_watts`` serve only simulated devices."""

    name: str
    vendor: str
    match: str
    features: dict[str, float]
    memory_bytes: int
    idle_watts: float


@functools.cache
def models() -> tuple[Model, ...]:
    content = tomllib.loads((Path(__file__).parent / "devices.toml").read_text())
    return tuple(
        Model(
            name=entry["name"],
            vendor=entry["vendor"],
            match=entry["match"],
            features=entry["features"],
            memory_bytes=int(entry["memory_gib"]) << 30,
            idle_watts=float(entry["idle_watts"]),
        )
        for entry in content["device"]
    )


def named(name: str) -> Model:
    return next(model for model in models() if model.name == name)


def features(vendor: str, model: str) -> dict[str, float]:
    """The known rates of a model as its vendor's library names it; empty when nobody wrote them down."""
    for known in models():
        if known.vendor == vendor and re.search(known.match, model, re.IGNORECASE):
            return dict(known.features)
    return {}
