"""What a job, a tool or a peer wrote, decoded once: bounded, typed, and in text that can be sent on.

JSON of strangers can be nested without end, hold numbers of any length, and spell halves of characters that no UTF-8
has. Each of these breaks whoever passes it on, long after it was read; so nothing of it gets past here.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, Generic, TypeVar

import msgspec

from agents.supervisor.small_file import content

T = TypeVar("T")

# What the shapes of the protocol accept: every whole number up to here is one in JSON wherever it is read.
LARGEST: Final = 2**53
LARGEST_FLOAT: Final = 1e300


class Undecodable(ValueError):
    """The text is no JSON that is accepted; the message says why."""


def parse(text: bytes | str) -> Any:
    """The value of a JSON text. Raises Undecodable, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise Undecodable("it is nested too deep") from None
    except ValueError as error:  # broken JSON, broken UTF-8, and numbers of thousands of digits
        raise Undecodable(str(error)[:200]) from None


class BoundedDecoder(Generic[T]):
    """Reads JSON texts that hold one shape of msgspec's, whose numbers, texts and lists are bounded."""

    def __init__(self, kind: Any, packed: bool = False) -> None:
        """``packed`` reads msgpack instead."""
        self.kind, self.is_packed = kind, packed
        decoder: Any = msgspec.msgpack.Decoder(kind) if packed else msgspec.json.Decoder(kind)
        self._decode = decoder.decode

    def read(self, text: bytes | str) -> T:
        """The value. Raises Undecodable, whatever is wrong with the text."""
        try:
            value: T = self._decode(text)
        except RecursionError:
            raise Undecodable("it is nested too deep") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise Undecodable(str(error)[:200]) from error
        return value

    def find(self, path: str) -> T | None:
        """What a small file holds; None where there is none, and where it holds something else."""
        if (text := content(path)) is None:
            return None
        try:
            return self.read(text)
        except Undecodable:
            return None


def mapping(text: bytes | str) -> dict[str, Any]:
    """The JSON object that a text holds; an empty one where it holds none."""
    try:
        value = parse(text)
    except Undecodable:
        return {}
    return value if isinstance(value, dict) else {}


def number(value: object) -> int | float | None:
    """A whole number up to LARGEST or a finite other one; None for everything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    most = LARGEST if isinstance(value, int) else LARGEST_FLOAT
    return value if abs(value) <= most else None


def count(value: object) -> int | None:
    """A whole number from 0 that is no larger than LARGEST, the fraction of one cut off; None for everything else."""
    found = number(value)
    # Another than a whole number may be far larger.
    return None if found is None or found < 0 or int(found) > LARGEST else int(found)


def digits(text: str | bytes) -> int | None:
    """The whole number that a text is, in decimal digits of ASCII and up to LARGEST; None for every other text."""
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        return None
    found = int(text)
    return found if found <= LARGEST else None


def words(value: object, most: int) -> str:
    """A text of at most ``most`` characters without halves of characters and without NUL; empty for no text."""
    if not isinstance(value, str):
        return ""
    return value[:most].replace("\0", "").encode("utf-8", "replace").decode()


def path_text(value: object, most: int = 4096) -> str:
    """A path as it stands, for a part of one leads elsewhere; empty where it cannot be sent on."""
    return value if isinstance(value, str) and len(value) <= most and words(value, most) == value else ""


def sendable(value: Any) -> Any:
    """Plain values as they can be sent: texts without halves of characters, whole numbers up to LARGEST."""
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
    """A whole number from the environment variable ``name``. Raises ValueError for anything else."""
    told = os.environ.get(name, "")
    if not told:
        return default
    found = digits(told)
    if found is None:
        raise ValueError(f"{name} must be a whole number from 0 to {LARGEST}, not {sendable(told[:40])!r}")
    return found
