"""Decodes data from jobs, tools and peers: bounded, typed, and as text that can be sent on.

JSON from untrusted sources can be nested without end, have numbers of any length, and contain lone surrogates, which
UTF-8 cannot encode. Each of these would break a later step, so all of it is checked here.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, Generic, TypeVar

import msgspec

from agents.supervisor.small_file import content

T = TypeVar("T")

# The largest whole number of the protocol's types: exact in JSON in every language.
LARGEST: Final = 2**53
LARGEST_FLOAT: Final = 1e300


class Undecodable(ValueError):
    """The text is not acceptable JSON; the message tells why."""


def parse(text: bytes | str) -> Any:
    """Parse a JSON text. Raises Undecodable, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise Undecodable("it is nested too deep") from None
    except ValueError as error:  # broken JSON, broken UTF-8, and numbers of thousands of digits
        raise Undecodable(str(error)[:200]) from None


class BoundedDecoder(Generic[T]):
    """Decodes JSON texts of one msgspec type, whose numbers, texts and lists are bounded."""

    def __init__(self, kind: Any, packed: bool = False) -> None:
        """``packed`` decodes msgpack instead."""
        self.kind, self.is_packed = kind, packed
        decoder: Any = msgspec.msgpack.Decoder(kind) if packed else msgspec.json.Decoder(kind)
        self._decode = decoder.decode

    def read(self, text: bytes | str) -> T:
        """Decode a text. Raises Undecodable, whatever is wrong with it."""
        try:
            value: T = self._decode(text)
        except RecursionError:
            raise Undecodable("it is nested too deep") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise Undecodable(str(error)[:200]) from error
        return value

    def find(self, path: str) -> T | None:
        """Decode a small file; None if it is missing or invalid."""
        if (text := content(path)) is None:
            return None
        try:
            return self.read(text)
        except Undecodable:
            return None


def mapping(text: bytes | str) -> dict[str, Any]:
    """Parse the JSON object in a text; empty if it has none."""
    try:
        value = parse(text)
    except Undecodable:
        return {}
    return value if isinstance(value, dict) else {}


def number(value: object) -> int | float | None:
    """Return a whole number up to LARGEST or a finite other one; None for everything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
    return value if abs(value) <= most else None


def count(value: object) -> int | None:
    """Return a whole number from 0 to LARGEST, without its fraction; None for everything else."""
    found = number(value)
    # A float may be far larger.
    return None if found is None or found < 0 or int(found) > LARGEST else int(found)


def digits(text: str | bytes) -> int | None:
    """Parse a whole number in decimal ASCII digits, up to LARGEST; None for every other text."""
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        return None
    found = int(text)
    return found if found <= LARGEST else None


def words(value: object, most: int) -> str:
    """Return at most ``most`` characters of a text, without lone surrogates and NUL; empty for no text."""
    if not isinstance(value, str):
        return ""
    return value[:most].replace("\0", "").encode("utf-8", "replace").decode()


def path_text(value: object, most: int = 4096) -> str:
    """Return a path unchanged, because a cut one would be another path; empty if it cannot be sent."""
    return value if isinstance(value, str) and len(value) <= most and words(value, most) == value else ""


def sendable(value: Any) -> Any:
    """Return plain values in a form that can be sent: texts without lone surrogates, whole numbers up to LARGEST."""
    if isinstance(value, str):
        return words(value, len(value))
    if isinstance(value, dict):
        return {sendable(key): sendable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-LARGEST, min(LARGEST, value))
    return value


def setting(name: str, default: int) -> int:
    """Return a whole number from the environment variable ``name``. Raises ValueError for anything else."""
    told = os.environ.get(name, "")
    if not told:
        return default
    found = digits(told)
    if found is None:
        raise ValueError(f"{name} must be a whole number from 0 to {LARGEST}, not {sendable(told[:40])!r}")
    return found
