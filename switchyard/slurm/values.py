"""Reads values as Slurm writes them: times, sizes, generic resources, moments, dependencies, arrays.

Every reader raises :class:`UnreadableValue`, with what would be accepted, for anything else; no value is larger than
what a job file accepts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

YEAR_S: Final = 366 * 86_400
MOST_DEPENDENCIES: Final = 64
MOST_INDEXES: Final = 10_000
_UNLIMITED: Final = ("unlimited", "infinite", "-1", "0")
_TIMES: Final = (
    (r"(?P<m>\d{1,9})", "minutes"),
    (r"(?P<m>\d{1,9}):(?P<s>\d{1,9})", "minutes:seconds"),
    (r"(?P<h>\d{1,9}):(?P<m>\d{1,9}):(?P<s>\d{1,9})", "hours:minutes:seconds"),
    (r"(?P<d>\d{1,9})-(?P<h>\d{1,9})(?::(?P<m>\d{1,9})(?::(?P<s>\d{1,9}))?)?", "days-hours:minutes:seconds"),
)
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE: Final = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_HOURS: Final = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}
_WHEN: Final = ("after", "afterany", "afternotok", "afterok", "aftercorr")


class UnreadableValue(ValueError):
    """A value that cannot be read; the text says what would be accepted."""


def whole(text: str, least: int = 1) -> int:
    """Read a whole number."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise UnreadableValue(f"give a whole number of at least {least}")
    return int(text)


def seconds(text: str) -> int | None:
    """Read a time limit: ``30`` (minutes), ``2:30``, ``1:00:00``, ``1-12``, ``1-12:30:00``; None for no limit."""
    if text.lower() in _UNLIMITED:
        return None
    for pattern, _ in _TIMES:
        if found := re.fullmatch(pattern, text, re.ASCII):
            parts = {name: int(value or 0) for name, value in found.groupdict().items()}
            total = sum(value * _UNIT_S[name] for name, value in parts.items())
            if not 0 < total <= YEAR_S:
                raise UnreadableValue("a time limit is from a second to 366 days")
            return total
    raise UnreadableValue("give " + ", ".join(name for _, name in _TIMES) + " or days-hours")


def span(total: int) -> str:
    """Write seconds for a job file: ``02:00:00``, ``1-12:00:00``."""
    days, rest = divmod(total, 86_400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def size(text: str) -> int:
    """Read a size in bytes; without a unit, it is in MiB."""
    found = re.fullmatch(r"([0-9]{1,12})([KkMmGgTt]?)[Bb]?", text)
    if not found:
        raise UnreadableValue("give a size such as 4000 (MiB), 512M, 16G or 1T")
    return int(found[1]) * _SIZE[found[2].lower()]


def written(count: int) -> str:
    """Write bytes for a job file, in the largest unit that is exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = 1 << {"TiB": 40, "GiB": 30, "MiB": 20, "KiB": 10}[unit]
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


@dataclass(frozen=True, slots=True)
class Resource:
    """One generic resource: ``gpu:a100:4`` is kind gpu, type a100, count 4."""

    kind: str
    model: str
    count: int

    def ask(self) -> dict[str, object]:
        """Return the ask of a job file."""
        if self.kind == "mps":
            # Percent of one device.
            return {"kind": "gpu", "milli": min(1000, self.count * 10)}
        named = {}
        if re.fullmatch(r"[0-9]+g\.[0-9]+gb.*", self.model):
            named = {"partition": self.model}
        elif self.model:
            named = {"model": self.model}
        return {"kind": self.kind, **named, "count": self.count}


def resources(text: str) -> list[Resource]:
    """Read ``--gres``: ``gpu:2``, ``gpu:a100:4,npu:1``; a count of 0 or ``none`` is left out."""
    found = []
    for part in text.split(","):
        words = part.removeprefix("gres/").replace("=", ":").split(":")
        if words[0].lower() == "none":
            continue
        count = words.pop() if len(words) > 1 and re.fullmatch(r"[0-9]{1,6}", words[-1]) else "1"
        if not 1 <= len(words) <= 2 or not all(
            re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,59}", word, re.ASCII) for word in words
        ):
            raise UnreadableValue("write resources as kind[:model][:count], such as gpu:a100:4")
        if int(count):
            found.append(Resource(words[0].lower(), words[1] if len(words) > 1 else "", int(count)))
    return found


def gpus(text: str) -> list[Resource]:
    """Read ``--gpus`` and its like: ``4``, ``a100:2``, ``a100:2,h100:1``."""
    found = []
    for part in text.split(","):
        model, _, count = part.rpartition(":")
        if model and not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,59}", model, re.ASCII):
            raise UnreadableValue("write them as [model:]count, such as a100:2")
        if not re.fullmatch(r"[0-9]{1,6}", count):
            raise UnreadableValue("write them as [model:]count, such as a100:2")
        if int(count):
            found.append(Resource("gpu", model, int(count)))
    return found


def moment(text: str, now: datetime) -> datetime:
    """Read a time as ``--begin`` and ``--deadline`` take it, in the zone of ``now``."""
    word = text.strip().lower()
    try:
        found = _moment(word, now)
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise UnreadableValue("give a time such as 2027-01-31T18:00:00, 18:00, tomorrow or now+2hours")
    return found


def _moment(word: str, now: datetime) -> datetime | None:
    if relative := re.fullmatch(r"now(?:\+([0-9]{1,9})\s*([a-z]*))?", word):
        unit = relative[2] or "s"
        if unit.rstrip("s") not in ("", "econd", "minute", "hour", "day", "week", "second", "m", "h", "d", "w"):
            return None
        return now + timedelta(seconds=int(relative[1] or 0) * _UNIT_S[unit[0]])
    if word == "today":
        return now
    if word == "tomorrow":
        return now + timedelta(days=1)
    clock = re.fullmatch(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*([ap]m)?", word)
    if clock or word in _HOURS:
        hour = (
            _HOURS[word] if not clock else int(clock[1]) % 12 + 12 * (clock[4] == "pm") if clock[4] else int(clock[1])
        )
        minute, second = (int(clock[2]), int(clock[3] or 0)) if clock else (0, 0)
        found = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return found if found > now else found + timedelta(days=1)
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(t[0-9]{2}:[0-9]{2}(:[0-9]{2})?)?", word):
        return datetime.fromisoformat(word.upper()).replace(tzinfo=now.tzinfo)
    if day := re.fullmatch(r"([0-9]{2})/?([0-9]{2})(?:/?([0-9]{2}))?", word):
        year = 2000 + int(day[3]) if day[3] else now.year
        return now.replace(year=year, month=int(day[1]), day=int(day[2]), hour=0, minute=0, second=0, microsecond=0)
    return None


def utc(found: datetime) -> str:
    """Write a time for a job file."""
    return found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a job waits for, in the shape of a job file, and what of it was left out."""

    needs: list[dict[str, object]]
    left_out: list[str]


def dependencies(text: str) -> Dependencies:
    """Read ``afterok:1:2,afterany:3,singleton``."""
    if "?" in text:
        raise UnreadableValue("a job file knows no `or`; join dependencies with commas, which is `and`")
    needs: list[dict[str, object]] = []
    left_out: list[str] = []
    for part in text.split(","):
        when, *jobs = part.strip().split(":")
        if when == "singleton" and not jobs:
            needs.append({"when": "singleton"})
        elif when not in _WHEN or not jobs:
            raise UnreadableValue(
                "write it as afterok:12:13,afterany:14; there are " + ", ".join((*_WHEN, "singleton"))
            )
        for job in jobs:
            found = re.fullmatch(r"([0-9]{1,9})(_[0-9]{1,9})?(\+[0-9]{1,9})?", job)
            if not found:
                raise UnreadableValue("name jobs by their numbers, such as afterok:12 or afterok:12_3")
            if found[3]:
                left_out.append(f"the delay of {found[3][1:]} minutes")
            needs.append({"job": found[1] + found[2] if found[2] else int(found[1]), "when": when})
    if len(needs) > MOST_DEPENDENCIES:
        raise UnreadableValue(f"at most {MOST_DEPENDENCIES} dependencies are accepted")
    return Dependencies(needs, left_out)


def array(text: str) -> dict[str, object]:
    """Read ``0-9%2`` and ``1,3,5-9:2``."""
    indexes, percent, most = text.partition("%")
    ranges = indexes.split(",")
    count = 0
    for each in ranges[: MOST_INDEXES + 1]:
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", each)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        step = int(found[3] or 1) if found else 1
        if last < first or not step:
            raise UnreadableValue("write indexes as 0-9, 1,3,5 or 0-30:10, and %2 behind them for two at a time")
        count += (last - first) // step + 1
    if count > MOST_INDEXES:
        raise UnreadableValue(f"an array has at most {MOST_INDEXES:,} indexes")
    return {"indexes": indexes, **({"max_parallel": whole(most)} if percent else {})}


def signal(text: str) -> tuple[bool, str, int]:
    """Read ``[R][B:]SIGNAL[@seconds]``: whether it goes to the script alone, the signal's name, seconds before the
    limit."""
    found = re.fullmatch(r"(?:(R?B|BR?|R):)?(?:SIG)?([A-Z0-9]{1,8})(?:@([0-9]{1,5}))?", text.strip(), re.IGNORECASE)
    name = found[2].upper() if found else ""
    name = NUMBERS.get(name, name)
    if not found or name not in NUMBERS.values():
        raise UnreadableValue("write it as USR1@120 or B:TERM@60")
    return "B" in (found[1] or "").upper(), name, int(found[3] or 60)


NUMBERS: Final[Mapping[str, str]] = {
    "1": "HUP", "2": "INT", "3": "QUIT", "6": "ABRT", "9": "KILL", "10": "USR1", "12": "USR2", "14": "ALRM",
    "15": "TERM", "18": "CONT", "24": "XCPU", "30": "PWR",
}  # fmt: skip
