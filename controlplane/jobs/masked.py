"""What is shown of a job file and of a resolved demand: everything but the values of secret variables.

What is kept of a file is masked here when it is submitted (see ``jobs.sealed``), and whatever is shown of one, kept or
not, goes through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from agents.protocol import MASK, tells_secret

MASKED: Final = MASK.decode()
# Where the request of a stage says which value of the job's own secrets each variable has.
SEALED: Final = "sealed"


def is_secret(name: str, among: Iterable[str]) -> bool:
    """Whether the value of this variable is shown to nobody: it is marked, or its name says so (``HF_TOKEN``)."""
    return name in among or tells_secret(name)


def shown(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A job file, or the demand of a stage, with the values of secret variables masked, wherever they stand in it.

    An empty value hides nothing and is left. A variable that is marked anywhere in a file is masked in all of it.
    """
    names_ = marked(asked)
    return {key: _shown(key, value, names_) for key, value in asked.items() if key != SEALED}


def names(asked: Mapping[str, Any]) -> list[str]:
    """The variables whose values ``shown`` masks, in the order of their names."""
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
    """The variables that some list ``secrets`` in it names."""
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
