"""Removes terminal control sequences from texts of other people."""

from __future__ import annotations

import re
from typing import Final

# Operating system commands and similar sequences (titles, clipboard, links) with their content; CSI; other escapes.
_ESCAPES: Final = re.compile(
    r"(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HIDDEN: Final = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_ESCAPE: Final = 4096


def line(text: object) -> str:
    """Return one line without escape sequences, control characters and bidirectional marks."""
    bare = _CONTROLS.sub("", _ESCAPES.sub("", str(text)))
    return re.sub(r"[\t\r\n\u2028\u2029]+", " ", bare)


def lines(text: str) -> str:
    """Do the same for a text of several lines; its line breaks, returns and tabs stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def escaped(found: object, indent: int | None = None) -> str:
    """Return ``found`` as JSON in which every control character and bidirectional mark is escaped."""
    import json

    text = json.dumps(found, indent=indent, ensure_ascii=False)
    return _HIDDEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class CleanStream:
    """Cleans a text that arrives in pieces; an escape sequence cut by a piece's end is kept for the next piece."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> str:
        text = self._rest + text
        self._rest = ""
        found = list(_ESCAPES.finditer(text))
        last = found[-1] if found else None
        if last and last.end() == len(text) and len(last.group()) < _LONGEST_ESCAPE and not _complete(last.group()):
            text, self._rest = text[: last.start()], last.group()
        return lines(text)


def _complete(sequence: str) -> bool:
    if re.match(r"\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98]", sequence):
        return sequence.endswith(("\x07", "\x1b\\", "\x9c")) and len(sequence) > 2
    if sequence.startswith(("\x1b[", "\x9b")):
        return bool(re.search(r"[\[\x9b][0-?]*[ -/]*[@-~]$", sequence))
    return len(sequence) > 1 and sequence[-1] >= "0"
