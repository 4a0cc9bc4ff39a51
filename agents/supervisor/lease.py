"""The lease of a part: until when it may run without contact to the control plane. Standard library only.

A part with ``on_node_lost: requeue`` runs on a lease. Its order has the end of the lease as a time of CLOCK_BOOTTIME.
Answers to reports of the node extend it; the agent notes them in two files: ``lease`` has the time at which the newest
answered report was sent, ``lease-since`` the beginning of its unbroken chain of renewals and the boot to which both
times belong. A lease that has ended is never renewed.
"""

from agents.supervisor.lean import number
from agents.supervisor.small_file import content

SINCE = "-since"


def over_at(until: float, renewed_at: float, since: float, lease_s: float) -> float:
    """Return when a lease ends that would end at ``until``, given the newest renewal and the beginning of its chain.

    All are times of CLOCK_BOOTTIME. A chain that began after ``until`` does not count: the lease was over in between.
    """
    return max(until, renewed_at + lease_s) if since <= until else until


def noted(path: str) -> tuple[float, float, str]:
    """Return the newest renewal, the beginning of its chain, and the boot of both; never renewed if nothing is
    noted."""
    try:
        renewed_at = number(float(content(path) or b""), 0.0)
        since, _, boot = (content(path + SINCE) or b"").partition(b" ")
        return renewed_at, float(since), boot.decode(errors="replace")
    except ValueError:
        return 0.0, float("inf"), ""


def extended(path: str, until: float, lease_s: float) -> float:
    """Return when the lease ends, by what the agent has noted so far."""
    renewed_at, since, _ = noted(path)
    return over_at(until, renewed_at, since, lease_s)
