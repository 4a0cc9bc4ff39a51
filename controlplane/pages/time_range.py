"""How far back a page draws measurements, as ``range`` in its address."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

SPANS = {"15m": 900, "1h": 3600, "6h": 21_600, "1d": 86_400, "7d": 604_800, "14d": 1_209_600}
"""Seconds by name."""


def asked(request: HttpRequest, usual: str) -> dict[str, Any]:
    """Return ``span_s``, the asked or else the usual span in seconds, and ``spans`` for parts/time_range.html."""
    return {"spans": list(SPANS.items()), "span_s": SPANS.get(request.GET.get("range", ""), SPANS[usual])}
