"""Reads tables with errors by line and column: CSV, SWF or JSON lines, compressed or not.

The same steps for all formats: text becomes fields with their line numbers; fields are checked by column; rows are
sorted. Nothing is ignored silently: a row that cannot be read is an error, and notes tell what was sorted or left out.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TextIO, cast

from scheduler.core.model.clauses import Clause, Said, clause, several, spoken
from scheduler.core.model.sentences import _

Fields = tuple[int, Mapping[str, str]]

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LONGEST_TEXT: Final = 500
# The standard workload format, version 2.2 (Feitelson, Parallel Workloads Archive): 18 fields of one job per line.
SWF_FIELDS: Final = (
    *("job", "submit_s", "wait_s", "run_s", "processors", "cpu_s", "memory_kb"),
    *("asked_processors", "asked_s", "asked_memory_kb", "status", "user", "group"),
    *("executable", "queue", "partition", "after", "think_s"),
)


class TraceError(ValueError):
    """The line and the column at which a trace cannot be read. Line 0 is the file as a whole."""

    def __init__(self, line: int, column: str, problem: str) -> None:
        place = _("line {line}").format(line=line) if line else _("the file")
        if column:
            place = _('{place}, column "{column}"').format(place=place, column=column)
        super().__init__(_("{place}: {problem}").format(place=place, problem=problem))
        self.line, self.column, self.problem = line, column, problem


@dataclass(frozen=True, slots=True)
class TraceColumn:
    """A column by name and its accepted values. ``least`` and ``most`` bound numbers; ``absent`` are the texts for
    "unknown", replaced by ``default`` unless the column is ``required``.

    ``kind``: *text*; *number*; *whole* (number); *time* (seconds since the epoch, or a date and time, in UTC without a
    zone); *ids* (several texts, joined by ``;``).
    """

    name: str
    kind: Literal["text", "number", "whole", "time", "ids"] = "text"
    required: bool = True
    least: float = 0.0
    most: float = 1e15
    default: Any = None
    absent: tuple[str, ...] = ("",)

    @property
    def accepts(self) -> str:
        """Return what is accepted here, as the end of a sentence."""
        if self.kind in ("number", "whole"):
            sort = _("a whole number") if self.kind == "whole" else _("a number")
            if self.most < 1e15:
                return _("{sort} of at least {least:g} and at most {most:,.15g}").format(
                    sort=sort, least=self.least, most=self.most
                )
            return _("{sort} of at least {least:g}").format(sort=sort, least=self.least)
        if self.kind == "time":
            return _('a number of seconds, or a date and time such as "2017-10-09 07:01:55"')
        if self.kind == "ids":
            return _("ids joined by ;")
        return _("text of at most {most} printable characters").format(most=_LONGEST_TEXT)

    def read(self, text: str, line: int) -> Any:
        """Parse a field; raises :class:`TraceError`."""
        if text in self.absent:
            if self.required:
                problem = _('"{value}" means that it is not known').format(value=text) if text else _("is empty")
                raise TraceError(
                    line, self.name, _("{problem}; it must be {accepts}").format(problem=problem, accepts=self.accepts)
                )
            return self.default
        value = self._value(text)
        if value is None:
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise TraceError(
                line, self.name, _('"{value}" must be {accepts}').format(value=shown, accepts=self.accepts)
            )
        return value

    def _value(self, text: str) -> Any:
        if self.kind == "text":
            return text if len(text) <= _LONGEST_TEXT and text.isprintable() else None
        if self.kind == "ids":
            return tuple(word for part in text.split(";") if (word := part.strip())) if text.isprintable() else None
        number = float(text) if _NUMBER.fullmatch(text) else None
        if number is None and self.kind == "time":
            try:
                at = datetime.fromisoformat(text)
            except ValueError:
                return None
            number = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if number is None or not self.least <= number <= self.most:
            return None
        if self.kind == "whole":
            return int(number) if number == int(number) else None
        return number


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The values of one line by the names of its columns."""

    line: int
    values: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.values[column]


@dataclass(slots=True)
class TraceTable:
    """The usable rows, notes on the others, and how many were left out."""

    rows: list[TraceRow]
    said: list[Said] = field(default_factory=list)
    left_out: int = 0

    def leave_out(self, wrong: Callable[[TraceRow], bool], why: Clause) -> None:
        """Drop the rows for which ``wrong`` holds, and note how many and ``why``."""
        kept = [row for row in self.rows if not wrong(row)]
        dropped = len(self.rows) - len(kept)
        if dropped:
            first = next(row.line for row in self.rows if wrong(row))
            code = several(dropped, "RowLeftOut", "RowsLeftOut")
            self.said.append((clause(code, count=dropped, line=first, **spoken(why=(why,))),))
            self.rows, self.left_out = kept, self.left_out + dropped


def read_table(
    source: str | Path | Iterable[str],
    columns: Sequence[TraceColumn],
    *,
    form: Literal["auto", "csv", "swf", "jsonl"] = "auto",
    key: str | None = None,
    repeats: bool = False,
    order_by: str | None = None,
) -> TraceTable:
    """Read the rows of a file (``.gz`` is decompressed) or of lines of text; columns that are not named are ignored.

    With ``form`` *auto* the file's name decides: ``.swf`` and ``.jsonl``, else CSV. Two rows with the same ``key``, or
    equal rows without a key, are refused; with ``repeats`` equal rows are kept as separate rows, with a note. Rows out
    of the order of ``order_by`` are sorted, with a note. Raises :class:`TraceError`.
    """
    source = Path(source) if isinstance(source, str) else source
    if form == "auto":
        name = source.name.removesuffix(".gz") if isinstance(source, Path) else ""
        form = "swf" if name.endswith(".swf") else "jsonl" if name.endswith((".jsonl", ".ndjson")) else "csv"
    table = TraceTable([])
    seen: dict[Any, int] = {}
    equal = 0
    with _lines(source) as lines:
        for line, fields in _READERS[form](_decoded(lines), columns):
            values = {column.name: column.read(fields.get(column.name, "").strip(), line) for column in columns}
            own = values[key] if key else None
            mark = tuple(sorted(fields.items())) if own is None else own
            first = seen.setdefault(mark, line)
            if first != line:
                if own is not None:
                    problem = _('"{value}" was already used in line {line}; each row needs its own').format(
                        value=own, line=first
                    )
                    raise TraceError(line, str(key), problem)
                if not repeats:
                    problem = _('is the same as line {line}; if both are meant, tell them apart in a column "id"')
                    raise TraceError(line, "", problem.format(line=first))
                equal += 1
            table.rows.append(TraceRow(line, values))
    if equal:
        code = several(equal, "RowTwice", "RowsTwice")
        table.said.append((clause(code, count=equal),))
    if order_by:
        _sort(table, order_by)
    return table


def _sort(table: TraceTable, by: str) -> None:
    late, latest = 0, float("-inf")
    for row in table.rows:
        late += row[by] < latest
        latest = max(latest, row[by])
    if late:
        table.rows.sort(key=lambda row: (row[by], row.line))
        code = several(late, "RowSorted", "RowsSorted")
        table.said.append((clause(code, count=late, column=by),))


# -- from text to fields ----------------------------------------------------------------------------------------------


def open_text(path: Path) -> TextIO:
    """Open a text file, decompressed if its name ends in ``.gz``; the caller closes it."""
    if path.name.endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _lines(source: Path | Iterable[str]) -> AbstractContextManager[Iterable[str]]:
    return open_text(source) if isinstance(source, Path) else nullcontext(source)


def _decoded(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; errors of a damaged file become a TraceError."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):  # noqa: B007
            yield line
    except UnicodeDecodeError as error:
        problem = _("is not text in UTF-8 ({reason}); save the file as UTF-8").format(reason=error.reason)
        raise TraceError(number + 1, "", problem) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = _("is not a whole gzip file ({reason}); its name ends in .gz").format(reason=error)
        raise TraceError(0, "", problem) from error


def _csv(lines: Iterator[str], columns: Sequence[TraceColumn]) -> Iterator[Fields]:
    rows = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(header, columns)
        for row in rows:
            if not row:
                continue  # an empty line
            if len(row) != len(header):
                problem = _("has {fields} fields; the header names {columns} columns").format(
                    fields=len(row), columns=len(header)
                )
                raise TraceError(rows.line_num, "", problem)
            yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise TraceError(rows.line_num, "", _("is not CSV ({reason})").format(reason=error)) from error


def _check_header(header: Sequence[str], columns: Sequence[TraceColumn]) -> None:
    needs = [one.name for one in columns if one.required]
    may = [one.name for one in columns if not one.required]
    for name in needs:
        if name not in header:
            problem = _("is missing; this table needs {needs}")
            if may:
                problem = _("is missing; this table needs {needs} and may have {may}")
            raise TraceError(1, name, problem.format(needs=", ".join(needs), may=", ".join(may)))
    for name in {*needs, *may}:
        if header.count(name) > 1:
            problem = _("is there {n} times; each column needs its own name").format(n=header.count(name))
            raise TraceError(1, name, problem)


def _swf(lines: Iterator[str], columns: Sequence[TraceColumn]) -> Iterator[Fields]:
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(";"):
            continue
        fields = text.split()
        if len(fields) != len(SWF_FIELDS):
            problem = _("has {fields} fields; a line of SWF has {needed}").format(
                fields=len(fields), needed=len(SWF_FIELDS)
            )
            raise TraceError(number, "", problem)
        yield number, dict(zip(SWF_FIELDS, fields, strict=True))


def _jsonl(lines: Iterator[str], columns: Sequence[TraceColumn]) -> Iterator[Fields]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = _("is not JSON ({reason}); each line must be one JSON object").format(reason=error)
            raise TraceError(number, "", problem) from error
        if not isinstance(found, dict):
            raise TraceError(number, "", _("must be a JSON object, with the names of the columns as keys"))
        for column in columns:
            if column.required and column.name not in found:
                problem = _("is missing; it must be {accepts}").format(accepts=column.accepts)
                raise TraceError(number, column.name, problem)
        yield number, {name: _text(value, number, name) for name, value in found.items()}


def _text(value: object, line: int, column: str) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ";".join(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bool | dict | list):
        return json.dumps(value, sort_keys=True)  # checked if the column is one that is read
    raise TraceError(line, column, _("must be text, a number, or a list of texts"))


_READERS: Final[Mapping[str, Callable[[Iterator[str], Sequence[TraceColumn]], Iterator[Fields]]]] = {
    "csv": _csv,
    "swf": _swf,
    "jsonl": _jsonl,
}
