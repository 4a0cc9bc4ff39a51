"""Readers of single values of a job file: each returns the value, or raises with what it would accept.

Their messages are in the language of the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeVar

from django.utils.translation import gettext as _

from controlplane.wellformed import EARLIEST, LATEST

SIZE_UNITS: Final = {
    **{prefix + "b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t", "p"))},
    **{prefix + suffix: 1024**power for power, prefix in enumerate("kmgtp", 1) for suffix in ("ib", "i", "")},
}
DURATION_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_BANDWIDTH = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGTkmgt])(i?B|bit)/s")
_UNITS = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?\s*(?:w|d|h|m|s)\s*)+")
_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([wdhms])")
_CLOCK = re.compile(r"(?:([0-9]{1,4})-)?(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{1,2})")
_ISO = re.compile(r"P(?:([0-9.]+)W)?(?:([0-9.]+)D)?(?:T(?:([0-9.]+)H)?(?:([0-9.]+)M)?(?:([0-9.]+)S)?)?")


T = TypeVar("T")


class Unacceptable(ValueError):
    """Raised for an invalid value of a job file; the text says what would be accepted."""

    def __init__(self, detail: str, code: str = "invalid") -> None:
        super().__init__(detail)
        self.code = code


Reader = Callable[[object], T]


def shown(value: object) -> str:
    """Quote the value for an error message: short, on one line."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= 60 else text[:57] + "..."


def listed(words: Iterable[str]) -> str:
    """Join words with the list separator of the reader's language."""
    return _("{one}, {other}").format(one="", other="").join(words)


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a clause that suggests the most similar valid word, or lists all of them."""
    known = sorted(words)
    if close := get_close_matches(word, known, n=1, cutoff=0.6):
        return _("did you mean {word}?").format(word=close[0])
    return _("there are {words}").format(words=listed(known)) if known else _("there are none")


def whole(low: int, high: int) -> Reader[int]:
    """Return a reader of whole numbers within the range, both ends included."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Unacceptable(
                _("must be a whole number from {low} to {high}, not {value}").format(
                    low=low, high=high, value=shown(value)
                ),
                "out_of_range",
            )
        return value

    return read


def number(low: float, high: float) -> Reader[float]:
    """Return a reader of numbers within the range, both ends included."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise Unacceptable(
                _("must be a number from {low} to {high}, not {value}").format(
                    low=f"{low:g}", high=f"{high:g}", value=shown(value)
                ),
                "out_of_range",
            )
        return float(value)

    return read


def flag(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise Unacceptable(_("must be true or false, not {value}").format(value=shown(value)))
    return value


def choice(*words: str) -> Reader[str]:
    """Return a reader of one of these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise Unacceptable(
                _("must be one of {words}, not {value}").format(words=listed(words), value=shown(value)),
                "unknown_value",
            )
        return value

    return read


def matching(pattern: re.Pattern[str], allowed: str) -> Reader[str]:
    """Return a reader of texts that fully match the pattern.

    ``allowed`` describes the accepted texts in words, marked for translation.
    """

    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise Unacceptable(_("must be {what}, not {value}").format(what=_(allowed), value=shown(value)))
        return value

    return read


def text(longest: int) -> Reader[str]:
    """Return a reader of texts that are not blank and contain no NUL."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Unacceptable(_("must be a text, not {value}").format(value=shown(value)))
        if len(value) > longest or "\0" in value:
            raise Unacceptable(_("must have at most {n} characters and no NUL").format(n=longest), "too_long")
        return value

    return read


def size(low: int, high: int) -> Reader[int]:
    """Return a reader of bytes: a whole number, or one with a unit (``8GiB``, ``512MB``; bare K, M, G, T is binary)."""

    def read(value: object) -> int:
        count = parse_size(value)
        if not low <= count <= high:
            raise Unacceptable(
                _("must lie between {low} and {high}, not {value}").format(
                    low=binary(low), high=binary(high), value=shown(value)
                ),
                "out_of_range",
            )
        return count

    return read


def parse_size(value: object) -> int:
    """Return the bytes of a size. Raises :class:`Unacceptable`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 40 else None
    unit = SIZE_UNITS.get((match[2] or "b").lower()) if match else None
    if not match or unit is None:
        raise Unacceptable(
            _("must be a size such as 8GiB, 512MB or a number of bytes, not {value}").format(value=shown(value))
        )
    return math.ceil(float(match[1]) * unit)


def bandwidth(high: int) -> Reader[int]:
    """Return a reader of bandwidths from 1 to ``high`` MB/s, in whole MB/s, rounded up (``500MB/s``, ``10Gbit/s``)."""

    def read(value: object) -> int:
        match = _BANDWIDTH.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 40 else None
        if not match:
            raise Unacceptable(
                _("must be a bandwidth such as 500MB/s or 10Gbit/s, not {value}").format(value=shown(value))
            )
        in_bits = match[3] == "bit"
        unit = SIZE_UNITS[f"{match[2]}{'b' if in_bits else match[3]}".lower()] / (8 if in_bits else 1)
        found = math.ceil(float(match[1]) * unit / 1_000_000)
        if not 1 <= found <= high:
            raise Unacceptable(
                _("must lie between {low} and {high}, not {value}").format(
                    low="1 MB/s", high=f"{high} MB/s", value=shown(value)
                ),
                "out_of_range",
            )
        return found

    return read


def binary(count: int) -> str:
    """Format bytes in the largest binary unit that leaves a short number: ``8 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def duration(low: float, high: float, bound: str = "") -> Reader[float]:
    """Return a reader of seconds: a number, ``12h``, ``1h30m``, ``1-02:00:00``, ``30:00`` or ISO 8601 ``PT1H30M``.

    ``02:00:00`` is accepted too. ``bound`` says in a refusal where the upper bound comes from.
    """

    def read(value: object) -> float:
        span = parse_duration(value)
        if not low <= span <= high:
            said = (
                _("must lie between {low} and {high} ({bound}), not {value}")
                if bound
                else _("must lie between {low} and {high}, not {value}")
            )
            given = said.format(low=spoken(low), high=spoken(high), bound=bound, value=shown(value))
            raise Unacceptable(given, "out_of_range")
        return span

    return read


def parse_duration(value: object) -> float:
    """Return the seconds of a duration. Raises :class:`Unacceptable`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    word = value.strip() if isinstance(value, str) and len(value) <= 60 else ""
    try:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", word):
            return float(word)
        if _UNITS.fullmatch(word):
            return sum(float(count) * DURATION_UNITS[unit] for count, unit in _UNIT.findall(word))
        if match := _CLOCK.fullmatch(word):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return float(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
        if (match := _ISO.fullmatch(word.upper())) and word[-1] not in "PpTt":
            weeks, days_, hours_, minutes_, seconds_ = (float(part or 0) for part in match.groups())
            return weeks * 604_800 + days_ * 86_400 + hours_ * 3600 + minutes_ * 60 + seconds_
    except ValueError:
        pass
    raise Unacceptable(
        _("must be a duration such as 90s, 12h, 1-02:00:00, PT1H or a number of seconds, not {value}").format(
            value=shown(value)
        )
    )


def spoken(span: float) -> str:
    """Format seconds as in a job file: ``1d12h``, ``30s``."""
    if span < 1 or span != int(span):
        return f"{span:g}s"
    left, words = int(span), ""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        words += f"{count}{unit}" if count else ""
    return words or "0s"


def moment(value: object) -> datetime:
    """Read a date and time with a time zone, and return it in UTC."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) and len(value) <= 40 else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Unacceptable(
            _("must be a date and time with a zone, such as 2027-01-31T18:00:00Z, not {value}").format(
                value=shown(value)
            )
        )
    if not EARLIEST <= at <= LATEST:
        raise Unacceptable(
            _("must lie between {low} and {high}, not {value}").format(
                low=EARLIEST.year, high=LATEST.year, value=shown(value)
            ),
            "out_of_range",
        )
    return at.astimezone(UTC)
