"""English sentences that know from which template and values they were made, so that others can say them again.

What is raised here is English for whoever reads a log or a terminal; the control plane, which knows the language of the
person who asked, makes the sentence anew from its template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Sentence(str):
    """A sentence; the values of its ``fields`` may be sentences in their turn."""

    __slots__ = ("fields", "template")
    template: str
    fields: Mapping[str, Any]

    def __new__(cls, template: str, **fields: Any) -> Sentence:
        made = super().__new__(cls, str.format(template, **fields) if fields else template)
        made.template, made.fields = template, fields
        return made

    def format(self, **fields: Any) -> Sentence:  # type: ignore[override]  # by name only: other languages order anew
        return Sentence(self.template, **fields)


def _(template: str) -> Sentence:
    """Marks a template for the translators, whose tools look for this name."""
    return Sentence(template)


def said(error: Exception) -> str:
    """What an error says, as a sentence where it was raised with one."""
    return error.args[0] if error.args and isinstance(error.args[0], Sentence) else str(error)
