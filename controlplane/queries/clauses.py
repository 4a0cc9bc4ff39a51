"""Sentences as programs read them: clauses with codes and values."""

from __future__ import annotations

from typing import Any

import msgspec


class Clause(msgspec.Struct, frozen=True):
    """A part of a sentence: a stable code, and the values that it shows. What measures something tells its unit by its
    name (``_s``, ``_bytes``); a value that somebody else has said is an object with its own ``text`` and ``said``."""

    code: str
    params: dict[str, Any]


def clauses(said: Any) -> list[Clause]:
    """Clauses as rows keep them; none of a row that is older than they are."""
    return msgspec.convert(said or [], list[Clause])
