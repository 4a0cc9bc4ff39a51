"""The serializer of Django's cache in Redis: JSON, so that cached data can never execute code."""

from __future__ import annotations

from typing import Any

import msgspec


class JSONSerializer:
    """Serializes whole numbers in the form that Redis can count, and everything else as JSON."""

    def dumps(self, value: Any) -> int | bytes:
        return value if type(value) is int else msgspec.json.encode(value)

    def loads(self, content: bytes) -> Any:
        return msgspec.json.decode(content)
