"""What a job, a tool or a peer wrote, decoded once: bounded, typed, and in text that can be sent on.

JSON of strangers can be nested without end, hold numbers of any length, and spell halves of characters that no UTF-8
has. Each of these breaks whoever passes it on, long after it was read; so nothing of it gets past here.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

# What a message to the server and a column of its database hold.
LARGEST: Final = 2**63 - 1


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
    """A finite number that fits into 64 bits; None for everything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared first: a whole number of hundreds of digits is too large to be asked whether it is finite.
    return value if abs(value) <= LARGEST and math.isfinite(value) else None


def count(value: object) -> int | None:
    """A whole number from 0 that fits into 64 bits, the fraction of one cut off; None for everything else."""
    found = number(value)
    # A float as large as the bound is rounded up to what is beyond it.
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
    """Plain values as they can be sent: texts without halves of characters, numbers within 64 bits."""
    if isinstance(value, str):
        return words(value, len(value))
    if isinstance(value, dict):
        return {sendable(key): sendable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-LARGEST, min(LARGEST, value))
    return value
