"""The kinds of providers: one file each, found by a scan of this folder; one test suite checks them.

A module here has ``SETTINGS``, what an operator sets by key and how each is checked, ``NEEDED``, the keys that must be
there, ``SHAPE``, the keys that it adds to a shape, and ``engine(settings)``, which returns an
:class:`controlplane.providers.engine.ForeignEngine`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.conf import settings

from controlplane.providers.engine import ForeignEngine


@cache
def found() -> tuple[str, ...]:
    """Return the names of the kinds, sorted."""
    return tuple(sorted(each.name for each in pkgutil.iter_modules(__path__)))


def allowed() -> list[str]:
    """Return the kinds that this installation's ``YARD_PROVIDER_KINDS`` allows."""
    return [kind for kind in found() if kind in settings.PROVIDER_KINDS]


def module(kind: str) -> Any:
    """Return the module of a kind. Raises KeyError if there is none."""
    if kind not in found():
        raise KeyError(kind)
    return importlib.import_module(f"{__name__}.{kind}")


def engine(kind: str, given: Mapping[str, Any]) -> ForeignEngine:
    """Return the foreign engine that these settings describe."""
    made: ForeignEngine = module(kind).engine(given)
    return made
