"""Stored sentences: English text, and the clauses from which it is rendered in any language.

Clauses come from the engine, from agents and from the control plane itself. A clause is stored as a code and its
values; a value may itself be a sentence with clauses (:class:`Told`), for example the reason inside a longer sentence.
A sentence without clauses was written by a person, or is older than clauses are, and is shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import get_language, gettext

from agents.protocol import ENDS, NOTES
from controlplane.amounts import gib, span
from controlplane.clause_templates import FAULTS, RECORD
from scheduler.core.model import clauses as engine
from scheduler.core.model import times
from scheduler.core.model.clauses import _

# Bounds of what an agent may say in one sentence; the clauses of a longer one are dropped.
MOST_CLAUSES: Final = 16
LONGEST: Final = 2000
# Replaces the name of a stage whose job the reader may not see.
HIDDEN: Final = _("another project's stage")
# Replaces a list of several such names.
HIDDEN_SEVERAL: Final = _("{n} stages of other projects")
_SEVERAL: Final = re.compile(r"([0-9]+) stages of other projects")

TEMPLATES: Final[Mapping[str, str]] = {**engine.TEMPLATES, **ENDS, **NOTES, **RECORD, **FAULTS}

Clause = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence in English and its clauses; there are none if a person wrote the sentence."""

    text: str = ""
    said: list[Clause] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"text": self.text, "said": self.said}

    def __bool__(self) -> bool:
        return bool(self.text)


def clause(code: str, /, **params: Any) -> Clause:
    return {"code": code, "params": {name: _stored(value) for name, value in params.items()}}


def told(*said: Clause) -> Told:
    """Render clauses as one sentence."""
    pieces = (TEMPLATES[each["code"]].format_map(_english(each["params"])) for each in said)
    return Told("".join(pieces), list(said))


def joined(sentences: Sequence[Told], code: str) -> Told:
    """Join sentences into one, with the clause of this code between them."""
    said: list[Clause] = []
    for each in sentences:
        said += [*([clause(code)] if said else []), *each.said]
    return Told(TEMPLATES[code].join(each.text for each in sentences), said)


def of_engine(text: str, said: engine.Said) -> Told:
    return Told(text, engine.plain(said))


def verbatim(words: str) -> Told:
    """Return words that have no code: of a person, a program, or an agent that knows no clauses for them."""
    return told(clause("AsTold", words=words)) if words else Told()


def of_error(error: BaseException) -> Told:
    """Return what an error says, which are the words of a program."""
    return verbatim(f"{type(error).__name__}: {error}")


def of_agent(text: str, said: Iterable[tuple[str, Mapping[str, Any]]]) -> Told:
    """Return what an agent said, in the form that is stored; too many or too long clauses are dropped."""
    clauses = [clause(code, **params) for code, params in said]
    much = len(clauses) > MOST_CLAUSES or any(len(str(each["params"])) > LONGEST for each in clauses)
    return Told(text, clauses) if clauses and not much else verbatim(text)


def each_of_agent(texts: Sequence[str], said: Sequence[Iterable[tuple[str, Mapping[str, Any]]]]) -> list[Told]:
    """Return several sentences of an agent; an older one sends no clauses beside them."""
    return [of_agent(text, said[i] if i < len(said) else ()) for i, text in enumerate(texts)]


def kept(text: str, said: Any) -> Told:
    """Return the sentence that is stored in these two columns of a row."""
    return Told(text, said if isinstance(said, list) else [])


def _stored(value: Any) -> Any:
    return value.plain() if isinstance(value, Told) else value


def _english(params: Mapping[str, Any]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            shown[name] = str(value["text"])
        elif name.endswith("_s"):
            shown[name] = times.span(value)
        else:
            shown[name] = f"{value / 2**30:.1f} GiB" if name.endswith("_bytes") else str(value)
    return shown


# -- in the reader's language


def in_words(text: str, said: Sequence[Mapping[str, Any]] | None) -> str:
    """Render a sentence in the reader's language.

    It stays English if it has no clauses, or one that only a later version knows.
    """
    if not said or (get_language() or "en").startswith("en") or any(each.get("code") not in TEMPLATES for each in said):
        return text
    pieces = (
        gettext(TEMPLATES[each["code"]]).format_map(ShownValues(shown(each.get("params") or {}))) for each in said
    )
    return hidden_in_words("".join(pieces).lstrip(",;，；、 "))


def hidden_in_words(text: str) -> str:
    """Translate the placeholders for hidden stages in a text into the reader's language."""
    several = gettext(HIDDEN_SEVERAL)
    return _SEVERAL.sub(lambda found: several.format(n=found[1]), text.replace(HIDDEN, gettext(HIDDEN)))


def shown(params: Mapping[str, Any]) -> dict[str, str]:
    """Format values for display: durations, sizes and times by suffix of their names, nested sentences translated."""
    return {name: _value(name, value, params) for name, value in params.items()}


def _value(name: str, value: Any, params: Mapping[str, Any]) -> str:
    if isinstance(value, Mapping):
        return in_words(str(value.get("text", "")), value.get("said"))
    if f"{name}_said" in params:
        return in_words(str(value), params[f"{name}_said"])
    if isinstance(value, str) and isinstance(params.get(f"{name}_s"), int | float):
        return span(params[f"{name}_s"])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_s"):
        return span(value) if value >= 10 or value == int(value) else gettext("{n} s").format(n=f"{value:.2g}")
    return gib(value) if name.endswith("_bytes") else str(value)


class ShownValues(dict[str, str]):
    """Values for a template; a missing one is rendered as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
