"""Finds the number of what a person names, where names are only unique within a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from switchyard.problem import NotFound, UsageError


def number_of(kind: str, named: str, project: str, listed: Callable[..., Iterable[Mapping[str, Any]]]) -> int:
    """Return the number of the ``kind`` (schedule, service) that is named by its number or name.

    ``listed`` lists those of a name, of all projects if none is given. Raises ``NotFound`` and ``UsageError``.
    """
    if named.isdecimal():
        return int(named)
    found = list(listed(name=named, project=project or None))
    if len(found) == 1:
        return int(found[0]["id"])
    if not found:
        raise NotFound(f"there is no {kind} {named} that you may see; yard {kind} lists them")
    places = ", ".join(f"{one['id']} of {one['project']}" for one in found)
    raise UsageError(f"{named} is the name of several {kind}s, {places}: give its number or --project")
