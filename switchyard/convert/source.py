"""Reads a document of another system, and knows what of it was not read."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from switchyard.problem import SpecError

MOST_DROPPED: Final = 200
_QUANTITY: Final = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversion:
    """A job file, and what of the source is not in it: where it stands there, and why."""

    spec: dict[str, Any]
    dropped: list[tuple[str, str]]


@dataclass(slots=True)
class Source:
    """A document from which values are taken; what is left in the end was dropped."""

    document: dict[str, Any]
    dropped: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.document = copy.deepcopy(self.document)

    def take(self, *path: str) -> Any:
        """Return the value at a path, and remove it; None if there is none."""
        place: Any = self.document
        for step in path[:-1]:
            place = place.get(step) if isinstance(place, dict) else None
        return place.pop(path[-1], None) if isinstance(place, dict) else None

    def text(self, *path: str) -> str:
        """Return the text or number at a path as text, and remove it; anything else is dropped."""
        found = self.take(*path)
        if found is None or (isinstance(found, str | int | float) and not isinstance(found, bool)):
            return "" if found is None else str(found)
        self.drop(".".join(path), "it is no text")
        return ""

    def whole(self, *path: str) -> int | None:
        """Return the whole number at a path, and remove it; anything else is dropped."""
        found = self.text(*path)
        if re.fullmatch(r"[0-9]{1,9}", found):
            return int(found)
        if found:
            self.drop(".".join(path), f"{found[:40]!r} is no whole number")
        return None

    def mapping(self, *path: str) -> dict[str, Any]:
        """Return the mapping at a path, and remove it."""
        found = self.take(*path)
        if isinstance(found, dict):
            return {str(key): value for key, value in found.items()}
        if found is not None:
            self.drop(".".join(path), "it is no mapping")
        return {}

    def drop(self, where: str, why: str) -> None:
        self.dropped.append((where, why))

    def end(self, spec: dict[str, Any], reasons: Mapping[str, str]) -> Conversion:
        """Return the conversion; what was not taken is dropped, with the reason of the longest path above it."""
        for where in _leaves(self.document):
            above = [path for path in reasons if where == path or where.startswith((f"{path}.", f"{path}["))]
            self.drop(where, reasons[max(above, key=len)] if above else "a job file has no key for it")
        written = {key: value for key, value in spec.items() if value not in (None, {}, [], "")}
        most = self.dropped[:MOST_DROPPED]
        if len(self.dropped) > MOST_DROPPED:
            most.append(("...", f"and {len(self.dropped) - MOST_DROPPED} more"))
        return Conversion({"apiVersion": "v1", "kind": "Job", **written}, most)


def _leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in _leaves(each, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list):
        return [leaf for at, each in enumerate(value) for leaf in _leaves(each, f"{path}[{at}]")]
    return [path]


def quantity(text: object, unit: str = "") -> int | None:
    """Read bytes as Kubernetes and others write them: ``8Gi``, ``512M``, ``64GB``; a bare number has ``unit``. None for
    anything else."""
    found = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([kKMGT]?i?)[bB]?\+?\s*", str(text))
    if not found or (found[2] or unit) not in _QUANTITY:
        return None
    return int(float(found[1]) * _QUANTITY[found[2] or unit])


def size(count: int) -> str | int:
    """Write bytes for a job file: in the largest unit that is exact, else as a number."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "GB", "MB"):
        factor = _QUANTITY[unit[:-1] if unit.endswith("iB") else unit[0]]
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return count


def name(text: str) -> str:
    """Return a name that a job file accepts, as near to the given one as can be."""
    clean = re.sub(r"[^\w .,:;=+@#()\[\]~-]", "-", text)[:100].strip()
    return re.sub(r"^\W+", "", clean)


def variables(source: Source, where: str, given: Any) -> dict[str, str]:
    """Return variables from a mapping or a list of ``NAME=VALUE``; names without a value are dropped."""
    found: dict[str, str] = {}
    items = given.items() if isinstance(given, dict) else []
    if isinstance(given, list):
        pairs = [str(each).partition("=") for each in given if isinstance(each, str)]
        items = [(key, value if equals else None) for key, equals, value in pairs]
    for key, value in items:
        if value is None or isinstance(value, dict | list):
            source.drop(f"{where}.{key}", "it has no value here; give it with --env, or as a secret of the project")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", str(key)) or str(key).startswith("YARD_"):
            source.drop(f"{where}.{key}", "it is no name of a variable, or one of Switchyard's own")
        else:
            found[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def mapped(document: object, what: str) -> dict[str, Any]:
    """Return the document if it is a mapping. Raises SpecError."""
    if not isinstance(document, dict):
        raise SpecError(f"{what} must be one mapping of keys")
    return document
