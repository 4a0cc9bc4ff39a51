"""Matches files of a folder against the patterns of ``.gitignore`` and ``.yardignore``.

The rules are Git's: the last pattern that matches decides, ``!`` includes a file again, a slash at the end means
folders only, a slash elsewhere anchors the pattern to the folder of its file, ``**`` crosses folders. A file inside an
ignored folder cannot be included again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FILES = (".gitignore", ".yardignore")
"""Read in this order in every folder; a later file wins over an earlier one."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an ignore file. ``regex`` matches a path relative to the folder of the file."""

    regex: re.Pattern[str]
    negated: bool
    folders_only: bool


def parse(lines: Iterable[str]) -> list[Pattern]:
    """Return the patterns of an ignore file, in order; comments and empty lines are left out."""
    patterns = []
    for raw in lines:
        line = raw.rstrip("\r\n")
        line = re.sub(r"(?<!\\)\s+$", "", line)
        if not line or line.startswith("#"):
            continue
        negated = line.startswith("!")
        body = line[1:] if negated else line
        body = body[1:] if body.startswith(("\\#", "\\!")) else body
        folders_only = body.endswith("/")
        body = body.rstrip("/")
        if not body:
            continue
        try:
            patterns.append(Pattern(re.compile(_regex(body)), negated, folders_only))
        except re.error:
            continue  # a class such as [z-a] matches nothing in Git either
    return patterns


def verdict(patterns: Iterable[Pattern], path: str, is_folder: bool) -> bool | None:
    """Return True if ignored, False if included again, None if no pattern matches. ``path`` uses ``/`` and is
    relative."""
    answer: bool | None = None
    for pattern in patterns:
        if (is_folder or not pattern.folders_only) and pattern.regex.fullmatch(path):
            answer = not pattern.negated
    return answer


def _regex(body: str) -> str:
    anchored = "/" in body
    body = body.lstrip("/")
    out, i = [] if anchored else ["(?:.*/)?"], 0
    while i < len(body):
        if body.startswith("**/", i):
            out.append("(?:.*/)?")
            i += 3
        elif body.startswith("**", i):
            out.append(".*")
            i += 2
        elif body[i] == "*":
            out.append("[^/]*")
            i += 1
        elif body[i] == "?":
            out.append("[^/]")
            i += 1
        elif body[i] == "[" and (end := body.find("]", i + 2)) > 0:
            inside = body[i + 1 : end].replace("\\", "\\\\")
            out.append(f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]")
            i = end + 1
        elif body[i] == "\\" and i + 1 < len(body):
            out.append(re.escape(body[i + 1]))
            i += 2
        else:
            out.append(re.escape(body[i]))
            i += 1
    return "".join(out)
