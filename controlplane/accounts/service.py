"""Secrets that prove who somebody is: access tokens and sign-in links. Each is shown once and kept as a digest."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable
from datetime import timedelta

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.accounts import audit
from controlplane.accounts.models import DeviceCode, SignInLink, Token, User
from controlplane.accounts.permissions import runs_cluster

# A prefix by which scanners of public code find a token that leaked.
PREFIX = "yard_"
SCOPES = ("read", "submit", "admin")
TOKEN_LIFE = timedelta(days=90)
LINK_LIFE = timedelta(minutes=15)
KEY_LIFE = timedelta(hours=24)
MOST_TOKENS = 100
TOUCH_EVERY = timedelta(minutes=1)


def digest(secret: str) -> str:
    """The SHA-256 of a random secret. These secrets hold 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def scopes_of(user: User) -> list[str]:
    """What a token of this user can cover: the scope admin does nothing for whoever has no role."""
    return [scope for scope in SCOPES if scope != "admin" or runs_cluster(user)]


def make_token(
    user: User, name: str, *, scopes: Iterable[str] = ("read", "submit"), life: timedelta = TOKEN_LIFE
) -> tuple[Token, str]:
    """A new access token of ``user`` and its secret, which is not kept. Raises ValueError for an unknown scope."""
    wanted = sorted(set(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise ValueError(f"scopes must be some of {', '.join(SCOPES)}, not {', '.join(wanted) or 'none'}")
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = Token.objects.create(
            user=user, name=name[:60], digest=digest(secret), scopes=wanted, expires_at=timezone.now() + life
        )
        audit.record("token.make", token, after=told(token))
    return token, secret


def revoke_token(user: User, token_id: uuid.UUID) -> bool:
    """Takes back a token of this user, from this moment on; False where they have none with this id."""
    with transaction.atomic():
        token = Token.objects.filter(user=user, pk=token_id).first()
        if token is None:
            return False
        audit.record("token.revoke", token, before=told(token))
        token.delete()
    return True


def told(token: Token) -> dict[str, object]:
    """What the audit log tells of a token."""
    return {"user": token.user.get_username(), "scopes": token.scopes, "expires_at": token.expires_at}


def end_sessions(user: User, *, but: str | None = None) -> int:
    """Signs the user out in every browser, but for the session with that key; returns in how many."""
    held = Session.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=but)
    theirs = [each.pk for each in held.iterator() if each.get_decoded().get(SESSION_KEY) == str(user.pk)]
    with transaction.atomic():
        ended, _ = Session.objects.filter(pk__in=theirs).delete()
        audit.record("user.end_sessions", user, after={"ended": ended})
    return ended


def token_of(secret: str) -> Token | None:
    """The valid token with this secret, its user loaded; None where it is unknown, expired, or its user is inactive."""
    if not secret.startswith(PREFIX) or len(secret) > 200:
        return None
    token = Token.objects.select_related("user").filter(digest=digest(secret), expires_at__gt=timezone.now()).first()
    return token if token and token.user.is_active else None


def touch(token: Token) -> None:
    """Notes that a token was used, at most once a minute."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - TOUCH_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - TOUCH_EVERY)
        Token.objects.filter(stale, pk=token.pk).update(last_used_at=now)


def make_sign_in_link(user: User, *, life: timedelta = LINK_LIFE) -> str:
    """The path of a link that signs ``user`` in once."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        SignInLink.objects.create(digest=digest(secret), user=user, expires_at=timezone.now() + life)
        audit.record("user.sign_in_link", user, after={"minutes": life.total_seconds() / 60})
    return f"/sign-in/{secret}"


def user_of_link(secret: str) -> User | None:
    """The user whom this sign-in link would sign in; None where it is unknown, used or expired."""
    links = SignInLink.objects.filter(digest=digest(secret), used_at=None, expires_at__gt=timezone.now())
    return User.objects.filter(signinlink__in=links, is_active=True).first()


def redeem(secret: str) -> User | None:
    """The user whom this sign-in link names, once; None where it is unknown, used or expired.

    Two browsers that redeem the same link at the same moment: one of them wins.
    """
    now = timezone.now()
    user = User.objects.filter(signinlink__digest=digest(secret), is_active=True).first()
    # No join here: the row that is locked must be the row whose use is judged.
    links = SignInLink.objects.filter(digest=digest(secret), used_at=None, expires_at__gt=now)
    return user if user is not None and links.update(used_at=now) else None


def forget_old() -> int:
    """Removes codes, links and tokens that expired; returns how many."""
    now = timezone.now()
    links, _ = SignInLink.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    tokens, _ = Token.objects.filter(expires_at__lt=now - timedelta(days=30)).delete()
    codes, _ = DeviceCode.objects.filter(expires_at__lt=now).delete()
    return links + tokens + codes
