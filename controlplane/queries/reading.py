"""Reads a resource for a page: the API's answer for this user, and its entity tag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django_filters import FilterSet

from controlplane.accounts.models import User
from controlplane.queries import names
from controlplane.queries.cursor import Page, page_of
from controlplane.queries.refusals import Unanswerable

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Representation:
    """The body of a GET of ``path`` for this user, and its entity tag."""

    path: str
    etag: str
    body: Any


def seen(user: User, path: str, model: Any) -> Representation:
    """The read model as this user sees it; ``path``, below /api/v1, is the API's address of it."""
    content = names.encode(model, user)
    return Representation(API + path, etag(content), json.loads(content))


def redacted(user: User, model: Any) -> Any:
    """The read model as plain values, without names of stages whose jobs this user may not see."""
    return json.loads(names.encode(model, user))


def etag(content: bytes) -> str:
    """The strong ETag of a body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def listed(
    user: User,
    path: str,
    params: Mapping[str, str],
    chosen: FilterSet,
    order: str,
    shown: Callable[[list[Any], User], list[Any]],
) -> Representation:
    """One page of a list at ``path``, as :func:`seen`; raises :class:`Unanswerable` for what a filter refuses."""
    if not chosen.is_valid():
        name, said = next(iter(chosen.errors.items()))
        raise Unanswerable(f"{name}: {said[0]}")
    rows, links = page_of(chosen.qs, order, API + path, params)
    return seen(user, f"{path}?{urlencode(params)}", Page(shown(rows, user), **links))


def cursor_of(url: str | None) -> str:
    """The cursor in an answer's next or previous address."""
    return parse_qs(urlsplit(url).query).get("cursor", [""])[0] if url else ""
