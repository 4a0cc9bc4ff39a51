"""Prints lists and objects: a table for people, stable text for programs.

On a terminal a list is a table, cut to its width, with coloured states. In a pipe it is one row per line with tabs
between the cells, nothing cut or coloured, and ``-`` for an empty cell. ``json`` is the JSON of the REST interface,
unchanged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never

from switchyard.cli import clean, exits

if TYPE_CHECKING:
    import argparse

FORMATS: Final = ("table", "wide", "json", "jsonl", "yaml", "name")

AS_ROOT: Final = "stages run as root"  # any job can do anything to that node
COLOURS: Final[Mapping[str, str]] = {
    AS_ROOT: "31",
    "RUNNING": "34",
    "STARTING": "36",
    "STOPPING": "35",
    "SUSPENDED": "33",
    "COMPLETED": "32",
    "FAILED": "31",
    "LOST": "35",
    "UNHEALTHY": "31",
    "QUARANTINED": "31",
    "SUSPECT": "33",
    "DEGRADED": "33",
    "DRAINING": "33",
    "CANCELLED": "90",
    "HELD": "90",
    "READY": "32",
    "OK": "32",
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``of`` returns the text of a row. A ``wide`` one is shown with ``-o wide`` only."""

    title: str
    of: Callable[[Row], object]
    wide: bool = False
    right: bool = False


def options(parser: argparse.ArgumentParser, *, formats: Sequence[str] = FORMATS) -> None:
    """Add ``-o`` and related options to a verb."""
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", choices=formats, metavar="FORMAT", help=f"one of {', '.join(formats)}")
    group.add_argument("--json", action="store_const", const="json", dest="output", help="the same as -o json")
    if "table" in formats:
        group.add_argument("--no-headers", action="store_true", help="leave out the line of titles")
    if "wide" in formats:
        group.add_argument(
            "--columns",
            metavar="A,B",
            help="these columns of the table, in this order, by their titles; also wide ones",
        )


def coloured(stream: Any = None) -> bool:
    """Whether colours may be written to ``stream`` (see no-color.org)."""
    stream = stream or sys.stdout
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(state: str, stream: Any = None) -> str:
    """Return a state in its colour, if ``stream`` (default: standard output) accepts colours."""
    code = COLOURS.get(state)
    return f"\x1b[{code}m{state}\x1b[0m" if code and coloured(stream) else clean.line(state)


def many(
    args: argparse.Namespace, rows: Iterable[Row], columns: Sequence[Column], name: Callable[[Row], object]
) -> int:
    """Print a list in the requested format; return its number of rows. ``-o name`` prints ``name``."""
    style = args.output or ("table" if sys.stdout.isatty() else "plain")
    if style == "jsonl":
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007 - the last count is the answer
            print(clean.escaped(row), flush=True)
        return count
    chosen = _chosen(getattr(args, "columns", None), columns, style)
    found = list(rows)
    if style == "json":
        print(clean.escaped(found, indent=2))
    elif style == "yaml":
        print(_yaml(found), end="")
    elif style == "name":
        for row in found:
            print(clean.line(name(row)))
    elif style == "plain" or (style == "wide" and not sys.stdout.isatty()):
        _plain(found, chosen, headers=not args.no_headers)
    else:
        _table(found, chosen, headers=not args.no_headers, cut=style == "table" and sys.stdout.isatty())
    return len(found)


def _chosen(asked: str | None, columns: Sequence[Column], style: str) -> list[Column]:
    """Return the columns that are shown; ends the command if it asked for one that there is not."""
    if asked is None:
        return [column for column in columns if style == "wide" or not column.wide]
    if style not in ("table", "wide", "plain"):
        _refuse(f"--columns is for tables, not for {style}")
    known = {_plain_name(column.title): column for column in columns}
    wanted = [_plain_name(word) for word in asked.split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            _refuse(f"there is no column {clean.line(word)!r}; there are {', '.join(known)}")
    return [known[word] for word in wanted] or _refuse(f"--columns takes some of {', '.join(known)}")


def _plain_name(title: str) -> str:
    return "_".join(title.lower().replace("-", " ").replace("_", " ").split())


def _refuse(message: str) -> Never:
    print(f"error: {message} (usage)", file=sys.stderr)
    raise SystemExit(exits.USAGE)


def one(args: argparse.Namespace, thing: Row, text: Callable[[], Iterable[str]], name: object = "") -> None:
    """Print one object: as JSON or YAML, or as the lines that ``text`` returns."""
    style = args.output or "table"
    if style in ("json", "jsonl"):
        print(clean.escaped(thing, indent=2 if style == "json" else None))
    elif style == "yaml":
        print(_yaml(dict(thing)), end="")
    elif style == "name":
        print(clean.line(name))
    else:
        for written in text():
            print(written)


def _plain(rows: Sequence[Row], columns: Sequence[Column], *, headers: bool) -> None:
    """Print one row per line, cells separated by tabs, which no cell contains."""
    if headers:
        print("\t".join(column.title for column in columns))
    for row in rows:
        print("\t".join(clean.line(_text(column.of(row))) or "-" for column in columns))


def _table(rows: Sequence[Row], columns: Sequence[Column], *, headers: bool, cut: bool) -> None:
    lines = [[clean.line(_text(column.of(row))) for column in columns] for row in rows]
    if not lines:
        return
    lines = [[column.title for column in columns], *lines] if headers else lines
    widths = [max(_width(line[at]) for line in lines) for at in range(len(columns))]
    room = _columns() if cut else None
    for number, line in enumerate(lines):
        padded = []
        for at, text in enumerate(line):
            gap = " " * (widths[at] - _width(text))
            padded.append(gap + text if columns[at].right else text + gap)
        whole = _cut("  ".join(padded).rstrip(), room)
        if headers and number == 0:
            whole = f"\x1b[1m{whole}\x1b[0m" if coloured() else whole
        elif coloured():
            whole = _paint_states(whole, line)
        print(whole)


def _paint_states(whole: str, cells: Sequence[str]) -> str:
    for cell in cells:
        if cell in COLOURS:
            whole = whole.replace(f" {cell}", f" {paint(cell)}", 1)
    return whole


def _text(found: object) -> str:
    return "" if found is None else str(found)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _cut(text: str, room: int | None) -> str:
    if room is None or _width(text) <= room:
        return text
    while text and _width(text) > room - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def _columns() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns


def _yaml(found: Any) -> str:
    import yaml

    plain = json.loads(json.dumps(found))
    # Letters of every script stay readable, unless there are characters that could control a terminal.
    readable = clean.escaped(plain) == json.dumps(plain, ensure_ascii=False)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=readable))
