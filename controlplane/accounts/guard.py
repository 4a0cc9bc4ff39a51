"""The guard against guessing: every sign-in by password or link passes through it.

Failures are stored as rows, so all web processes count together, and filling one counter resets no other. Three
counters are kept: of a name from one address, of an address, and of a name from anywhere. Above the free attempts a
counter blocks for a minute, and twice as long after each further failure, up to an hour; after a day without a failure
it is reset. An address from which a name has signed in within ninety days is *known* for it: there only the first
counter counts, so a remote attacker cannot lock a user out. An attempt is counted before the password is checked, so
concurrent attempts are all counted.
"""

from __future__ import annotations

import hashlib
import ipaddress
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.http import HttpRequest
from django.utils import timezone

from controlplane.accounts.models import Tries, User

FREE = {Tries.Of.PAIR: 10, Tries.Of.ADDRESS: 100, Tries.Of.NAME: 100}
FIRST_S, MOST_S = 60, 3600
FORGET = timedelta(days=1)
KNOWN_FOR = timedelta(days=90)
# Slow hashes are slower on long texts; nobody remembers longer ones.
LONGEST_PASSWORD = 4096


@dataclass(frozen=True, slots=True)
class Who:
    """A name, and the address that claims it; either may be empty."""

    name: str
    address: str

    def key(self, of: Tries.Of) -> str:
        name = "" if of == Tries.Of.ADDRESS else self.name
        address = "" if of == Tries.Of.NAME else self.address
        return hashlib.sha256(repr((str(of), name, address)).encode()).hexdigest()


def who(request: HttpRequest | None, name: str = "") -> Who:
    """Return the name and address to count. Equivalent names count as one, and so does an IPv6 network of one
    customer."""
    told = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    try:
        address = ipaddress.ip_address(told)
    except ValueError:
        pass
    else:
        address = getattr(address, "ipv4_mapped", None) or address
        told = str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))
    return Who(unicodedata.normalize("NFKC", name).casefold()[:150], told[:100])


def admit(one: Who) -> int:
    """Count an attempt; return for how many seconds it is refused, 0 if it may be checked.

    ``succeeded`` takes a successful attempt back. A refused attempt is not counted, so a blocked counter is released by
    time.
    """
    counted = _counted(one)
    now = timezone.now()
    with transaction.atomic():
        rows = [_row(each, one.key(each), now) for each in counted]
        if waits := [row.until for row in rows if row.until is not None and row.until > now]:
            return max(1, round((max(waits) - now).total_seconds()))
        for row in rows:
            row.failures, row.last_at = row.failures + 1, now
            row.until = _until(row, now)
            row.save(update_fields=["failures", "last_at", "until"])
    return 0


def succeeded(one: Who) -> None:
    """Reset the failures of this name from this address, take the attempt back in other counters, and mark the address
    as known."""
    now = timezone.now()
    with transaction.atomic():
        for each in _counted(one):
            row = _row(each, one.key(each), now)
            # In other counters only this attempt, because otherwise an account holder could guess at others' between
            # two sign-ins.
            row.failures = 0 if each == Tries.Of.PAIR else max(0, row.failures - 1)
            row.until = None
            row.save(update_fields=["failures", "until"])
        if one.name and one.address:
            known = {"of": Tries.Of.KNOWN, "last_at": now}
            Tries.objects.update_or_create(key=one.key(Tries.Of.KNOWN), defaults=known)


def forget_old() -> int:
    """Delete expired counters, and addresses without a sign-in for long."""
    now = timezone.now()
    counters, _ = Tries.objects.exclude(of=Tries.Of.KNOWN).filter(last_at__lt=now - FORGET).delete()
    known, _ = Tries.objects.filter(of=Tries.Of.KNOWN, last_at__lt=now - KNOWN_FOR).delete()
    return counters + known


def _counted(one: Who) -> list[Tries.Of]:
    if not one.name:
        return [Tries.Of.ADDRESS]
    known = Tries.objects.filter(key=one.key(Tries.Of.KNOWN), last_at__gt=timezone.now() - KNOWN_FOR)
    # Always in this order, so that two transactions that lock two of them do not deadlock.
    return [Tries.Of.PAIR] if known.exists() else [Tries.Of.ADDRESS, Tries.Of.NAME, Tries.Of.PAIR]


def _row(of: Tries.Of, key: str, now: datetime) -> Tries:
    """The counter, locked; at zero if it is older than a day."""
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO access_tries AS t (key, of, failures, last_at) VALUES (%s, %s, 0, %s)
               ON CONFLICT (key) DO UPDATE SET last_at = t.last_at RETURNING failures, last_at, until""",
            [key, str(of), now],
        )
        failures, last_at, until = cursor.fetchone()
    if last_at < now - FORGET:
        failures, until = 0, None
    return Tries(key=key, of=of, failures=failures, last_at=last_at, until=until)


def _until(row: Tries, now: datetime) -> datetime | None:
    beyond = row.failures - FREE[Tries.Of(row.of)]
    return now + timedelta(seconds=min(MOST_S, FIRST_S * 2 ** min(beyond, 20))) if beyond >= 0 else None


class GuardedBackend(ModelBackend):
    """Checks passwords, here and in the LDAP directory, guarded wherever ``authenticate`` is called.

    A refused attempt checks no password, and is refused alike for existing and unknown names;
    ``request.sign_in_wait_s`` is the waiting time in seconds.
    """

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: object
    ) -> User | None:
        name = username if username is not None else kwargs.get(User.USERNAME_FIELD)
        if not isinstance(name, str) or not isinstance(password, str):
            return None
        one = who(request, name)
        if wait_s := admit(one):
            if request is not None:
                request.sign_in_wait_s = wait_s  # type: ignore[attr-defined]
            raise PermissionDenied
        fit = name.isprintable() and len(name) <= 150 and len(password) <= LONGEST_PASSWORD
        plain = password[:LONGEST_PASSWORD].encode(errors="replace").decode()
        # An impossible name is checked like an unknown one, in the same time.
        user = super().authenticate(request, username=name if fit else "", password=plain)
        if user is None and fit and settings.DIRECTORY is not None:
            from controlplane.accounts.directory import sign_in

            user = sign_in(request, name, plain)
        if user is not None:
            succeeded(one)
        return user

    def user_can_authenticate(self, user: Any) -> bool:
        """Whether this user may sign in: active people; service accounts act by tokens only."""
        return super().user_can_authenticate(user) and user.service_of_id is None
