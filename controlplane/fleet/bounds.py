"""Says what is accepted, from the messages of msgspec's validation."""

from __future__ import annotations

import re
from typing import Final

from controlplane.clauses import Told, clause, told, verbatim

_POWERS: Final = {str(2**n): f"2^{n}" for n in range(20, 64)}


def spoken(expected: str) -> Told:
    """Rephrase a message: ``Expected `int` <= 5`` becomes ``at most 5``; one that is not known stays as it is."""
    bound = re.fullmatch(r"Expected `(?:int|float)` (<=|>=) (\S+)", expected)
    if bound:
        limit = _POWERS.get(bound[2], bound[2])
        return told(clause("AtMost", most=limit) if bound[1] == "<=" else clause("AtLeast", least=limit))
    length = re.fullmatch(r"Expected `(?:str|array|object)` of length <= (\d+)", expected)
    if length:
        return told(clause("AtMostLong", most=length[1]))
    if "matching regex" in expected:
        return told(clause("NoNul"))
    return verbatim(expected.replace("`", "").replace("Expected", "expected"))
