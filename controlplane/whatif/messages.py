"""What goes between whoever asks the engine and the process that thinks about it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# How long the engine may think about one question.
LONGEST_S: Final = 60
LARGEST_ANSWER_BYTES: Final = 8 * 2**20


class Asked(msgspec.Struct, frozen=True):
    """One question, and the language of whoever asks it."""

    name: str
    params: dict[str, Any]
    language: str


class Reply(msgspec.Struct, frozen=True):
    """The answer as JSON, or why there is none."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    fault: str = ""
