"""Sentences in machine-readable form: clauses with codes and values."""

from __future__ import annotations

from typing import Any

import msgspec


class Clause(msgspec.Struct, frozen=True):
    """A part of a sentence: a stable code, and the values in it. The name of a measured value tells its unit (``_s``,
    ``_bytes``); a value that is itself a sentence is an object with its own ``text`` and ``said``."""

    code: str
    params: dict[str, Any]


def clauses(said: Any) -> list[Clause]:
    """Decode stored clauses; empty for rows from before clauses were stored."""
    return msgspec.convert(said or [], list[Clause])
