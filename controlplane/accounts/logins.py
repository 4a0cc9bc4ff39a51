"""Which browsers are signed in, by the keys of their sessions."""

from __future__ import annotations

from collections.abc import Collection

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from controlplane.accounts.models import User


def signed_in(keys: Collection[str]) -> dict[str, int]:
    """Return the user of each of these sessions that is signed in now; sign-out, expiry and a new password end one."""
    rows = Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()) if keys else ()
    told = {row.session_key: row.get_decoded() for row in rows}
    ids = {key: int(found[SESSION_KEY]) for key, found in told.items() if BACKEND_SESSION_KEY in found}
    users = User.objects.filter(is_active=True).in_bulk(set(ids.values()))
    return {
        key: user_id
        for key, user_id in ids.items()
        if user_id in users and _is_current(users[user_id], str(told[key].get(HASH_SESSION_KEY, "")))
    }


def _is_current(user: User, known: str) -> bool:
    hashes = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(known, each) for each in hashes)
