"""Translates msgspec's validation messages into sentences for people."""

from __future__ import annotations

import re
from typing import Final

_POWERS: Final = {str(2**n): f"2^{n}" for n in range(20, 64)}


def spoken(expected: str) -> str:
    """Rephrase a message: ``Expected `int` <= 5`` becomes ``at most 5``."""
    bound = re.fullmatch(r"Expected `(?:int|float)` (<=|>=) (\S+)", expected)
    if bound:
        return f"{'at most' if bound[1] == '<=' else 'at least'} {_POWERS.get(bound[2], bound[2])}"
    length = re.fullmatch(r"Expected `(?:str|array|object)` of length <= (\d+)", expected)
    if length:
        return f"at most {length[1]} long"
    if "matching regex" in expected:
        return "no NUL may be in it"
    return expected.replace("`", "").replace("Expected", "expected")
