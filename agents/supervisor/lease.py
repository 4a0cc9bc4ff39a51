"""Until when a part may live although nobody answers its node: the deadline of its lease.

A stage with ``on_node_lost: requeue`` is started elsewhere once its lease, and its grace, are surely over here. So the
deadline is absolute, on the clock that counts since boot and goes on while the machine sleeps. The order brings the
first one; the agent notes, in the lease file of its node, when it *sent* the newest report that was answered. Nothing
else moves it: not the start of the command, not a message that answers nothing, not an agent that starts again.

Standard library only: the shim imports it.
"""

from agents.supervisor.small_file import content


def renewed_at(path: str, now: float) -> float:
    """When the newest answered report of this node was sent, in seconds since boot; 0 where none was.

    A time yet to come is one of another boot, and counts for nothing.
    """
    try:
        noted = float(content(path) or b"")
    except ValueError:
        return 0.0
    return noted if 0.0 <= noted <= now else 0.0


def deadline(order: dict, now: float) -> float | None:  # type: ignore[type-arg]
    """When the part of this order must have been stopped, in seconds since boot; None where it has no lease."""
    lease_s = order.get("lease_s")
    if lease_s is None:
        return None
    return max(float(order.get("lease_until") or 0.0), renewed_at(str(order["lease"]), now) + float(lease_s))
