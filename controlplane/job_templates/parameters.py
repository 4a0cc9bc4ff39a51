"""The parameters of a template: their types and bounds, and the job file with values in their places. Pure.

A place is ``{{name}}`` in any text of the file. A text that is nothing else becomes the value with its type; within a
longer text the value is written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.jobs.section import FieldError, Section
from controlplane.jobs.values import Unacceptable, choice, flag, nearest, number, shown, whole

MOST: Final = 32
LONGEST_TEXT: Final = 1_000
TYPES: Final = ("text", "integer", "number", "boolean", "choice")
KEYS: Final = ("name", "title", "type", "default", "min", "max", "choices")
HIGHEST: Final = 10**12
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PLACE: Final = re.compile(r"\{\{\s*([a-z][a-z0-9_]{0,31})\s*\}\}")


def check(parameters: Sequence[Any]) -> list[FieldError]:
    """Return the faults of the parameters of a template."""
    faults: list[FieldError] = []
    names: set[str] = set()
    for index, each in enumerate(parameters):
        part = Section(each, f"/parameters/{index}", faults, KEYS)
        if not isinstance(each, dict):
            continue
        name, kind = part.values.get("name"), part.read("type", choice(*TYPES), "text")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in names:
            detail = _("{name} must be another name of up to 32 lower-case letters, digits and _, a letter first")
            part.refuse("name", detail.format(name=shown(name)), "invalid_name")
            continue
        names.add(name)
        if part.has("title") and (not isinstance(each["title"], str) or len(each["title"]) > 100):
            part.refuse("title", _("must be a text of at most 100 characters"))
        if kind in ("integer", "number"):
            for key in ("min", "max"):
                if not part.has(key):
                    part.refuse(key, _("{key} is missing: a number has bounds").format(key=key), "missing")
                part.read(key, number(-HIGHEST, HIGHEST), 0.0)
        choices = each.get("choices")
        if kind == "choice" and not (
            isinstance(choices, list)
            and 1 <= len(choices) <= 50
            and all(isinstance(one, str) and 0 < len(one) <= 200 for one in choices)
        ):
            part.refuse("choices", _("choices must be a list of 1 to 50 texts"), "not_a_list")
        elif not faults and part.has("default"):
            part.read("default", partial(_value, each), None)
    return faults


def _value(parameter: Mapping[str, Any], value: object) -> Any:
    """Return a value in the type of its parameter; numbers and booleans may be written as text. Raises
    :class:`Unacceptable`."""
    kind = parameter.get("type", "text")
    if kind == "boolean":
        return flag({"true": True, "false": False}.get(value, value) if isinstance(value, str) else value)
    if kind == "choice":
        return choice(*parameter["choices"])(value)
    if kind == "text":
        if not isinstance(value, str) or len(value) > LONGEST_TEXT or "\0" in value:
            raise Unacceptable(_("must be a text of at most {n} characters").format(n=LONGEST_TEXT))
        return value
    if isinstance(value, str):
        try:
            value = int(value) if kind == "integer" else float(value)
        except ValueError:
            raise Unacceptable(_("must be a number, not {value}").format(value=shown(value))) from None
    low, high = parameter["min"], parameter["max"]
    return whole(int(low), int(high))(value) if kind == "integer" else number(low, high)(value)


def filled(
    job: Mapping[str, Any], parameters: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[FieldError]]:
    """Return the job file with these values, or defaults, in its places, and the faults of the values."""
    faults: list[FieldError] = []
    known = {parameter["name"]: parameter for parameter in parameters}
    part = Section(dict(given), "/set", faults, known)
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        if not part.has(name) and parameter.get("default") is None:
            part.refuse(name, _("{name} is missing: this template has no default for it").format(name=name), "missing")
        default = parameter.get("default")
        values[name] = part.read(name, partial(_value, parameter), default)
    return (_put(job, values) if not faults else {}), faults


def places(value: object) -> set[str]:
    """Return the names of all places in a job file."""
    return {name for text in _texts(value) for name in _PLACE.findall(text)}


def check_places(job: Mapping[str, Any], parameters: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Return a fault for each place without a parameter, and for each parameter without a place."""
    known, used = [str(each["name"]) for each in parameters], places(job)
    said = _("the file has a place {name}, but there is no such parameter; {others}")
    faults = [
        FieldError("/job", said.format(name=shown(name), others=nearest(name, known)), "unknown_parameter")
        for name in sorted(used - set(known))
    ]
    unused = _("{name} has no place in the job file: write {place} there")
    return faults + [
        FieldError(f"/parameters/{index}", unused.format(name=name, place="{{" + name + "}}"), "unused")
        for index, name in enumerate(known)
        if name not in used
    ]


def sample(parameters: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return values with which a template can be tried: its defaults, else the first that is possible."""
    first = {"integer": lambda each: each["min"], "number": lambda each: each["min"], "boolean": lambda each: False,
             "choice": lambda each: each["choices"][0], "text": lambda each: "x"}  # fmt: skip
    return {each["name"]: first[each.get("type", "text")](each) for each in parameters if each.get("default") is None}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _put(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _put(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_put(each, values) for each in value]
    if not isinstance(value, str):
        return value
    if whole_text := _PLACE.fullmatch(value):
        return values[whole_text[1]]
    return _PLACE.sub(lambda found: _written(values[found[1]]), value)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
