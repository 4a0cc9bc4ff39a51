"""Reads JSON that an operator wrote: each key has a type and a range, and unknown keys are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

Check = Callable[[object], bool]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
PATH: Final = re.compile(r"/[A-Za-z0-9_.+@/-]{0,399}")


def is_number(least: float, most: float) -> Check:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_whole(least: int, most: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_text(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def is_path(value: object) -> bool:
    """Whether this is an absolute path of plain characters without ``..``."""
    return isinstance(value, str) and PATH.fullmatch(value) is not None and ".." not in value.split("/")


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def checked(where: str, value: object, keys: Mapping[str, Check], needed: tuple[str, ...] = ()) -> None:
    """Raise ValidationError unless ``value`` is a mapping of these keys, each as its check accepts it."""
    if not isinstance(value, Mapping):
        raise ValidationError(_("%(where)s must map names to values"), params={"where": where})
    for key in value:
        if key not in keys:
            known = ", ".join(sorted(keys)) or "-"
            said = _("%(where)s has no %(key)s; there are %(known)s")
            raise ValidationError(said, params={"where": where, "key": str(key)[:60], "known": known})
    for key in needed:
        if key not in value:
            raise ValidationError(_("%(where)s needs %(key)s"), params={"where": where, "key": key})
    for key, one in value.items():
        if not keys[key](one):
            said = _("%(where)s: %(key)s cannot be %(value)s")
            raise ValidationError(said, params={"where": where, "key": key, "value": _short(one)})


def _short(value: Any) -> str:
    return repr(value)[:60]
