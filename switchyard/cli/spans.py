"""Reads spans of time from a command line."""

from __future__ import annotations

import argparse
import re

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Parse ``90``, ``90s``, ``30m``, ``1h30m`` or ``2d`` into seconds; raises ``ArgumentTypeError`` for anything
    else."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time; write it like 90s, 30m or 1h30m")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
