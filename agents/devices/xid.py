"""What NVIDIA's fault numbers (Xid) mean for the card that told them.

Source: NVIDIA, "XID errors" (GPU deployment and management documentation), and the resolution its catalogue names.
"""

from __future__ import annotations

from agents.devices.card import Condition

# The card needs a reset or a technician: no work until it was quiet for a while.
FAULTS = {
    48: "double-bit memory error",
    64: "row remapping failed",
    74: "NVLink error",
    79: "the card fell off the bus",
    95: "uncontained memory error",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
# Something was repaired or contained; the card works, and needs a reset when it is free.
WARNINGS = {
    63: "a memory row was remapped",
    92: "many corrected memory errors",
    94: "a contained memory error",
}
# 13, 31, 43, 45 and all others are the program's own errors, or consequences of one already told.
HOLD_S = 600.0


def condition(number: int) -> Condition | None:
    """What a fault number makes of a device; None for those that are the program's."""
    if number in FAULTS:
        return Condition(f"XID_{number}", "UNHEALTHY", f"Xid {number}: {FAULTS[number]}")
    if number in WARNINGS:
        return Condition(f"XID_{number}", "DEGRADED", f"Xid {number}: {WARNINGS[number]}")
    return None
