"""The meaning of NVIDIA's fault numbers (Xid) for the card, and the recovery action that the driver requests.

Source: NVIDIA, "XID errors" (GPU deployment and management documentation), and the resolution its catalogue names; of
the recovery actions nvml.h (nvmlDeviceGpuRecoveryAction_t) and "GPU memory error management".
"""

from __future__ import annotations

from agents.devices.card import Condition
from agents.ends import clause
from agents.notes import NoteText

# Clauses by number. The card needs a reset or a technician: no work until it was quiet for a while.
FAULTS = {
    48: "XidDoubleBit",
    64: "XidRemapFailed",
    74: "XidLink",
    79: "XidOffBus",
    95: "XidUncontained",
    119: "XidGspSilent",
    120: "XidGspFailed",
    140: "XidUnhandled",
    149: "XidLinkReset",
}
# An error was repaired or contained; the card works, and needs a reset when it is free.
WARNINGS = {
    63: "XidRemapped",
    92: "XidManyCorrected",
    94: "XidContained",
    154: "XidAction",
}
# The driver announces a new recovery action, which the library reports (see ``recovery``).
RECOVERY_CHANGED = 154
# 13, 31, 43, 45 and all others are the program's own errors, or consequences of one already reported.
HOLD_S = 600.0

# The requested recovery action before the card may work again; 0 is none.
_ACTIONS = {
    1: ("RECOVERY_GPU_RESET", "AsksGpuReset"),
    2: ("RECOVERY_NODE_REBOOT", "AsksHostReboot"),
    3: ("RECOVERY_DRAIN_P2P", "AsksDrainPeers"),
    4: ("RECOVERY_DRAIN_AND_RESET", "AsksDrainAndReset"),
    5: ("RECOVERY_IMEX_DOMAIN", "AsksImex"),
    6: ("RECOVERY_BUS_RESET", "AsksBusReset"),
    7: ("RECOVERY_SYSTEM_REBOOT", "AsksSystemReboot"),
}


def condition(number: int) -> Condition | None:
    """Return the condition for a fault number; None for the program's own errors."""
    if number in FAULTS:
        return Condition(f"XID_{number}", "UNHEALTHY", NoteText(clause(FAULTS[number], xid=number)))
    if number in WARNINGS:
        return Condition(f"XID_{number}", "DEGRADED", NoteText(clause(WARNINGS[number], xid=number)))
    return None


def recovery(action: int) -> Condition | None:
    """Return the condition for the driver's recovery action; None if it requests none."""
    if action == 0:
        return None
    code, said = _ACTIONS.get(action, ("RECOVERY_UNKNOWN", "AsksUnknown"))
    return Condition(code, "UNHEALTHY", NoteText(clause(said)))
