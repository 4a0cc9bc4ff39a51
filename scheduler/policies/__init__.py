"""Policies, one per file. A file is found by a folder scan; nothing is registered.

A policy is a frozen dataclass with the name of its file (``fair_share.py`` has ``FairShare``); its fields are its
parameters. It derives from one or more of the four hooks in :mod:`scheduler.core.hooks` (Rank, Admit, Score, Victims)
and overrides the methods that it implements. :mod:`scheduler.research` has those that are only compared with.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import Field, fields
from functools import cache
from itertools import pairwise
from typing import Any, Final

from scheduler.core.hooks import HOOKS, Policy, answers
from scheduler.core.model.sentences import _

RESEARCH: Final = "scheduler.research"
# The range of a parameter that names none, and the most numbers of a list.
MOST: Final = 1e9
MOST_NUMBERS: Final = 16


@cache
def discover(package: str = __name__) -> dict[str, type]:
    """Return all policies of a package by name: these, or those of ``scheduler.research``. Raises ``TypeError`` for a
    file without the policy of its name."""
    found = {}
    folder = importlib.import_module(package).__path__
    for module in sorted(pkgutil.iter_modules(folder), key=lambda one: one.name):
        name = "".join(word.capitalize() for word in module.name.split("_"))
        policy = getattr(importlib.import_module(f"{package}.{module.name}"), name, None)
        if policy is None or not issubclass(policy, HOOKS) or not answers(policy):
            hooks = ", ".join(hook.__name__ for hook in HOOKS)
            raise TypeError(f"{package}.{module.name} must hold a class {name} that answers by one of {hooks}")
        found[module.name] = policy
    return found


def build(name: str, params: Mapping[str, Any], *, live: bool = False) -> Policy:
    """Build the policy called ``name`` with these parameters. With ``live`` only those for pools are allowed, no
    baselines or oracles. Raises ``ValueError`` that lists the available ones."""
    own, research = discover(), discover(RESEARCH)
    if live and name in research:
        problem = _('policy "{name}" is a yardstick for simulations; a pool may have {all}')
        raise ValueError(problem.format(name=name, all=", ".join(own)))
    known = own if live else own | research
    if name not in known:
        raise ValueError(_('there is no policy "{name}"; there are {all}').format(name=name, all=", ".join(known)))
    allowed = {one.name: one for one in fields(known[name])}
    for param in params:
        if param not in allowed:
            takes = ", ".join(allowed) or _("no parameters")
            problem = _('policy "{name}" has no parameter "{param}"; it takes {takes}')
            raise ValueError(problem.format(name=name, param=param, takes=takes))
    policy: Policy = known[name](**{param: _checked(name, allowed[param], value) for param, value in params.items()})
    return policy


def _checked(name: str, param: Field[Any], value: Any) -> Any:
    """Return the validated value of a parameter, which has the type of its default: a flag, an ascending list of
    numbers, a whole number or a number. A field's metadata may name a ``range``. Raises ``ValueError`` otherwise."""
    if isinstance(param.default, bool):
        if not isinstance(value, bool):
            problem = _('policy "{name}": {param} must be true or false, not {value!r}')
            raise ValueError(problem.format(name=name, param=param.name, value=value))
        return value
    least, most = param.metadata.get("range", (0.0, MOST))
    kind = (int,) if isinstance(param.default, int) else (int, float)

    def fits(one: Any) -> bool:
        return isinstance(one, kind) and not isinstance(one, bool) and least <= one <= most

    if not isinstance(param.default, tuple):
        if not fits(value):
            problem = _('policy "{name}": {param} must be a number from {least:g} to {most:g}, not {value!r}')
            if kind == (int,):
                problem = _('policy "{name}": {param} must be a whole number from {least:g} to {most:g}, not {value!r}')
            raise ValueError(problem.format(name=name, param=param.name, least=least, most=most, value=value))
        return value
    grows = isinstance(value, (list, tuple)) and 0 < len(value) <= MOST_NUMBERS and all(map(fits, value))
    if not grows or any(low >= high for low, high in pairwise(value)):
        problem = _('policy "{name}": {param} must be 1 to {count} numbers that grow, from {least:g} to {most:g}')
        raise ValueError(problem.format(name=name, param=param.name, count=MOST_NUMBERS, least=least, most=most))
    return tuple(value)
