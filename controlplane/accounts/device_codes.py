"""Codes by which a person signs a program in, such as ``yard login`` (RFC 8628).

The program requests a code and shows it; a signed-in person enters it on a page, sees which program it is, and confirms
or refuses; the program polls every few seconds and gets a token of that person, once. All of it expires after ten
minutes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import connection, transaction
from django.utils import timezone

from controlplane.accounts import audit, service
from controlplane.accounts.models import DeviceCode, Token, User

# Letters that are not easily confused and form no words: 20 to the power of 8 codes.
LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
LENGTH: Final = 8
LIFE: Final = timedelta(minutes=10)
MOST_OF_ADDRESS: Final = 20
MOST: Final = 2_000
LONGEST_INTERVAL_S: Final = 60


class TooMany(Exception):
    """Raised if too many codes are waiting to give another program one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a poll: a token and its secret, or an error of RFC 8628 and when to poll again."""

    error: str = ""
    interval_s: int = 0
    token: Token | None = None
    secret: str = ""


def begin(name: str, scopes: list[str], days: int, address: str) -> tuple[DeviceCode, str]:
    """Create a code for a program, and the secret with which it polls. Raises TooMany."""
    now = timezone.now()
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext('access_devicecode'))")
        DeviceCode.objects.filter(expires_at__lt=now).delete()
        if DeviceCode.objects.count() >= MOST or DeviceCode.objects.filter(address=address).count() >= MOST_OF_ADDRESS:
            raise TooMany
        code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        while DeviceCode.objects.filter(code=code).exists():
            code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
        row = DeviceCode.objects.create(
            digest=service.digest(secret),
            code=code,
            name=name,
            address=address,
            scopes=sorted(set(scopes)),
            days=days,
            expires_at=now + LIFE,
        )
    return row, secret


def shown(code: str) -> str:
    """Format a code for people."""
    return f"{code[:4]}-{code[4:]}"


def waiting(typed: str) -> DeviceCode | None:
    """Return the waiting code that somebody entered; case, spaces and hyphens are ignored."""
    code = "".join(letter for letter in typed[:40].upper() if letter not in " -")
    return DeviceCode.objects.filter(code=code, answer="", expires_at__gt=timezone.now()).first()


def scopes_for(code: DeviceCode, user: User) -> list[str]:
    """Return those of the requested scopes that a token of this user can have."""
    return [scope for scope in service.scopes_of(user) if scope in code.scopes]


def answer(code: DeviceCode, user: User, *, confirmed: bool) -> bool:
    """Store the answer of a person; False if there is one already, or it is too late."""
    open_ = DeviceCode.objects.filter(pk=code.pk, answer="", expires_at__gt=timezone.now())
    said = DeviceCode.Answer.CONFIRMED if confirmed else DeviceCode.Answer.REFUSED
    with transaction.atomic():
        if not open_.update(answer=said, user=user):
            return False
        action = "device_code.confirm" if confirmed else "device_code.refuse"
        audit.record(action, ("device_code", None, code.name), after={"scopes": code.scopes, "address": code.address})
    return True


def collect(secret: str) -> Outcome:
    """Return the answer to a poll with this secret. A token is created and returned once."""
    now = timezone.now()
    with transaction.atomic():
        row = DeviceCode.objects.select_for_update(of=("self",)).filter(digest=service.digest(secret)).first()
        if row is None or row.expires_at <= now:
            return Outcome("expired_token")
        if row.answer:
            row.delete()
            user = row.user
            scopes = scopes_for(row, user) if user is not None and user.is_active else []
            if row.answer != DeviceCode.Answer.CONFIRMED or user is None or not scopes:
                return Outcome("access_denied")
            # Nobody is signed in for this request: the token is created in the name of whoever confirmed the code.
            origin = audit.Origin(user.get_username(), audit.Via.CLI, user.pk, f"device code of {row.address}")
            with audit.acting(origin):
                token, told = service.make_token(user, row.name, scopes=scopes, life=timedelta(days=row.days))
            return Outcome(token=token, secret=told)
        early = row.asked_at is not None and now - row.asked_at < timedelta(seconds=row.interval_s - 1)
        row.interval_s = min(LONGEST_INTERVAL_S, row.interval_s + 5) if early else row.interval_s
        row.asked_at = now
        row.save(update_fields=["asked_at", "interval_s"])
    return Outcome("slow_down" if early else "authorization_pending", row.interval_s)
