"""Access tokens and sign-in links. Each is shown once and stored as a digest."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable
from datetime import timedelta

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.accounts import audit
from controlplane.accounts.models import DeviceCode, SignInLink, Token, User
from controlplane.accounts.permissions import runs_cluster

# A prefix by which scanners of public code find leaked tokens.
PREFIX = "yard_"
SCOPES = ("read", "submit", "admin")
TOKEN_LIFE = timedelta(days=90)
LINK_LIFE = timedelta(minutes=15)
KEY_LIFE = timedelta(hours=24)
MOST_TOKENS = 100
MOST_DAYS = 366
TOUCH_EVERY = timedelta(minutes=1)


def digest(secret: str) -> str:
    """Return the SHA-256 of a random secret. These secrets have 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def scopes_of(user: User) -> list[str]:
    """Return the scopes that a token of this user can have; admin only for users with a role."""
    return [scope for scope in SCOPES if scope != "admin" or runs_cluster(user)]


def make_token(
    user: User, name: str, *, scopes: Iterable[str] = ("read", "submit"), life: timedelta = TOKEN_LIFE
) -> tuple[Token, str]:
    """Create an access token of ``user``; return it with its secret, which is stored as a digest. Raises ValueError for
    an unknown scope."""
    wanted = sorted(set(scopes))
    if not wanted or not set(wanted) <= set(SCOPES):
        raise ValueError(f"scopes must be some of {', '.join(SCOPES)}, not {', '.join(wanted) or 'none'}")
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = Token.objects.create(
            user=user, name=name[:60], digest=digest(secret), scopes=wanted, expires_at=timezone.now() + life
        )
        audit.record("token.make", token, after=audit_fields(token))
    return token, secret


def revoke_token(user: User, token_id: uuid.UUID) -> bool:
    """Revoke a token of this user at once; return False if they have none with this id."""
    with transaction.atomic():
        token = Token.objects.filter(user=user, pk=token_id).first()
        if token is None:
            return False
        audit.record("token.revoke", token, before=audit_fields(token))
        token.delete()
    return True


def audit_fields(token: Token) -> dict[str, object]:
    """The fields of a token for the audit log."""
    return {"user": token.user.get_username(), "scopes": token.scopes, "expires_at": token.expires_at}


def end_sessions(user: User, *, but: str | None = None) -> int:
    """Sign the user out in every browser, except the session with that key; return in how many."""
    held = Session.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=but)
    theirs = [each.pk for each in held.iterator() if each.get_decoded().get(SESSION_KEY) == str(user.pk)]
    with transaction.atomic():
        ended, _ = Session.objects.filter(pk__in=theirs).delete()
        audit.record("user.end_sessions", user, after={"ended": ended})
    return ended


def token_of(secret: str) -> Token | None:
    """Return the valid token with this secret, its user loaded; None if it is unknown, expired, or its user is
    inactive."""
    if not secret.startswith(PREFIX) or len(secret) > 200:
        return None
    token = Token.objects.select_related("user").filter(digest=digest(secret), expires_at__gt=timezone.now()).first()
    return token if token and token.user.is_active else None


def touch(token: Token) -> None:
    """Record that a token was used, at most once a minute."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - TOUCH_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now - TOUCH_EVERY)
        Token.objects.filter(stale, pk=token.pk).update(last_used_at=now)


def people() -> QuerySet[User]:
    """The active users who may sign in: all but service accounts."""
    return User.objects.filter(is_active=True, service_of=None)


def make_sign_in_link(user: User, *, life: timedelta = LINK_LIFE) -> str:
    """Create a link that signs ``user`` in once; return its path."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        SignInLink.objects.create(digest=digest(secret), user=user, expires_at=timezone.now() + life)
        audit.record("user.sign_in_link", user, after={"minutes": life.total_seconds() / 60})
    return f"/sign-in/{secret}"


def user_of_link(secret: str) -> User | None:
    """Return the user of this sign-in link; None if it is unknown, used or expired."""
    links = SignInLink.objects.filter(digest=digest(secret), used_at=None, expires_at__gt=timezone.now())
    return people().filter(signinlink__in=links).first()


def redeem(secret: str) -> User | None:
    """Use this sign-in link, once, and return its user; None if it is unknown, used or expired.

    If two browsers use the same link at once, one of them succeeds.
    """
    now = timezone.now()
    user = people().filter(signinlink__digest=digest(secret)).first()
    # Without a join, so that the locked row is the one whose use is checked.
    links = SignInLink.objects.filter(digest=digest(secret), used_at=None, expires_at__gt=now)
    return user if user is not None and links.update(used_at=now) else None


def forget_old() -> int:
    """Delete expired codes, links and tokens; return how many."""
    now = timezone.now()
    links, _ = SignInLink.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    tokens, _ = Token.objects.filter(expires_at__lt=now - timedelta(days=30)).delete()
    codes, _ = DeviceCode.objects.filter(expires_at__lt=now).delete()
    return links + tokens + codes
