"""Keeps what other people wrote from steering the reader's terminal."""

from __future__ import annotations

import re
from typing import Final

# Operating system commands and their like (titles, clipboard, links) with all they carry; CSI; any other escape.
_ESCAPES: Final = re.compile(
    r"(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_ESCAPE: Final = 4096


def line(text: object) -> str:
    """One line without escape sequences, control characters and marks that turn the direction of writing."""
    bare = _CONTROLS.sub("", _ESCAPES.sub("", str(text)))
    return re.sub(r"[\t\r\n\u2028\u2029]+", " ", bare)


def lines(text: str) -> str:
    """The same for a text of several lines: its line breaks, returns and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


class Stream:
    """Cleans a text that arrives in pieces; an escape sequence cut by a piece's end waits for its rest."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> str:
        text = self._rest + text
        self._rest = ""
        at = max(text.rfind("\x1b"), text.rfind("\x9b"), text.rfind("\x9d"))
        if at >= 0 and len(text) - at < _LONGEST_ESCAPE:
            found = _ESCAPES.match(text, at)
            if found and found.end() == len(text) and not _complete(found.group()):
                text, self._rest = text[:at], text[at:]
        return lines(text)


def _complete(sequence: str) -> bool:
    if re.match(r"\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98]", sequence):
        return sequence.endswith(("\x07", "\x1b\\", "\x9c")) and len(sequence) > 2
    if sequence.startswith(("\x1b[", "\x9b")):
        return bool(re.search(r"[\[\x9b][0-?]*[ -/]*[@-~]$", sequence))
    return len(sequence) > 1 and sequence[-1] >= "0"
