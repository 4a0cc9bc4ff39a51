"""One small judgement per file. A file is found by being here; nothing registers it.

A policy is a frozen dataclass that bears the name of its file (``fair_share.py`` holds ``FairShare``); its fields are
its parameters. It has any of the methods in ``scheduler.core.ports``: order, admit, groups, fits, score, choose,
victims.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from scheduler.core.ports import ABILITIES
from scheduler.core.sentences import _


@cache
def discover() -> dict[str, type]:
    """All policies by name. Raises ``TypeError`` for a file that does not hold what its name says."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        name = "".join(word.capitalize() for word in module.name.split("_"))
        policy = getattr(importlib.import_module(f"{__name__}.{module.name}"), name, None)
        if policy is None or not any(hasattr(policy, ability) for ability in ABILITIES):
            raise TypeError(f"policies/{module.name}.py must hold a class {name} with one of {', '.join(ABILITIES)}")
        found[module.name] = policy
    return found


def build(name: str, params: dict[str, Any]) -> Any:
    """The policy called ``name`` with these parameters; raises ``ValueError`` that lists what exists."""
    known = discover()
    if name not in known:
        raise ValueError(_('there is no policy "{name}"; there are {all}').format(name=name, all=", ".join(known)))
    allowed = [one.name for one in fields(known[name])]
    for param in params:
        if param not in allowed:
            takes = ", ".join(allowed) or _("no parameters")
            problem = _('policy "{name}" has no parameter "{param}"; it takes {takes}')
            raise ValueError(problem.format(name=name, param=param, takes=takes))
        _check(name, param, params[param], known[name])
    try:
        return known[name](**params)
    except TypeError as error:
        raise ValueError(_('policy "{name}": {fault}').format(name=name, fault=error)) from None


def _check(name: str, param: str, value: Any, policy: type) -> None:
    """Raises ``ValueError`` for a value of another type than the parameter's default, or beyond its range: a field's
    metadata may name one (``range``); without it a number is finite and not negative."""
    found = next(one for one in fields(policy) if one.name == param)
    default = found.default
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        right = default is MISSING or default is None or isinstance(value, type(default))
        if not right:
            problem = _('policy "{name}": {param} must be of type {kind}, not {value!r}')
            raise ValueError(problem.format(name=name, param=param, kind=type(default).__name__, value=value))
        return
    least, most = found.metadata.get("range", (0.0, math.inf))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:
        problem = _('policy "{name}": {param} must be a number of at least {least:g}, not {value!r}')
        if math.isfinite(most):
            problem = _('policy "{name}": {param} must be a number from {least:g} to {most:g}, not {value!r}')
        raise ValueError(problem.format(name=name, param=param, least=least, most=most, value=value))
