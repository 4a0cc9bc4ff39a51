"""Which kinds of devices there are: the usual ones, those the administrator has named, and those that devices have."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _

USUAL: Final = frozenset({"cpu", "gpu", "npu"})


def named() -> frozenset[str]:
    """The kinds that may be spoken of before any device has them."""
    return USUAL | settings.DEVICE_KINDS


def fault(kind: str) -> str:
    """Why a kind may not be spoken of, as a sentence; empty where it may."""
    from controlplane.fleet.models import Device

    if kind in named() or Device.objects.filter(kind=kind).exists():
        return ""
    return _(
        "No kind of device is called %(kind)s; accepted are %(named)s, or a kind that a device of this cluster has. "
        "YARD_DEVICE_KINDS names further ones."
    ) % {"kind": kind[:20], "named": ", ".join(sorted(named()))}
