"""How far stages of different projects are kept apart on a node, as one word that pools can require.

Each level has all of those before it: ``none`` (all stages are one user), ``user`` (a user per project), ``private``
(and a view of the host of their own: others' processes and unclaimed devices are not there, shared memory is their
own), ``full`` (and the kernel holds each to its memory and number of processes).
"""

from __future__ import annotations

from agents.isolation.users import Users


def level(users: Users, *, has_views: bool, has_limits: bool) -> str:
    """The level that this node gives to every project."""
    if not users.uids:
        return "none"
    if not has_views:
        return "user"
    return "full" if has_limits else "private"
