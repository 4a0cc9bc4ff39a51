"""Formats durations and sizes for people, in their language."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def span(seconds: Any) -> str:
    """Format seconds as ``2 h 5 min``: two units at most."""
    try:
        whole = max(0, round(float(seconds)))
    except (TypeError, ValueError):
        return "–"
    if whole < 60:
        return _("{n} s").format(n=whole)
    if whole < 3600:
        rest = whole % 60 if whole < 600 else 0
        return _("{n} min").format(n=whole // 60) + (" " + _("{n} s").format(n=rest) if rest else "")
    if whole < 86_400:
        rest = whole % 3600 // 60
        return _("{n} h").format(n=whole // 3600) + (" " + _("{n} min").format(n=rest) if rest else "")
    rest = whole % 86_400 // 3600
    return _("{n} d").format(n=whole // 86_400) + (" " + _("{n} h").format(n=rest) if rest else "")


def gib(size: Any) -> str:
    """Format bytes as GiB, MiB or KiB."""
    try:
        number = float(size)
    except (TypeError, ValueError):
        return "–"
    if number >= 2**30:
        return f"{number / 2**30:.4g} GiB"
    return f"{number / 2**20:.3g} MiB" if number >= 2**20 else f"{number / 1024:.3g} KiB"


def cores(milli: int) -> str:
    """Thousandths of cores as a number of cores."""
    return ngettext("{n} core", "{n} cores", 1 if milli == 1000 else 2).format(n=f"{milli / 1000:g}")
