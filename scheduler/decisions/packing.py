"""Compresses records: Zstandard if this Python has it, else zlib. Each record names its method."""

from __future__ import annotations

import contextlib
import importlib
import zlib
from typing import Any, Final

ZLIB: Final = 1
ZSTD: Final = 2
# Records are read rarely and written often.
_ZLIB_LEVEL: Final = 3
_ZSTD_LEVEL: Final = 3


def _zstd() -> Any:
    """Return the module of Zstandard: part of Python since 3.14, before that a package of its own; ``None`` without
    it."""
    for name in ("compression.zstd", "zstandard"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


_FOUND: Final = _zstd()


def pack(content: bytes) -> tuple[int, bytes]:
    """Return the compressed content, and the number of the method."""
    if _FOUND is not None:
        return ZSTD, _FOUND.compress(content, _ZSTD_LEVEL)
    return ZLIB, zlib.compress(content, _ZLIB_LEVEL)


def unpack(method: int, content: bytes) -> bytes:
    """Decompress. Raises ``ValueError`` if the content is damaged or this Python lacks the method."""
    if method == ZLIB:
        try:
            return zlib.decompress(content)
        except zlib.error as error:
            raise ValueError(f"a record is damaged: {error}") from None
    if method != ZSTD:
        raise ValueError(f"a record is packed by method {method}; known are {ZLIB} (zlib) and {ZSTD} (zstd)")
    if _FOUND is None:
        raise ValueError("a record is packed with Zstandard; install the package zstandard or use Python 3.14")
    try:
        return bytes(_FOUND.decompress(content))
    except _FOUND.ZstdError as error:
        raise ValueError(f"a record is damaged: {error}") from None
