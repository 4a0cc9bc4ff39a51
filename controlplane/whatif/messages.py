"""Messages between those who ask the engine and the process that computes the answers."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# The longest computation of one answer.
LONGEST_S: Final = 60
LARGEST_ANSWER_BYTES: Final = 8 * 2**20


class AskedQuestion(msgspec.Struct, frozen=True):
    """One question, and the language of the person who asks it."""

    name: str
    params: dict[str, Any]
    language: str


class Reply(msgspec.Struct, frozen=True):
    """The answer as JSON, or the fault why there is none."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    fault: str = ""
