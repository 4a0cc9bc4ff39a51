"""What a job, a tool or a peer wrote, decoded once: bounded, typed, and in text that can be sent on.

JSON of strangers can be nested without end, hold numbers of any length, and spell halves of characters that no UTF-8
has. Each of these breaks whoever passes it on, long after it was read; so nothing of it gets past here.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

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
    if not (told.isascii() and told.isdigit() and len(told) < 17):
        raise ValueError(f"{name} must be a whole number from 0 to 9999999999999999, not {sendable(told[:40])!r}")
    return int(told)
