"""The known kinds of devices: the usual ones, those of the settings, and those of existing devices."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _

USUAL: Final = frozenset({"cpu", "gpu", "npu"})


def named() -> frozenset[str]:
    """The kinds that may be named before any device has them."""
    return USUAL | settings.DEVICE_KINDS


def fault(kind: str) -> str:
    """Return why a kind is unknown, as a sentence; empty if it is known."""
    from controlplane.fleet.models import Device

    if kind in named() or Device.objects.filter(kind=kind).exists():
        return ""
    return _(
        "No kind of device is called %(kind)s; accepted are %(named)s, or a kind that a device of this cluster has. "
        "YARD_DEVICE_KINDS names further ones."
    ) % {"kind": kind[:20], "named": ", ".join(sorted(named()))}
