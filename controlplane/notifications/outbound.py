"""Requests to addresses that people name (:mod:`controlplane.addresses`), which never take long."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from controlplane import addresses
from controlplane.bounded_connection import BoundedConnection, ExchangeFailed

PATIENCE_S: Final = 5.0
# A server that sends a byte at a time is cut off all the same.
MOST_S: Final = 10.0
MOST_READ: Final = 4_096


@dataclass(frozen=True, slots=True)
class ReceivedAnswer:
    """The beginning of an answer. ``is_public`` says that the address is one that everybody reaches."""

    status: int
    body: bytes
    is_public: bool


class NotDelivered(Exception):
    """A request was not answered with success. ``code`` is stable; ``answer`` is what came all the same."""

    def __init__(self, code: str, answer: ReceivedAnswer | None = None) -> None:
        super().__init__(code)
        self.code, self.answer = code, answer


def _is_own(address: str) -> bool:
    """Whether an address that was connected to lies in one of the private networks that may be reached."""
    place = ipaddress.ip_address(address.partition("%")[0])
    return any((getattr(place, "ipv4_mapped", None) or place) in network for network in settings.WEBHOOK_NETWORKS)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> ReceivedAnswer:
    """Send a POST; returns the answer if it was 2xx. Raises NotDelivered."""
    try:
        parts = addresses.parsed(url, settings.WEBHOOK_NETWORKS)
        host, port, address = addresses.resolved(parts, settings.WEBHOOK_NETWORKS)
    except addresses.AddressRefused as error:
        raise NotDelivered(error.code) from None
    context = ssl.create_default_context() if parts.scheme == "https" else None
    connection = BoundedConnection(host, port, context, patience_s=PATIENCE_S, address=address)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with connection.cut_after(MOST_S):
            connection.request("POST", path, body=body, headers=dict(headers))
            response = connection.getresponse()
            answer = ReceivedAnswer(response.status, response.read(MOST_READ), not _is_own(address))
    except ExchangeFailed as failed:
        raise NotDelivered(failed.code) from None
    if not 200 <= answer.status < 300:
        raise NotDelivered(f"status_{answer.status}", answer)
    return answer
