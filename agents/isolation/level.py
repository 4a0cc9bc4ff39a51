"""The isolation level of a node: one word for how far stages of different projects are separated, which pools can
require.

Each level includes those before it: ``none`` (all stages are one user), ``user`` (a user per project), ``private`` (and
a view of the host of their own: no processes of others, no devices that were not claimed, own shared memory), ``full``
(and the kernel enforces limits of memory and processes).
"""

from __future__ import annotations

from agents.isolation.users import Users


def level(users: Users, *, has_views: bool, has_limits: bool) -> str:
    """Return the level that this node gives to every project."""
    if not users.uids:
        return "none"
    if not has_views:
        return "user"
    return "full" if has_limits else "private"
