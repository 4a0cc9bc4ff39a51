"""Reads one mapping of a job file: every value is accepted or refused, and unknown keys are refused too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.utils.translation import gettext as _

from controlplane.jobs.values import Reader, Unacceptable, nearest, shown

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FieldError:
    """A fault of a job file: what is wrong, where (a JSON pointer, RFC 6901), and what would be accepted."""

    pointer: str
    detail: str
    code: str


def step(key: object) -> str:
    """Return a key as one step of a JSON pointer."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


LONGEST_KEY: Final = 100


class Section:
    """The mapping at ``pointer``; its faults are appended to ``refusals``.

    ``keys`` are the valid keys; ``later`` are keys that this version does not support yet. Keys in ``inherited`` come
    from the top of the file, and their faults are reported there.
    """

    def __init__(
        self,
        value: object,
        pointer: str,
        refusals: list[FieldError],
        keys: Iterable[str],
        later: Iterable[str] = (),
    ) -> None:
        self.pointer, self.refusals = pointer, refusals
        self.inherited: frozenset[str] = frozenset()
        self.values: Mapping[str, Any] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            self.refuse("", _("must be a mapping, not {value}").format(value=shown(value)), "not_a_mapping")
            return
        known, planned = set(keys), set(later)
        for key in value:
            if key in planned:
                detail = _("{key} is not supported by this version; leave it out").format(key=key)
                self.refuse(key, detail, "unsupported")
            elif key not in known:
                detail = _("there is no key {key} here; {others}").format(
                    key=shown(key), others=nearest(str(key), known)
                )
                # As a pointer it is cut, like in the sentence: it may be very long.
                self.refuse(str(key)[:LONGEST_KEY], detail, "unknown_key")

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def read(self, key: str, reader: Reader[T], default: T) -> T:
        """Return the value of ``key``; the default if it is absent or refused."""
        value = self.values.get(key)
        if value is None:
            return default
        try:
            return reader(value)
        except Unacceptable as error:
            self.refuse(key, f"{key} {error}", error.code)
            return default

    def each(self, key: str, longest: int) -> list[Any]:
        """Return the items of the list at ``key``; empty if it is absent or not a list."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > longest:
            detail = _("{key} must be a list of at most {n} items").format(key=key, n=longest)
            self.refuse(key, detail, "not_a_list")
            return []
        return value

    def at(self, key: str) -> str:
        """Return the pointer of ``key``, which may be a relative pointer of several steps, or empty for the section."""
        relative = key if key.startswith("/") or not key else step(key)
        return (
            relative
            if relative.split("/")[1:2] and relative.split("/")[1] in self.inherited
            else self.pointer + relative
        )

    def refuse(self, key: str, detail: str, code: str = "invalid") -> None:
        """Record a fault of ``key``."""
        self.refusals.append(FieldError(self.at(key), detail, code))
