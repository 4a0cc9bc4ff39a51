"""What a page shows of a resource: what the API would answer this reader, and the entity tag of that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from controlplane.accounts.models import User
from controlplane.queries import names

API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Answer:
    """The body that a GET of ``path`` gives this user, and its entity tag."""

    path: str
    etag: str
    body: Any


def seen(user: User, path: str, model: Any) -> Answer:
    """The read model as this user sees it; ``path``, below /api/v1, is where the API answers with the same."""
    content = names.encode(model, user)
    return Answer(API + path, etag(content), json.loads(content))


def etag(content: bytes) -> str:
    """The strong ETag of a body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
