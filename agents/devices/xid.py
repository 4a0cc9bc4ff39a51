"""The meaning of NVIDIA's fault numbers (Xid) for the card, and the recovery action that the driver requests.

Source: NVIDIA, "XID errors" (GPU deployment and management documentation), and the resolution its catalogue names; of
the recovery actions nvml.h (nvmlDeviceGpuRecoveryAction_t) and "GPU memory error management".
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
    140: "a memory error that could not be handled: reset the GPU, and have it replaced if that does not help",
    149: "NVLink error: reset the GPU, and look at cable and switch if that does not help",
}
# An error was repaired or contained; the card works, and needs a reset when it is free.
WARNINGS = {
    63: "a memory row was remapped",
    92: "many corrected memory errors",
    94: "a contained memory error",
    154: "the driver asks for an action that this library does not tell; nvidia-smi -q or the kernel's log does",
}
# The driver announces a new recovery action, which the library reports (see ``recovery``).
RECOVERY_CHANGED = 154
# 13, 31, 43, 45 and all others are the program's own errors, or consequences of one already reported.
HOLD_S = 600.0

# The requested recovery action before the card may work again; 0 is none.
_ACTIONS = {
    1: ("RECOVERY_GPU_RESET", "its driver asks for a reset of the GPU"),
    2: ("RECOVERY_NODE_REBOOT", "its driver asks for a reboot of the host"),
    3: ("RECOVERY_DRAIN_P2P", "its driver asks to end all work between GPUs; after that it says what comes next"),
    4: ("RECOVERY_DRAIN_AND_RESET", "its driver asks to let the work end, to start none and to reset the GPU"),
    5: ("RECOVERY_IMEX_DOMAIN", "its driver asks to recover the IMEX domain of the rack"),
    6: ("RECOVERY_BUS_RESET", "its driver asks for a reset of the GPU's PCIe bus"),
    7: ("RECOVERY_SYSTEM_REBOOT", "its driver asks for a reboot of the whole system"),
}


def condition(number: int) -> Condition | None:
    """Return the condition for a fault number; None for the program's own errors."""
    if number in FAULTS:
        return Condition(f"XID_{number}", "UNHEALTHY", f"Xid {number}: {FAULTS[number]}")
    if number in WARNINGS:
        return Condition(f"XID_{number}", "DEGRADED", f"Xid {number}: {WARNINGS[number]}")
    return None


def recovery(action: int) -> Condition | None:
    """Return the condition for the driver's recovery action; None if it requests none."""
    if action == 0:
        return None
    code, sentence = _ACTIONS.get(
        action, ("RECOVERY_UNKNOWN", "its driver asks for an action; nvidia-smi -q says which")
    )
    return Condition(code, "UNHEALTHY", sentence)
