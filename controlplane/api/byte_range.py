"""Ranges of bytes of a resource (RFC 9110, section 14): one range, in the header ``Range``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework.request import Request

from controlplane.storage import Pieces

_ONE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
PARAMETER: Final = OpenApiParameter(
    "Range",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="bytes=first-last, bytes=first- or bytes=-count. Several ranges, and other units, count as none.",
    examples=[OpenApiExample("The last hundred bytes", "bytes=-100")],
)


def asked(request: Request) -> tuple[int | None, int | None] | None:
    """Return the first and the last byte of the range asked for; a range without a first one counts from the end.

    None if there is no range, or one that a server ignores: another unit, several ranges, a last byte before the
    first, or a condition (``If-Range``), which no growing resource meets.
    """
    found = _ONE.fullmatch(request.headers.get("Range", "").replace(" ", ""))
    if found is None or "If-Range" in request.headers:
        return None
    first, last = (int(digits) if digits else None for digits in found.groups())
    if (first is None and last is None) or (first is not None and last is not None and last < first):
        return None
    return first, last


def partial(pieces: Iterator[bytes], begin: int, end: int, size: int) -> Pieces:
    """Return the answer with the bytes from ``begin`` up to ``end`` of ``size``."""
    response = Pieces(pieces, status=206)
    response["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    response["Content-Length"] = str(end - begin)
    return response
