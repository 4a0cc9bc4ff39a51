"""Answers whose content a job decided."""

from __future__ import annotations

from django.http import HttpResponseBase


def sandboxed(response: HttpResponseBase) -> None:
    """Have no browser that opens the address of this answer take it for a page, nor run what is in it."""
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["X-Content-Type-Options"] = "nosniff"
