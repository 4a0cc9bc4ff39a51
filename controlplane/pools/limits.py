"""The limits of one user: which count for them, of all that are set."""

from __future__ import annotations

from django.db.models import Q

from controlplane.accounts.models import User
from controlplane.pools.models import Limit


def of(user: User) -> list[Limit]:
    """Return the limits that count for this user: their own take the place of those of every user there."""
    found = list(Limit.objects.filter(Q(user=user) | Q(user=None)).order_by("pk"))
    own = {(one.pool_id, one.project_id) for one in found if one.user_id}
    return [one for one in found if one.user_id or (one.pool_id, one.project_id) not in own]
