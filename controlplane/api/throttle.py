"""Rate limits per user, or per address without sign-in, counted in Redis by all servers together.

They keep a busy loop from taking a whole server, and do not protect against guessing; ``accounts.guard`` does. Without
Redis nothing is counted, and every request is answered.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from django.conf import settings
from django.core.cache import cache
from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from controlplane.accounts.guard import who

log = logging.getLogger(__name__)

WINDOW_S: Final = 10
# For this time after a failure of Redis no request waits for it.
AGAIN_S: Final = 10.0


_blind_until = 0.0


def window() -> int:
    """The number of the present window."""
    return int(time.time()) // WINDOW_S


def admits(key: str, per_s: float) -> bool:
    """Count once more for ``key``; return whether that is within ``per_s`` a second in this window, at all servers
    together. Without Redis it is."""
    global _blind_until
    if time.monotonic() < _blind_until:
        return True
    key = f"rate:{key}:{window()}"
    try:
        try:
            count = int(cache.incr(key))
        except ValueError:  # the first one of its window
            count = 1 if cache.add(key, 1, 2 * WINDOW_S) else int(cache.incr(key))
        return count <= per_s * WINDOW_S
    except ValueError:  # Redis was emptied between the two
        return True
    except RedisError as error:
        _blind_until = time.monotonic() + AGAIN_S
        log.warning("requests are not counted for now: %s", error)
        return True


class PerUser(BaseThrottle):
    """Limits the numbers of reading and of writing requests in each window of :data:`WINDOW_S` seconds."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Count this request; reads of a page inside the server belong to a request that was already counted."""
        if getattr(request._request, "is_inside", False):
            return True
        sort = self.sort(request)
        person = str(request.user.pk) if request.user else ""
        if not person:
            sort, person = "anonymous", who(request._request).address
        return admits(f"{sort}:{person}", settings.RATE_LIMITS[sort])

    def sort(self, request: Request) -> str:
        """Return under which of the limits this request counts."""
        return "read" if request.method in SAFE_METHODS else "write"

    def wait(self) -> float:
        """Seconds until the next window."""
        return WINDOW_S - time.time() % WINDOW_S


class SearchesPerUser(PerUser):
    """So many searches of logs, each of which reads many megabytes."""

    def sort(self, request: Request) -> str:
        return "search"
