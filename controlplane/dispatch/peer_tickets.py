"""Tickets that allow one node to fetch one digest from another; ``agents.storage.peers`` verifies them."""

from __future__ import annotations

import hashlib
import hmac


def ticket(key: str, root: str) -> str:
    """Return the HMAC-SHA256 of a root's digest under the key that the serving node generated."""
    return hmac.new(key.encode(), root.encode(), hashlib.sha256).hexdigest()
