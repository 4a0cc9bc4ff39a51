"""What the engine's modules say when they refuse something, in the language of whoever asked."""

from __future__ import annotations

from django.utils.translation import gettext

from scheduler.core.sentences import Sentence


def in_language(text: str) -> str:
    """The sentence made anew from its template; a text that is no sentence stays as it is."""
    if not isinstance(text, Sentence):
        return text
    fields = {name: in_language(value) if isinstance(value, str) else value for name, value in text.fields.items()}
    return gettext(text.template).format(**fields) if fields else gettext(text.template)
