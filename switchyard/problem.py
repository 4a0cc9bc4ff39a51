"""Exceptions of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PASSING = frozenset({429, 502, 503, 504})
"""HTTP statuses that say: not just now."""


class SwitchyardError(Exception):
    """The base of all exceptions of this package."""


class Unreachable(SwitchyardError):
    """No answer: no server is known, the connection failed, or a proxy has no server behind it."""


class UsageError(SwitchyardError, ValueError):
    """A command line that cannot be understood; nothing was sent."""


class NotFound(SwitchyardError):
    """What was named is not there, or is not yours to see."""


class WaitTimeout(SwitchyardError, TimeoutError):
    """A wait timed out; the job goes on."""


class SpecError(SwitchyardError, ValueError):
    """The given arguments do not make a valid job; nothing was sent."""


class BundleError(SwitchyardError, ValueError):
    """A folder cannot be sent as a bundle; nothing was sent."""


class ApiProblem(SwitchyardError):
    """A refusal by the control plane, as RFC 9457 ``application/problem+json``.

    ``code`` is stable and for programs, ``detail`` is a sentence for people, ``errors`` point into the job file
    (``{"pointer", "detail", "code"}``), ``trace_id`` finds the request in the server's log.
    """

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.type = str(body.get("type") or "about:blank")
        self.title = str(body.get("title") or "")
        self.detail = str(body.get("detail") or "")
        self.instance = str(body.get("instance") or "")
        self.code = str(body.get("code") or f"http_{status}")
        self.trace_id = str(body.get("trace_id") or "")
        self.hint = str(body.get("hint") or "")
        found = body.get("errors")
        self.errors: list[dict[str, Any]] = [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []
        super().__init__(self.detail or self.title or f"the server answered {status}")

    @property
    def is_passing(self) -> bool:
        """Whether the same call may succeed in a moment; ``in_flight`` means that an earlier try still runs."""
        return self.status in PASSING or self.code == "in_flight"
