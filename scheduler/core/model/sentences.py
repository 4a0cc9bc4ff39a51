"""English sentences that keep their template and values, so that they can be rendered in other languages.

Exceptions here are in English for logs and terminals; the control plane renders them from the template in the language
of the request.
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

    def format(self, **fields: Any) -> Sentence:  # type: ignore[override]  # by name only: other languages have another order
        return Sentence(self.template, **fields)


def _(template: str) -> Sentence:
    """Marks a template for the translators, whose tools look for this name."""
    return Sentence(template)


def said(error: Exception) -> str:
    """Return the message of an error, as a sentence with its template if it has one."""
    return error.args[0] if error.args and isinstance(error.args[0], Sentence) else str(error)
