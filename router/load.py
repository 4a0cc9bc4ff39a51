"""How busy an engine says that it is: requests that it runs and lets wait, how full its cache is, and how large.

Engines tell it in Prometheus' text format under names of their own, which the control plane's templates map to ours.
What a replica sends is bounded, and a number that makes no sense counts as not told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from router.protocol import EngineLoad

PATH: Final = "/metrics"
MOST_BYTES: Final = 2**20
MOST: Final = 2**40
_LINE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]{0,199})(?:\{([^\n]{0,8000})\})?[ \t]+([0-9eE.+-]{1,40})")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]{0,99})="((?:[^"\\]|\\.){0,200})"')


def read(text: str, names: Mapping[str, Sequence[str]]) -> EngineLoad:
    """Read what an engine tells by the map of its names, of which the first that is there counts.

    Counts of several series (one per model or rank) are added up, of shares the largest counts. ``room`` is how many
    tokens the cache has room for: a series, or the product of two labels of one, as ``name{blocks,size}``.
    """
    wanted = {name.partition("{")[0] for names_of in names.values() for name in names_of}
    found: dict[str, list[tuple[str, float]]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None and match[1] in wanted and (value := _number(match[3])) is not None:
            found.setdefault(match[1], []).append((match[2] or "", value))
    share = max((value for _, value in _first(found, names.get("cache", ()))), default=None)
    return EngineLoad(
        running=_count(_first(found, names.get("running", ()))),
        waiting=_count(_first(found, names.get("waiting", ()))),
        cache=share if share is not None and share <= 1 else None,
        room=_room(found, names.get("room", ())),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= MOST else None


def _first(found: Mapping[str, list[tuple[str, float]]], names: Iterable[str]) -> list[tuple[str, float]]:
    return next((found[name] for name in names if name in found), [])


def _count(series: Sequence[tuple[str, float]]) -> int | None:
    return int(sum(value for _, value in series)) if series else None


def _room(found: Mapping[str, list[tuple[str, float]]], names: Iterable[str]) -> int | None:
    for each in names:
        name, _brace, labels = each.partition("{")
        for given, value in found.get(name, ()):
            if not labels:
                return int(value)
            told = dict(_LABEL.findall(given))
            sizes = [_number(told.get(label, "")) for label in labels.rstrip("}").split(",")]
            if all(sizes):
                return int(min(MOST, math.prod(size or 0.0 for size in sizes)))
    return None
