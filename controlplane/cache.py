"""What Django's cache keeps in Redis: JSON, so that nothing that lies there can run."""

from __future__ import annotations

from typing import Any

import msgspec


class JSONSerializer:
    """Writes whole numbers as Redis counts them, and everything else as JSON."""

    def dumps(self, value: Any) -> int | bytes:
        return value if type(value) is int else msgspec.json.encode(value)

    def loads(self, content: bytes) -> Any:
        return msgspec.json.decode(content)
