"""What streams have in common: how many a user has open in this process, who may read on, and the headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.http import StreamingHttpResponse
from django.utils.translation import gettext as _

from controlplane.accounts.models import Token, User
from controlplane.api.problem import RequestRefused

LOOK_S: Final = 1.0
"""How often a stream looks for what is new."""

_of_user: Counter[int] = Counter()


def refuse_beyond(user: User) -> None:
    """Raise 429 if the user has as many streams open as anybody may have."""
    if _of_user[user.pk] >= settings.SOCKETS_PER_USER:
        detail = _("you have {most} streams open already; close one").format(most=settings.SOCKETS_PER_USER)
        raise RequestRefused(429, "too_many_streams", detail, retry_s=5)


@contextmanager
def counted(user: int) -> Iterator[None]:
    """Count one stream of this user as long as it is open."""
    _of_user[user] += 1
    try:
        yield
    finally:
        _of_user[user] -= 1


def streamed(pieces: AsyncIterator[bytes], content_type: str) -> StreamingHttpResponse:
    """Return an answer that is sent as it comes, which nothing on its way may keep or hold back."""
    response = StreamingHttpResponse(pieces, content_type=content_type)
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def reader(user: int, token: Any) -> User | None:
    """Return the user as they are now; None if they, or the token that opened a stream, are not valid any more."""
    person = User.objects.filter(pk=user, is_active=True).first()
    if person is None or (token is not None and not Token.objects.filter(pk=token).exists()):
        return None
    return person
