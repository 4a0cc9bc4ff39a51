"""What is shown of a job file and of a resolved demand: everything but the values of secret variables.

The record keeps the real values, because agents must hand them to what they run. Whatever shows a file or a demand to
people goes through here; the order to an agent does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agents.protocol import MASK, tells_secret

MASKED: Final = MASK.decode()


def is_secret(name: str, marked: Iterable[str]) -> bool:
    """Whether the value of this variable is shown to nobody: it is marked, or its name says so (``HF_TOKEN``)."""
    return name in marked or tells_secret(name)


def shown(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A job file, or the demand of a stage, with the values of secret variables masked, wherever they stand in it.

    An empty value hides nothing and is left. A variable that is marked anywhere in a file is masked in all of it.
    """
    marked = _marked(asked)
    return {key: _shown(key, value, marked) for key, value in asked.items()}


def names(asked: Mapping[str, Any]) -> list[str]:
    """The variables whose values ``shown`` masks, in the order of their names."""
    return sorted(_hidden(asked, _marked(asked)))


def _shown(key: str, value: Any, marked: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        if key == "env":
            return {name: MASKED if _hides(name, word, marked) else word for name, word in value.items()}
        return {name: _shown(name, each, marked) for name, each in value.items()}
    return [_shown("", each, marked) for each in value] if isinstance(value, list) else value


def _hides(name: str, word: Any, marked: frozenset[str]) -> bool:
    return word not in (None, "") and is_secret(name, marked)


def _marked(value: Any) -> frozenset[str]:
    """The variables that some list ``secrets`` in it names."""
    if isinstance(value, list):
        return frozenset().union(*map(_marked, value))
    if not isinstance(value, Mapping):
        return frozenset()
    listed = value.get("secrets")
    own = frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else frozenset()
    return own.union(*map(_marked, value.values()))


def _hidden(value: Any, marked: frozenset[str], key: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_hidden(each, marked) for each in value))
    if not isinstance(value, Mapping):
        return set()
    if key == "env":
        return {name for name, word in value.items() if _hides(name, word, marked)}
    return set().union(*(_hidden(each, marked, name) for name, each in value.items()))
