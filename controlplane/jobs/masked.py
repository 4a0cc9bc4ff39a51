"""Masks the values of secret variables wherever a job file or a resolved demand is shown.

The stored copy of a file is masked at submission already (see ``jobs.sealed``); whatever is shown, stored or not, goes
through here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agents.protocol import MASK, tells_secret

MASKED: Final = MASK.decode()
# The key of a stage's request that has the index of each variable's value in the job's secrets.
SEALED: Final = "sealed"


def is_secret(name: str, among: Iterable[str]) -> bool:
    """Whether the value of this variable is never shown: it is marked, or its name implies a secret (``HF_TOKEN``)."""
    return name in among or tells_secret(name)


def shown(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job file, or the demand of a stage, with all values of secret variables masked.

    Empty values are left as they are. A variable that is marked anywhere in a file is masked everywhere in it.
    """
    names_ = marked(asked)
    return {key: _shown(key, value, names_) for key, value in asked.items() if key != SEALED}


def names(asked: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the variables whose values ``shown`` masks."""
    return sorted(_hidden(asked, marked(asked)))


def _shown(key: str, value: Any, among: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        if key == "env":
            return {name: MASKED if _hides(name, word, among) else word for name, word in value.items()}
        return {name: _shown(name, each, among) for name, each in value.items()}
    return [_shown("", each, among) for each in value] if isinstance(value, list) else value


def _hides(name: str, word: Any, among: frozenset[str]) -> bool:
    return word not in (None, "") and is_secret(name, among)


def marked(value: Any) -> frozenset[str]:
    """Return the variables that any ``secrets`` list in the file names."""
    if isinstance(value, list):
        return frozenset().union(*map(marked, value))
    if not isinstance(value, Mapping):
        return frozenset()
    listed = value.get("secrets")
    own = frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else frozenset()
    return own.union(*map(marked, value.values()))


def _hidden(value: Any, among: frozenset[str], key: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(_hidden(each, among) for each in value))
    if not isinstance(value, Mapping):
        return set()
    if key == "env":
        return {name for name, word in value.items() if _hides(name, word, among)}
    return set().union(*(_hidden(each, among, name) for name, each in value.items()))
