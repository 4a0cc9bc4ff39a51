"""Reads sizes from a command line."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size_bytes(text: str) -> int:
    """Parse ``512MiB``, ``8GiB`` or a plain number of bytes; raises ``ArgumentTypeError`` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 512MiB or 8GiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])
