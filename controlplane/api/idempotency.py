"""Makes a POST with an Idempotency-Key take effect once, however often it is sent.

The key and the effect of the request are written in one transaction: both are stored or neither, also after a crash. A
second request with the key waits for the first; they never run concurrently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from django.db import OperationalError, connection, transaction
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import IdempotencyKey
from controlplane.accounts.service import KEY_LIFE
from controlplane.api.problem import RequestRefused


def once(request: Request, act: Callable[[], Response]) -> Response:
    """Return the response of ``act`` to this request, or the stored one of the first request with its key.

    Only responses below 400 are stored, so a refused request may be repeated.
    """
    key = request.headers.get("Idempotency-Key", "")
    if not key:
        return act()
    if len(key) > 200 or not key.isprintable():
        raise RequestRefused(400, "invalid", _("Idempotency-Key must have at most 200 printable characters"))
    digest = _digest(request)
    with transaction.atomic():
        row = _claim(request.user, key, digest)
        if row.status is not None:
            return Response(row.body, status=row.status, headers={"Idempotency-Replayed": "true"})
        response = act()
        IdempotencyKey.objects.filter(pk=row.pk).update(
            status=response.status_code, body=msgspec.to_builtins(response.data)
        )
    return response


# One statement: inserts a new key or replaces an expired one; returns no row for a valid key.
_CLAIM = """
INSERT INTO access_idempotencykey AS k (user_id, key, digest, created_at) VALUES (%s, %s, %s, now())
ON CONFLICT (user_id, key) DO UPDATE SET digest = excluded.digest, status = NULL, body = NULL, created_at = now()
WHERE k.created_at < now() - make_interval(secs => %s) RETURNING k.id
"""


def _claim(user: Any, key: str, digest: str) -> IdempotencyKey:
    """The row of this key: new, or that of an earlier request with the same content."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(_CLAIM, [user.pk, key, digest, KEY_LIFE.total_seconds()])
            if new := cursor.fetchone():
                return IdempotencyKey(pk=new[0], user=user, key=key, digest=digest)
    except OperationalError as error:
        raise RequestRefused(
            409, "in_flight", _("the first request with this Idempotency-Key is still running; ask again"), retry_s=2
        ) from error
    row = IdempotencyKey.objects.get(user=user, key=key)
    if row.digest != digest:
        raise RequestRefused(
            422, "key_reused", _("this Idempotency-Key was used for another request; choose a new one")
        )
    return row


def _digest(request: Request) -> str:
    """A digest of the request, to notice the same key with different content.

    It is keyed, because a plain digest would let a reader of the table guess secrets in the content.
    """
    try:
        content = msgspec.json.encode(request.data, order="sorted")
    except (TypeError, ValueError):
        content = repr(request.data).encode()
    where = f"{request.method} {request.get_full_path()}\n".encode()
    return salted_hmac("idempotency", where + content, algorithm="sha256").hexdigest()
