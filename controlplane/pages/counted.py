"""Counts devices by kind: 24 GPUs, 3 CPUs. Devices of different kinds are never added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def counted(kinds: Iterable[str]) -> str:
    """Format the number of each kind, accelerators before CPUs; empty if there are none."""
    found = Counter(kinds)
    ordered = sorted(found.items(), key=lambda item: (item[0] == "cpu", -item[1], item[0]))
    return _(", ").join(_one(kind, count) for kind, count in ordered)


def _one(kind: str, count: int) -> str:
    return ngettext("{n} {kind}", "{n} {kind}s", count).format(n=f"{count:,}", kind=kind.upper())
